//! The dense weights in memory, by the place where they are used.
//!
//! All of them lie in one block of memory, as in the source's file where it has one that can be read as it is.

use std::collections::HashMap;
use std::sync::Arc;

use spinetail_core::{
    DenseSource, DenseSpec, LayerKind, ModelConfig, Pages, Part, Role, TensorLayout, dense_specs,
    dequantize_row, mtp_prefix, widen,
};
use spinetail_core::{Format, RecordLayout};
use spinetail_model::BackendError;

use crate::kernels::Weights as Operand;
use crate::memory::Region;

/// A stored matrix, by its place among the bytes of all.
pub(crate) struct Matrix {
    layout: TensorLayout,
    bytes: Arc<Region>,
}

impl Matrix {
    /// The matrix as kernels take it.
    pub(crate) fn operand(&self) -> Operand<'_> {
        operand(&self.layout, &self.bytes)
    }

    /// Widens one row to f32.
    pub(crate) fn row(&self, row: usize, out: &mut [f32]) {
        let [weight, scales, biases] = Part::ALL.map(|p| self.layout.slice(&self.bytes, p));
        dequantize_row(&self.layout.spec, weight, scales, biases, row, out);
    }
}

/// The tensor that `layout` describes within `base`, as kernels take it.
pub(crate) fn operand<'a>(layout: &TensorLayout, base: &'a [u8]) -> Operand<'a> {
    Operand::new(&layout.spec, Part::ALL.map(|p| layout.slice(base, p)))
}

pub(crate) struct AttentionWeights {
    pub(crate) q_proj: Matrix,
    pub(crate) k_proj: Matrix,
    pub(crate) v_proj: Matrix,
    pub(crate) q_norm: Vec<f32>,
    pub(crate) k_norm: Vec<f32>,
    pub(crate) o_proj: Matrix,
}

pub(crate) struct DeltaWeights {
    pub(crate) in_proj_qkv: Matrix,
    pub(crate) in_proj_z: Matrix,
    pub(crate) in_proj_b: Matrix,
    pub(crate) in_proj_a: Matrix,
    /// `[conv_kernel, conv_channels]`, the oldest input's first: transposed from checkpoints.
    pub(crate) conv1d: Vec<f32>,
    pub(crate) dt_bias: Vec<f32>,
    pub(crate) a_log: Vec<f32>,
    pub(crate) norm: Vec<f32>,
    pub(crate) out_proj: Matrix,
}

pub(crate) enum Mixer {
    Attention(AttentionWeights),
    Delta(DeltaWeights),
}

pub(crate) struct LayerWeights {
    pub(crate) input_norm: Vec<f32>,
    pub(crate) mixer: Mixer,
    /// Which of the attention or of the DeltaNet layers this is.
    pub(crate) mixer_index: usize,
    pub(crate) post_norm: Vec<f32>,
    pub(crate) router: Matrix,
    pub(crate) shared_gate: Matrix,
    /// gate, up, down
    pub(crate) shared: [Matrix; 3],
    /// Layout of this layer's expert records.
    pub(crate) record: RecordLayout,
}

pub(crate) struct Weights {
    pub(crate) embed: Matrix,
    pub(crate) layers: Vec<LayerWeights>,
    pub(crate) norm: Vec<f32>,
    /// `None` when the embedding is the head.
    pub(crate) lm_head: Option<Matrix>,
}

impl Weights {
    pub(crate) fn head(&self) -> &Matrix {
        self.lm_head.as_ref().unwrap_or(&self.embed)
    }
}

/// What an image is read in whole numbers of.
const IMAGE_ALIGN: u64 = 4096;

/// Reads all tensors, checking each against what the configuration asks for, and hands them out by name.
pub(crate) struct Loader<'s> {
    config: &'s ModelConfig,
    layouts: HashMap<String, TensorLayout>,
    bytes: Arc<Region>,
}

