//! [`CpuBackend`]: the steps of the model, in order, over the pieces beside this file.

use std::collections::BTreeMap;
use std::ops::Range;

use spinetail_core::{ModelConfig, ModelSource};
use spinetail_model::{Backend, BackendError, RoutedRow, Routing, Row, SavedState, SequenceId};
use spinetail_store::Lease;

use crate::attention::Attention;
use crate::compute::{Compute, CpuOptions, Product};
use crate::delta::{Delta, DeltaInputs};
use crate::kernels::{Activations, Isa};
use crate::moe::{Moe, choose};
use crate::sequence::Sequence;
use crate::weights::{LayerWeights, Loader, Mixer, Weights};

/// Activations of the current batch.
#[derive(Default)]
struct Batch {
    rows: Vec<Row>,
    /// Rows of one sequence each.
    spans: Vec<Range<usize>>,
    /// `[rows, hidden]`: the residual stream.
    x: Vec<f32>,
    /// `[rows, hidden]`: normed for the step at hand.
    h: Activations,
    /// Projections of `h`: q, k, v of attention, or qkv, z, b, a of DeltaNet.
    projected: [Vec<f32>; 4],
    /// Logits of the shared expert's gate, `[rows]`; left by `route` for `shared_expert`.
    shared_gate: Vec<f32>,
    mixed: Activations,
    out: Vec<f32>,
    logits: Vec<f32>,
}

/// The model on this machine's processor.
pub struct CpuBackend {
    config: ModelConfig,
    compute: Compute,
    weights: Weights,
    sequences: BTreeMap<SequenceId, Sequence>,
    next_sequence: u32,
    batch: Batch,
    attention: Attention,
    delta: Delta,
    moe: Moe,
}

