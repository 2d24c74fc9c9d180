//! Tensor names: every naming in use, down to the canonical names of [`spinetail_core::dense_specs`] and to experts.
//!
//! | naming | decoder | experts of a layer |
//! |---|---|---|
//! | Hugging Face `qwen3_next` | `model.` | `mlp.experts.E.gate_proj.weight`; DeltaNet inputs packed (`packed.rs`) |
//! | Hugging Face `qwen3_5_moe` | `model.language_model.` or `model.` | `mlp.experts.gate_up_proj`, or as above |
//! | MLX | `model.` or `language_model.model.` | `mlp.switch_mlp.gate_proj.weight` |
//!
//! Prefixes are stripped, so that every mixture of prefix and form is read. A name that is left over at the end is
//! refused.

mod dense;
mod experts;
mod matrix;
mod packed;

use std::collections::HashMap;

use spinetail_core::{Limits, ModelConfig};

use crate::config::{Quantization, SourceConfig, Tied};
use crate::error::CheckpointError;
use crate::safetensors::SourceTensor;
pub(crate) use dense::Dense;
pub(crate) use experts::ExpertLayer;

type Result<T> = std::result::Result<T, CheckpointError>;

/// Prefixes that say only where the text model hangs; longest first.
const PREFIXES: [&str; 4] = ["model.language_model.", "language_model.model.", "language_model.", "model."];

/// Prefixes of what answers for images, which is not read.
const VISION: [&str; 5] =
    ["model.visual.", "visual.", "vision_tower.", "model.vision_tower.", "language_model.visual."];

/// A tensor's or module's name without its prefix.
pub(crate) fn strip_prefix(name: &str) -> &str {
    PREFIXES.iter().find_map(|p| name.strip_prefix(p)).unwrap_or(name)
}

/// Whether a name belongs to the vision model.
fn is_vision(name: &str) -> bool {
    VISION.iter().any(|p| name.starts_with(p))
}

/// Buffers that old exporters saved and that follow from the configuration.
fn is_derived(name: &str) -> bool {
    name.ends_with(".rotary_emb.inv_freq")
}

/// All tensors by name without prefix, and which of them have been used.
#[derive(Debug)]
pub(crate) struct Names<'a> {
    tensors: HashMap<String, (SourceTensor, bool)>,
    /// The prefix that the decoder has here, for messages.
    prefix: String,
    quantization: &'a Quantization,
}

/// Everything that reading needs.
#[derive(Debug)]
pub(crate) struct Resolved {
    pub(crate) config: ModelConfig,
    pub(crate) dense: HashMap<String, Dense>,
    /// A head that lies beside tied embeddings: it has to be the embedding again.
    pub(crate) tied_head: Option<Dense>,
    /// Decoder layers, then prediction heads; empty if only dense tensors were asked for.
    pub(crate) experts: Vec<ExpertLayer>,
    /// Whether names are MLX's.
    pub(crate) mlx_naming: bool,
}

/// Which tensors the files are expected to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    /// A whole model.
    Whole,
    /// Dense tensors of the decoder; experts lie elsewhere, and a prediction head has none, so it is left out.
    DenseOnly,
}

/// Finds every tensor that the configuration asks for, and refuses every other.
pub(crate) fn resolve(
    source: &SourceConfig,
    tensors: Vec<SourceTensor>,
    content: Content,
) -> Result<Resolved> {
    let mut names = Names::new(tensors, &source.quantization)?;
    names.check_overrides(content)?;
    let mut config = source.model.clone();
    if content == Content::DenseOnly {
        names.drop_mtp();
    }
    config.mtp_layers = usize::from(names.has_mtp());
    config.tied_embeddings = match source.tied {
        Tied::Yes => true,
        Tied::No => false,
        Tied::UnlessHead => !names.tensors.contains_key("lm_head.weight"),
    };
    let dense = dense::resolve(&mut names, &config)?;
    let experts = match content {
        Content::Whole => experts::resolve(&mut names, &config)?,
        Content::DenseOnly => Vec::new(),
    };
    let tied_head = dense::tied_head(&mut names, &config)?;
    let mlx_naming = names.mlx_naming();
    names.finish()?;
    Ok(Resolved { config, dense, tied_head, experts, mlx_naming })
}