/// Checks that a tensor of the source is the one that was asked for, and gives its layout: in the source's image, or
/// after `end`.
fn place(
    source: &dyn DenseSource,
    asked: &DenseSpec,
    image: bool,
    end: u64,
) -> Result<(TensorLayout, u64), BackendError> {
    let name = &asked.name;
    let wrong =
        |expected: String, found: String| BackendError::Tensor { name: name.clone(), expected, found };
    let found = source.dense_spec(name);
    let spec = found.ok_or_else(|| wrong(format!("shape {:?}", asked.shape), "nothing".into()))?;
    spec.check().map_err(|e| wrong("a supported format".into(), e.to_string()))?;
    if spec.shape != asked.shape {
        return Err(wrong(format!("shape {:?}", asked.shape), format!("shape {:?}", spec.shape)));
    }
    if asked.role == Role::Vector && !matches!(spec.format, Format::Plain(_)) {
        return Err(wrong("plain elements".into(), spec.format.to_string()));
    }
    match source.image_layout(name) {
        Some(layout) if image => {
            let ends = spec.parts().iter().map(|&part| layout.range(part).end as u64);
            Ok((layout.clone(), ends.fold(end, u64::max)))
        }
        _ => Ok(TensorLayout::packed(spec.clone(), end)),
    }
}

impl<'s> Loader<'s> {
    /// Reads the tensors of the decoder. `progress` is told bytes as they are read.
    pub(crate) fn new(
        source: &'s dyn DenseSource,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self, BackendError> {
        let config = source.config();
        let mtp = mtp_prefix(0);
        let mtp = mtp.split('.').next().unwrap_or(&mtp);
        // Prediction heads stay on the drive until something drafts with them.
        let resident = dense_specs(config).into_iter().filter(|s| !s.name.starts_with(mtp));
        let asked: Vec<DenseSpec> = resident.collect();
        let image = asked.iter().all(|s| source.image_layout(&s.name).is_some());
        let (mut end, mut layouts) = (0, HashMap::with_capacity(asked.len()));
        for spec in &asked {
            let (layout, next) = place(source, spec, image, end)?;
            end = next;
            layouts.insert(spec.name.clone(), layout);
        }
        let bytes = end.next_multiple_of(IMAGE_ALIGN);
        let memory = BackendError::Memory { bytes };
        let mut region =
            usize::try_from(bytes).ok().and_then(|b| Region::new(b, Pages::Huge)).ok_or(memory)?;
        if image {
            source.read_image(&mut region, progress)?;
        } else {
            for DenseSpec { name, .. } in &asked {
                let layout = &layouts[name];
                for &part in layout.spec.parts() {
                    let range = layout.range(part);
                    let bytes = range.len() as u64;
                    source.read_dense(name, part, &mut region[range])?;
                    progress(bytes);
                }
            }
        }
        Ok(Self { config, layouts, bytes: Arc::new(region) })
    }

    /// Puts the tensors where they are used; `record` has the layout of each layer's expert records.
    pub(crate) fn load(
        &self,
        record: impl Fn(usize) -> Option<RecordLayout>,
    ) -> Result<Weights, BackendError> {
        let c = self.config;
        let mut layers = Vec::new();
        for (i, &kind) in c.layers.iter().enumerate() {
            let record = record(i).ok_or_else(|| BackendError::Tensor {
                name: format!("layers.{i}.mlp.experts"),
                expected: "expert records".to_owned(),
                found: "none".to_owned(),
            })?;
            let mixer_index = c.layers[..i].iter().filter(|&&k| k == kind).count();
            layers.push(self.layer(&format!("layers.{i}"), kind, mixer_index, record)?);
        }
        Ok(Weights {
            embed: self.matrix("embed_tokens")?,
            layers,
            norm: self.vector("norm")?,
            lm_head: if c.tied_embeddings { None } else { Some(self.matrix("lm_head")?) },
        })
    }

