//! [`CpuBackend`]: the steps of the model, in order, over the pieces beside this file.

use std::collections::BTreeMap;

use spinetail_core::{ModelConfig, ModelSource};
use spinetail_model::{Backend, BackendError, RoutedRow, Routing, Row, SavedState, SequenceId};
use spinetail_store::Lease;

use crate::attention::Attention;
use crate::delta::Delta;
use crate::math::{add, add_scaled, rms_norm, sigmoid};
use crate::moe::{Moe, choose};
use crate::sequence::Sequence;
use crate::weights::{LayerWeights, Loader, Mixer, Weights};

/// Activations of the current batch.
#[derive(Default)]
struct Batch {
    rows: Vec<Row>,
    /// `[rows, hidden]`: the residual stream.
    x: Vec<f32>,
    /// `[rows, hidden]`: normed for the step at hand.
    h: Vec<f32>,
    /// Projections of `h`, and what the mixer makes of them.
    a: Vec<f32>,
    b: Vec<f32>,
    c: Vec<f32>,
    d: Vec<f32>,
    mixed: Vec<f32>,
    out: Vec<f32>,
    logits: Vec<f32>,
    scratch: Vec<f32>,
}

/// The model on this machine's processor, in f32.
pub struct CpuBackend {
    config: ModelConfig,
    weights: Weights,
    sequences: BTreeMap<SequenceId, Sequence>,
    next_sequence: u32,
    batch: Batch,
    attention: Attention,
    delta: Delta,
    moe: Moe,
}

fn resized(v: &mut Vec<f32>, len: usize) -> &mut [f32] {
    v.resize(len, 0.0);
    v
}

impl CpuBackend {
    /// Reads the dense weights of `source` into memory. `progress` is told the bytes of each tensor read.
    pub fn load(source: &dyn ModelSource, progress: &mut dyn FnMut(u64)) -> Result<Self, BackendError> {
        let config = source.config().clone();
        let loader = Loader::new(source, progress);
        let weights = loader.load(&config, |i| source.record_layout(i as u16).cloned())?;
        Ok(Self {
            attention: Attention::new(&config),
            delta: Delta::new(&config),
            weights,
            sequences: BTreeMap::new(),
            next_sequence: 0,
            batch: Batch::default(),
            moe: Moe::default(),
            config,
        })
    }

    /// Checks that each row continues its sequence and takes the rows on.
    fn begin(&mut self, rows: &[Row]) -> Result<(), BackendError> {
        let mut lengths: BTreeMap<SequenceId, u32> = BTreeMap::new();
        for row in rows {
            let Row { sequence, position, .. } = *row;
            let known = self.sequences.get(&sequence);
            let Some(s) = known else {
                return Err(BackendError::Position { sequence, length: 0, position });
            };
            let length = lengths.entry(sequence).or_insert(s.length);
            if position != *length {
                return Err(BackendError::Position { sequence, length: *length, position });
            }
            if position >= s.capacity {
                return Err(BackendError::ContextFull { capacity: s.capacity });
            }
            *length += 1;
        }
        for (id, length) in lengths {
            if let Some(s) = self.sequences.get_mut(&id) {
                s.length = length;
            }
        }
        self.batch.rows.clear();
        self.batch.rows.extend_from_slice(rows);
        self.moe.begin(rows.len(), self.config.moe.top_k, self.config.hidden);
        Ok(())
    }

    fn norm_rows(&mut self, layer: usize, w: impl Fn(&LayerWeights) -> &[f32]) {
        let (hidden, b) = (self.config.hidden, &mut self.batch);
        let w = w(&self.weights.layers[layer]);
        let h = resized(&mut b.h, b.x.len());
        for (x, h) in b.x.chunks_exact(hidden).zip(h.chunks_exact_mut(hidden)) {
            rms_norm(x, w, self.config.rms_norm_eps as f32, h);
        }
    }

    fn wrong_mixer(layer: usize, expected: &str) -> BackendError {
        let name = format!("layers.{layer}");
        BackendError::Tensor {
            name,
            expected: expected.to_owned(),
            found: "the other kind of layer".to_owned(),
        }
    }

    fn check_routing(finite: bool, layer: usize) -> Result<(), BackendError> {
        if finite { Ok(()) } else { Err(BackendError::NotFinite { at: format!("layer {layer}") }) }
    }
}

impl Backend for CpuBackend {
    fn create_sequence(&mut self, capacity: u32) -> Result<SequenceId, BackendError> {
        let id = SequenceId(self.next_sequence);
        self.next_sequence += 1;
        self.sequences.insert(id, Sequence::new(capacity, &self.config));
        Ok(id)
    }