impl<'a> Names<'a> {
    fn new(list: Vec<SourceTensor>, quantization: &'a Quantization) -> Result<Self> {
        let mut tensors: HashMap<String, (SourceTensor, bool)> = HashMap::with_capacity(list.len());
        let mut prefix = "model.";
        for tensor in list {
            if is_vision(&tensor.name) || is_derived(&tensor.name) {
                continue;
            }
            let short = strip_prefix(&tensor.name).to_owned();
            if short.starts_with("layers.") {
                let found = &tensor.name[..tensor.name.len() - short.len()];
                prefix = PREFIXES.into_iter().find(|p| *p == found).unwrap_or("");
            }
            if let Some((other, _)) = tensors.get(&short) {
                let (a, b) =
                    (other.name.clone().min(tensor.name.clone()), other.name.clone().max(tensor.name));
                return Err(CheckpointError::tensor(&a, "one spelling of a tensor", format!("also {b}")));
            }
            tensors.insert(short, (tensor, false));
        }
        Ok(Self { tensors, prefix: prefix.to_owned(), quantization })
    }

    fn has(&self, short: &str) -> bool {
        self.tensors.contains_key(short)
    }

    /// Looks without using.
    fn peek(&self, short: &str) -> Option<&SourceTensor> {
        self.tensors.get(short).map(|(t, _)| t)
    }

    /// Finds a tensor and marks it used.
    fn find(&mut self, short: &str) -> Option<SourceTensor> {
        let (tensor, used) = self.tensors.get_mut(short)?;
        *used = true;
        Some(tensor.clone())
    }

    fn need(&mut self, short: &str) -> Result<SourceTensor> {
        self.find(short).ok_or_else(|| self.missing(short))
    }

    /// The error for a tensor that is not there, in the spelling of this checkpoint.
    fn missing(&self, short: &str) -> CheckpointError {
        let prefix = match self.prefix.as_str() {
            "language_model.model." if is_outside(short) => "language_model.",
            _ if is_outside(short) => "",
            p => p,
        };
        let fix = if short.starts_with("mtp.") {
            "the prediction head is incomplete: get all mtp.* tensors, or remove them all"
        } else {
            "get all files of the checkpoint, and the config.json that belongs to them"
        };
        CheckpointError::MissingTensor { name: format!("{prefix}{short}"), fix: fix.to_owned() }
    }

    fn has_mtp(&self) -> bool {
        self.tensors.keys().any(|k| k.starts_with("mtp."))
    }

    fn drop_mtp(&mut self) {
        self.tensors.retain(|k, _| !k.starts_with("mtp."));
    }

    /// Whether the naming is MLX's: stacked experts, or its nesting.
    fn mlx_naming(&self) -> bool {
        self.prefix == "language_model.model." || self.tensors.keys().any(|k| k.contains(".switch_mlp."))
    }

    /// Every override must belong to a tensor, or what it meant to change would be read with the default.
    fn check_overrides(&self, content: Content) -> Result<()> {
        let q = self.quantization;
        for (module, o) in &q.overrides {
            let absent_head = module.starts_with("mtp.") && !self.has_mtp();
            let elsewhere = content == Content::DenseOnly && module.contains(".mlp.switch_mlp.");
            if self.has(&format!("{module}.weight")) || is_vision(&o.key) || absent_head || elsewhere {
                continue;
            }
            return Err(CheckpointError::Tensor {
                name: format!("{}.weight", o.key),
                expected: format!("a tensor, since {} has a setting for it", q.field),
                found: "none".to_owned(),
                fix: format!("correct or remove the key {} in config.json", o.key),
            });
        }
        Ok(())
    }

    /// Refuses what has not been used.
    fn finish(self) -> Result<()> {
        let left = self.tensors.into_values().filter(|(_, used)| !used).map(|(t, _)| t.name);
        match left.min() {
            None => Ok(()),
            Some(name) => Err(CheckpointError::UnknownTensor { name }),
        }
    }
}

/// Names that lie beside the decoder, not in it.
fn is_outside(short: &str) -> bool {
    short.starts_with("lm_head.") || short.starts_with("mtp.")
}

const _: () = assert!(Limits::SHARDS < u32::MAX as usize);