    fn layer(
        &self,
        p: &str,
        kind: LayerKind,
        mixer_index: usize,
        record: RecordLayout,
    ) -> Result<LayerWeights, BackendError> {
        Ok(LayerWeights {
            input_norm: self.vector(&format!("{p}.input_layernorm"))?,
            mixer: match kind {
                LayerKind::Attention => Mixer::Attention(self.attention(&format!("{p}.self_attn"))?),
                LayerKind::Delta => Mixer::Delta(self.delta(&format!("{p}.linear_attn"))?),
            },
            mixer_index,
            post_norm: self.vector(&format!("{p}.post_attention_layernorm"))?,
            router: self.matrix(&format!("{p}.mlp.gate"))?,
            shared_gate: self.matrix(&format!("{p}.mlp.shared_expert_gate"))?,
            shared: [
                self.matrix(&format!("{p}.mlp.shared_expert.gate_proj"))?,
                self.matrix(&format!("{p}.mlp.shared_expert.up_proj"))?,
                self.matrix(&format!("{p}.mlp.shared_expert.down_proj"))?,
            ],
            record,
        })
    }

    fn attention(&self, p: &str) -> Result<AttentionWeights, BackendError> {
        Ok(AttentionWeights {
            q_proj: self.matrix(&format!("{p}.q_proj"))?,
            k_proj: self.matrix(&format!("{p}.k_proj"))?,
            v_proj: self.matrix(&format!("{p}.v_proj"))?,
            q_norm: self.vector(&format!("{p}.q_norm"))?,
            k_norm: self.vector(&format!("{p}.k_norm"))?,
            o_proj: self.matrix(&format!("{p}.o_proj"))?,
        })
    }

    fn delta(&self, p: &str) -> Result<DeltaWeights, BackendError> {
        let kernel = self.config.delta.conv_kernel;
        Ok(DeltaWeights {
            in_proj_qkv: self.matrix(&format!("{p}.in_proj_qkv"))?,
            in_proj_z: self.matrix(&format!("{p}.in_proj_z"))?,
            in_proj_b: self.matrix(&format!("{p}.in_proj_b"))?,
            in_proj_a: self.matrix(&format!("{p}.in_proj_a"))?,
            conv1d: transpose(&self.vector(&format!("{p}.conv1d"))?, kernel),
            dt_bias: self.vector(&format!("{p}.dt_bias"))?,
            a_log: self.vector(&format!("{p}.A_log"))?,
            norm: self.vector(&format!("{p}.norm"))?,
            out_proj: self.matrix(&format!("{p}.out_proj"))?,
        })
    }

    fn matrix(&self, name: &str) -> Result<Matrix, BackendError> {
        let layout = self.layouts.get(name).ok_or_else(|| BackendError::Tensor {
            name: name.to_owned(),
            expected: "a name the model knows".to_owned(),
            found: "an unknown one".to_owned(),
        })?;
        Ok(Matrix { layout: layout.clone(), bytes: Arc::clone(&self.bytes) })
    }

    fn vector(&self, name: &str) -> Result<Vec<f32>, BackendError> {
        let m = self.matrix(name)?;
        let mut out = vec![0.0; m.layout.spec.shape.iter().product()];
        if let Format::Plain(dtype) = m.layout.spec.format {
            widen(dtype, m.layout.slice(&m.bytes, Part::Weight), &mut out);
        }
        if let Some(i) = out.iter().position(|v| !v.is_finite()) {
            return Err(BackendError::Tensor {
                name: name.to_owned(),
                expected: "finite numbers".to_owned(),
                found: format!("{} at element {i}; get the model again", out[i]),
            });
        }
        Ok(out)
    }
}

/// `[n, width]` to `[width, n]`.
fn transpose(x: &[f32], width: usize) -> Vec<f32> {
    (0..width).flat_map(|i| x.iter().skip(i).step_by(width).copied()).collect()
}