impl CpuBackend {
    /// Reads the dense weights of `source` into memory. `progress` is told bytes as they are read.
    pub fn load(
        source: &dyn ModelSource,
        options: &CpuOptions,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self, BackendError> {
        crate::memory::give_back_what_is_freed();
        let config = source.config().clone();
        let compute = Compute::new(options)?;
        let loader = Loader::new(source, progress)?;
        let weights = loader.load(|i| source.record_layout(i as u16).cloned())?;
        Ok(Self {
            attention: Attention::new(&config),
            delta: Delta::new(&config),
            compute,
            weights,
            sequences: BTreeMap::new(),
            next_sequence: 0,
            batch: Batch::default(),
            moe: Moe::default(),
            config,
        })
    }

    /// Threads that compute.
    pub fn threads(&self) -> usize {
        self.compute.pool.threads()
    }

    /// The instruction set of the kernels.
    pub fn isa(&self) -> Isa {
        self.compute.kernels.isa()
    }

    /// Checks that each row continues its sequence and takes the rows on.
    fn begin(&mut self, rows: &[Row]) -> Result<(), BackendError> {
        let mut lengths: BTreeMap<SequenceId, u32> = BTreeMap::new();
        for row in rows {
            let Row { sequence, position, .. } = *row;
            let known = self.sequences.get(&sequence);
            let s = known.ok_or(BackendError::UnknownSequence { sequence })?;
            if !s.is_whole(self.config.attention.kv_heads * self.config.attention.head_dim) {
                return Err(BackendError::State { position });
            }
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
        self.batch.spans.clear();
        for (i, row) in rows.iter().enumerate() {
            match self.batch.spans.last_mut() {
                Some(span) if rows[span.start].sequence == row.sequence => span.end = i + 1,
                _ => self.batch.spans.push(i..i + 1),
            }
        }
        self.moe.begin(rows.len(), self.config.hidden);
        Ok(())
    }

    fn norm_rows(&mut self, layer: usize, w: impl Fn(&LayerWeights) -> &[f32]) {
        let b = &mut self.batch;
        let eps = self.config.rms_norm_eps as f32;
        self.compute.norm_rows(&b.x, w(&self.weights.layers[layer]), eps, &mut b.h);
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
        self.sequences.insert(id, Sequence::new(capacity, &self.config, self.compute.precision)?);
        Ok(id)
    }

    fn fill_sequence(&mut self, sequence: SequenceId, length: u32, seed: u64) -> Result<(), BackendError> {
        let s = self.sequences.get_mut(&sequence).ok_or(BackendError::UnknownSequence { sequence })?;
        if length > s.capacity {
            return Err(BackendError::ContextFull { capacity: s.capacity });
        }
        let kv_width = self.config.attention.kv_heads * self.config.attention.head_dim;
        s.fill(&self.compute.kernels, length, kv_width, seed);
        Ok(())
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
        self.batch.x.resize(rows.len() * hidden, 0.0);
        for (row, x) in rows.iter().zip(self.batch.x.chunks_exact_mut(hidden)) {
            self.weights.embed.row(row.token as usize, x);
        }
        Ok(())
    }

    fn set_hidden(&mut self, rows: &[Row], x: &[f32]) -> Result<(), BackendError> {
        if x.len() != rows.len() * self.config.hidden {
            return Err(BackendError::Shape {
                what: "hidden",
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
        let (c, b, compute) = (self.config.attention, &mut self.batch, &self.compute);
        let n = b.rows.len();
        let [q, k, v, _] = &mut b.projected;
        let products = [
            Product::new(w.q_proj.operand(), n, q),
            Product::new(w.k_proj.operand(), n, k),
            Product::new(w.v_proj.operand(), n, v),
        ];
        compute.products(&mut b.h, &products);
        let (q_width, kv_width, out) =
            (c.heads * 2 * c.head_dim, c.kv_heads * c.head_dim, c.heads * c.head_dim);
        let mixed = b.mixed.fill(n, out);
        for span in &b.spans {
            let Row { sequence, position, .. } = b.rows[span.start];
            let s = self.sequences.get_mut(&sequence).ok_or(BackendError::UnknownSequence { sequence })?;
            let at = |width: usize| span.start * width..span.end * width;
            let (q, k, v) = (&mut q[at(q_width)], &mut k[at(kv_width)], &v[at(kv_width)]);
            let cache = &mut s.kv[lw.mixer_index];
            self.attention.rows(compute, w, cache, position as usize, q, k, v, &mut mixed[at(out)]);
        }
        compute.products(&mut b.mixed, &[Product::new(w.o_proj.operand(), n, &mut b.out)]);
        compute.add_rows(&mut b.x, &b.out, self.config.hidden);
        Ok(())
    }

    fn delta_net(&mut self, layer: usize) -> Result<(), BackendError> {
        self.norm_rows(layer, |w| &w.input_norm);
        let lw = &self.weights.layers[layer];
        let Mixer::Delta(w) = &lw.mixer else {
            return Err(Self::wrong_mixer(layer, "a DeltaNet layer"));
        };
        let (c, b, compute) = (self.config.delta, &mut self.batch, &self.compute);
        let n = b.rows.len();
        // β and the decay steer a state over thousands of tokens, and are few: never rounded.
        let [qkv, z, beta, decay] = &mut b.projected;
        let products = [
            Product::new(w.in_proj_qkv.operand(), n, qkv),
            Product::new(w.in_proj_z.operand(), n, z),
            Product::exact(w.in_proj_b.operand(), n, beta),
            Product::exact(w.in_proj_a.operand(), n, decay),
        ];
        compute.products(&mut b.h, &products);
        let (channels, width, heads) = (c.conv_channels(), c.value_channels(), c.value_heads);
        let mixed = b.mixed.fill(n, width);
        for span in &b.spans {
            let sequence = b.rows[span.start].sequence;
            let s = self.sequences.get_mut(&sequence).ok_or(BackendError::UnknownSequence { sequence })?;
            let at = |width: usize| span.start * width..span.end * width;
            let inputs = DeltaInputs {
                qkv: &qkv[at(channels)],
                z: &z[at(width)],
                b: &beta[at(heads)],
                a: &decay[at(heads)],
            };
            self.delta.rows(compute, w, &mut s.delta[lw.mixer_index], &inputs, &mut mixed[at(width)]);
        }
        compute.products(&mut b.mixed, &[Product::new(w.out_proj.operand(), n, &mut b.out)]);
        compute.add_rows(&mut b.x, &b.out, self.config.hidden);
        Ok(())
    }

    fn route(&mut self, layer: usize, routing: &mut Routing) -> Result<(), BackendError> {
        self.norm_rows(layer, |w| &w.post_norm);
        let (b, w) = (&mut self.batch, &self.weights.layers[layer]);
        let n = b.rows.len();
        let products = [
            Product::exact(w.router.operand(), n, &mut b.logits),
            Product::exact(w.shared_gate.operand(), n, &mut b.shared_gate),
        ];
        self.compute.products(&mut b.h, &products);
        let finite = choose(&self.compute, &self.config.moe, &mut b.logits, routing);
        Self::check_routing(finite, layer)
    }

    fn predict(&mut self, layer: usize, routing: &mut Routing) -> Result<(), BackendError> {
        let w = &self.weights.layers[layer];
        let (mut h, mut logits) = (Activations::new(), Vec::new());
        let eps = self.config.rms_norm_eps as f32;
        self.compute.norm_rows(&self.batch.x, &w.post_norm, eps, &mut h);
        let n = h.rows();
        self.compute.products(&mut h, &[Product::exact(w.router.operand(), n, &mut logits)]);
        Self::check_routing(choose(&self.compute, &self.config.moe, &mut logits, routing), layer)
    }

    fn shared_expert(&mut self, layer: usize) -> Result<(), BackendError> {
        let (w, b) = (&self.weights.layers[layer], &mut self.batch);
        let weights = [&w.shared[0], &w.shared[1], &w.shared[2]].map(|m| m.operand());
        self.moe.shared(&self.compute, weights, &b.shared_gate, &mut b.h);
        Ok(())
    }

    fn expert(&mut self, layer: usize, lease: &Lease, rows: &[RoutedRow]) -> Result<(), BackendError> {
        let layout = &self.weights.layers[layer].record;
        self.moe.expert(&self.compute, layout, lease.bytes(), &mut self.batch.h, rows);
        Ok(())
    }

    fn combine(&mut self, _layer: usize) -> Result<(), BackendError> {
        self.moe.combine(&self.compute, &mut self.batch.x, self.config.hidden);
        Ok(())
    }

    fn head(&mut self, rows: &[u32], logits: &mut [f32]) -> Result<(), BackendError> {
        let (hidden, vocab, b) = (self.config.hidden, self.config.vocab, &mut self.batch);
        if logits.len() != rows.len() * vocab || rows.iter().any(|&r| r as usize >= b.rows.len()) {
            return Err(BackendError::Shape {
                what: "head",
                expected: format!("rows below {} and {} logits", b.rows.len(), rows.len() * vocab),
                found: format!("rows {rows:?} and {} logits", logits.len()),
            });
        }
        // Not `b.h`: the rows of the batch stay what they are.
        let h = b.mixed.fill(rows.len(), hidden);
        for (&row, h) in rows.iter().zip(h.chunks_exact_mut(hidden)) {
            let x = &b.x[row as usize * hidden..][..hidden];
            self.compute.kernels.rms_norm(x, &self.weights.norm, self.config.rms_norm_eps as f32, h);
        }
        let product = Product::new(self.weights.head().operand(), rows.len(), &mut b.logits);
        self.compute.products(&mut b.mixed, &[product]);
        logits.copy_from_slice(&b.logits);
        if logits.iter().all(|l| l.is_finite()) {
            return Ok(());
        }
        Err(BackendError::NotFinite { at: "the head, after the last layer,".to_owned() })
    }

    fn trim(&mut self) {
        self.batch = Batch::default();
        self.attention = Attention::new(&self.config);
        self.delta = Delta::new(&self.config);
        self.moe = Moe::default();
    }

    fn save_state(&mut self, sequence: SequenceId) -> Result<SavedState, BackendError> {
        let s = self.sequences.get(&sequence).ok_or(BackendError::UnknownSequence { sequence })?;
        Ok(s.save(sequence))
    }

    fn restore_state(&mut self, sequence: SequenceId, state: &SavedState) -> Result<(), BackendError> {
        let kv_width = self.config.attention.kv_heads * self.config.attention.head_dim;
        if state.sequence != sequence {
            return Err(BackendError::State { position: state.position });
        }
        let s = self.sequences.get_mut(&sequence).ok_or(BackendError::UnknownSequence { sequence })?;
        s.restore(state, kv_width)
    }
}