    fn drop_sequence(&mut self, sequence: SequenceId) {
        self.sequences.remove(&sequence);
    }

    fn embed(&mut self, rows: &[Row]) -> Result<(), BackendError> {
        let (hidden, vocab) = (self.config.hidden, self.config.vocab);
        if let Some(row) = rows.iter().find(|r| r.token as usize >= vocab) {
            return Err(BackendError::Token { token: row.token, vocab });
        }
        self.begin(rows)?;
        let x = resized(&mut self.batch.x, rows.len() * hidden);
        let embed = self.weights.embed.view();
        for (row, x) in rows.iter().zip(x.chunks_exact_mut(hidden)) {
            embed.row(row.token as usize, x);
        }
        Ok(())
    }

    fn set_hidden(&mut self, rows: &[Row], x: &[f32]) -> Result<(), BackendError> {
        if x.len() != rows.len() * self.config.hidden {
            return Err(BackendError::Tensor {
                name: "hidden".to_owned(),
                expected: format!("[{}, {}]", rows.len(), self.config.hidden),
                found: format!("{} values", x.len()),
            });
        }
        self.begin(rows)?;
        self.batch.x.clear();
        self.batch.x.extend_from_slice(x);
        Ok(())
    }

    fn hidden(&mut self, x: &mut Vec<f32>) -> Result<(), BackendError> {
        x.clone_from(&self.batch.x);
        Ok(())
    }

    fn attention(&mut self, layer: usize) -> Result<(), BackendError> {
        self.norm_rows(layer, |w| &w.input_norm);
        let lw = &self.weights.layers[layer];
        let Mixer::Attention(w) = &lw.mixer else {
            return Err(Self::wrong_mixer(layer, "an attention layer"));
        };
        let (c, b) = (self.config.attention, &mut self.batch);
        let n = b.rows.len();
        let (q_width, kv_width, out_width) =
            (c.heads * 2 * c.head_dim, c.kv_heads * c.head_dim, c.heads * c.head_dim);
        w.q_proj.view().apply(&b.h, resized(&mut b.a, n * q_width), &mut b.scratch);
        w.k_proj.view().apply(&b.h, resized(&mut b.b, n * kv_width), &mut b.scratch);
        w.v_proj.view().apply(&b.h, resized(&mut b.c, n * kv_width), &mut b.scratch);
        resized(&mut b.mixed, n * out_width);
        let heads =
            b.a.chunks_exact_mut(q_width).zip(b.b.chunks_exact_mut(kv_width)).zip(b.c.chunks_exact(kv_width));
        for ((((q, k), v), row), out) in heads.zip(&b.rows).zip(b.mixed.chunks_exact_mut(out_width)) {
            if let Some(s) = self.sequences.get_mut(&row.sequence) {
                self.attention.row(w, &mut s.kv[lw.mixer_index], row.position, q, k, v, out);
            }
        }
        w.o_proj.view().apply(&b.mixed, resized(&mut b.out, b.x.len()), &mut b.scratch);
        add(&mut b.x, &b.out);
        Ok(())
    }

    fn delta_net(&mut self, layer: usize) -> Result<(), BackendError> {
        self.norm_rows(layer, |w| &w.input_norm);
        let lw = &self.weights.layers[layer];
        let Mixer::Delta(w) = &lw.mixer else {
            return Err(Self::wrong_mixer(layer, "a DeltaNet layer"));
        };
        let (c, b) = (self.config.delta, &mut self.batch);
        let n = b.rows.len();
        let (channels, width, heads) = (c.conv_channels(), c.value_channels(), c.value_heads);
        w.in_proj_qkv.view().apply(&b.h, resized(&mut b.a, n * channels), &mut b.scratch);
        w.in_proj_z.view().apply(&b.h, resized(&mut b.b, n * width), &mut b.scratch);
        w.in_proj_b.view().apply(&b.h, resized(&mut b.c, n * heads), &mut b.scratch);
        w.in_proj_a.view().apply(&b.h, resized(&mut b.d, n * heads), &mut b.scratch);
        resized(&mut b.mixed, n * width);
        for (i, (row, out)) in b.rows.iter().zip(b.mixed.chunks_exact_mut(width)).enumerate() {
            let at = |v: &'_ [f32], n: usize| -> std::ops::Range<usize> {
                debug_assert!(v.len() >= (i + 1) * n);
                i * n..(i + 1) * n
            };
            if let Some(s) = self.sequences.get_mut(&row.sequence) {
                let (qkv, z) = (&b.a[at(&b.a, channels)], &b.b[at(&b.b, width)]);
                let (beta, a) = (&b.c[at(&b.c, heads)], &b.d[at(&b.d, heads)]);
                self.delta.row(w, &mut s.delta[lw.mixer_index], qkv, z, beta, a, out);
            }
        }
        w.out_proj.view().apply(&b.mixed, resized(&mut b.out, b.x.len()), &mut b.scratch);
        add(&mut b.x, &b.out);
        Ok(())
    }

    fn route(&mut self, layer: usize, routing: &mut Routing) -> Result<(), BackendError> {
        self.norm_rows(layer, |w| &w.post_norm);
        let b = &mut self.batch;
        let logits = resized(&mut b.logits, b.rows.len() * self.config.moe.experts);
        self.weights.layers[layer].router.view().apply(&b.h, logits, &mut b.scratch);
        Self::check_routing(choose(&self.config.moe, logits, routing), layer)
    }

    fn predict(&mut self, layer: usize, routing: &mut Routing) -> Result<(), BackendError> {
        let (w, hidden) = (&self.weights.layers[layer], self.config.hidden);
        let mut h = vec![0.0; self.batch.x.len()];
        for (x, h) in self.batch.x.chunks_exact(hidden).zip(h.chunks_exact_mut(hidden)) {
            rms_norm(x, &w.post_norm, self.config.rms_norm_eps as f32, h);
        }
        let mut logits = vec![0.0; self.batch.rows.len() * self.config.moe.experts];
        w.router.view().apply(&h, &mut logits, &mut self.batch.scratch);
        Self::check_routing(choose(&self.config.moe, &mut logits, routing), layer)
    }

    fn shared_expert(&mut self, layer: usize) -> Result<(), BackendError> {
        let (w, b, hidden) = (&self.weights.layers[layer], &mut self.batch, self.config.hidden);
        let n = b.rows.len();
        let gate = resized(&mut b.a, n);
        w.shared_gate.view().apply(&b.h, gate, &mut b.scratch);
        let out = resized(&mut b.out, n * hidden);
        self.moe.swiglu([&w.shared[0], &w.shared[1], &w.shared[2]].map(|m| m.view()), &b.h, n, out);
        self.moe.shared.fill(0.0);
        let rows = self.moe.shared.chunks_exact_mut(hidden).zip(out.chunks_exact(hidden));
        for ((shared, out), &gate) in rows.zip(&*gate) {
            add_scaled(shared, sigmoid(gate), out);
        }
        Ok(())
    }

    fn expert(&mut self, layer: usize, lease: &Lease, rows: &[RoutedRow]) -> Result<(), BackendError> {
        let layout = &self.weights.layers[layer].record;
        let (hidden, top_k) = (self.config.hidden, self.config.moe.top_k);
        self.moe.expert(layout, lease.bytes(), &self.batch.h, hidden, top_k, rows);
        Ok(())
    }

    fn combine(&mut self, _layer: usize) -> Result<(), BackendError> {
        self.moe.combine(&mut self.batch.x, self.config.hidden, self.config.moe.top_k);
        Ok(())
    }

    fn head(&mut self, rows: &[u32], logits: &mut [f32]) -> Result<(), BackendError> {
        let (hidden, b) = (self.config.hidden, &mut self.batch);
        let h = resized(&mut b.h, rows.len() * hidden);
        for (&row, h) in rows.iter().zip(h.chunks_exact_mut(hidden)) {
            let x = &b.x[row as usize * hidden..][..hidden];
            rms_norm(x, &self.weights.norm, self.config.rms_norm_eps as f32, h);
        }
        self.weights.head().view().apply(h, logits, &mut b.scratch);
        if logits.iter().all(|l| l.is_finite()) {
            return Ok(());
        }
        Err(BackendError::NotFinite { at: "the head, after the last layer,".to_owned() })
    }

    fn save_state(&mut self, sequence: SequenceId) -> Result<SavedState, BackendError> {
        let known = self.sequences.get(&sequence).map(Sequence::save);
        known.ok_or(BackendError::Position { sequence, length: 0, position: 0 })
    }

    fn restore_state(&mut self, sequence: SequenceId, state: &SavedState) -> Result<(), BackendError> {
        let kv_width = self.config.attention.kv_heads * self.config.attention.head_dim;
        let s = self.sequences.get_mut(&sequence);
        let s = s.ok_or(BackendError::Position { sequence, length: 0, position: state.position })?;
        s.restore(state, kv_width)
    }
}
