//! What the container will hold: the format of every tensor, decided and checked before anything is written.

use std::collections::HashMap;
use std::path::Path;

use spinetail_container::{Plan, SourceFile, SourceIdentity};
use spinetail_core::{
    Affine, BITS, Format, GROUP_SIZES, ModelConfig, Projection, RecordLayout, Role, TensorSpec, dense_specs,
};

use super::{RepackOptions, Result, Source};
use crate::error::CheckpointError;

/// Bits of routers, shared-expert gates and the prediction head.
const SENSITIVE_BITS: u8 = 8;

/// What happens to matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Keep,
    Quantize { bits: u8, group_size: usize },
}

impl Action {
    fn target(self, source: &TensorSpec, role: Role) -> TensorSpec {
        let format = match (self, source.format, role) {
            (Self::Quantize { bits, group_size }, Format::Plain(dtype), Role::Matrix | Role::Sensitive) => {
                let bits = if role == Role::Sensitive { SENSITIVE_BITS } else { bits };
                Format::Affine(Affine { bits, group_size, scales: dtype })
            }
            (_, format, _) => format,
        };
        TensorSpec { shape: source.shape.clone(), format }
    }
}

/// What a source holds, whatever it is.
pub(crate) struct Outline {
    pub(crate) config: ModelConfig,
    pub(crate) dense: Vec<(String, TensorSpec, Role)>,
    pub(crate) experts: Vec<RecordLayout>,
}

impl Outline {
    /// Gathers what every model has to have.
    pub(crate) fn new<'a>(
        config: &ModelConfig,
        dense_spec: impl Fn(&str) -> Option<&'a TensorSpec>,
        record_layout: impl Fn(u16) -> Option<&'a RecordLayout>,
    ) -> Result<Self> {
        let missing = |what: String| CheckpointError::from(spinetail_core::ReadError::Unknown { what });
        let mut dense = Vec::new();
        for d in dense_specs(config) {
            let spec = dense_spec(&d.name).ok_or_else(|| missing(format!("tensor {}", d.name)))?;
            dense.push((d.name, spec.clone(), d.role));
        }
        let mut experts = Vec::new();
        for layer in 0..config.expert_layers() {
            let layout = record_layout(layer as u16);
            experts.push(layout.ok_or_else(|| missing(format!("records of layer {layer}")))?.clone());
        }
        Ok(Self { config: config.clone(), dense, experts })
    }
}

pub(super) fn plan(model: &dyn Source, folder: &Path, options: RepackOptions) -> Result<Plan> {
    let outline = Outline::new(model.config(), |n| model.dense_spec(n), |l| model.record_layout(l))?;
    plan_of(outline, identity(model, folder), options)
}

/// The plan for what `outline` describes.
pub(crate) fn plan_of(outline: Outline, source: SourceIdentity, options: RepackOptions) -> Result<Plan> {
    let Outline { config, dense, experts } = outline;
    let action = action(main_format(&config, &dense, &experts), options)?;
    let checked = |name: &str, spec: TensorSpec| match spec.check() {
        Ok(()) => Ok(spec),
        Err(e) => {
            let found = format!("shape {:?} as {}: {e}", spec.shape, spec.format);
            Err(CheckpointError::tensor(name, "dimensions that the format allows", found))
        }
    };
    let dense = dense.into_iter().map(|(name, source, role)| {
        let spec = checked(&name, action.target(&source, role))?;
        Ok((name, spec))
    });
    let experts = experts.iter().enumerate().map(|(layer, source)| {
        // The records past the decoder's are the prediction head's.
        let role = if layer < config.layers.len() { Role::Matrix } else { Role::Sensitive };
        let target = |p: Projection| {
            let name = format!("layers.{layer}.mlp.experts.*.{}", p.name());
            checked(&name, action.target(&source.get(p).spec, role))
        };
        Ok(RecordLayout::packed(
            target(Projection::Gate)?,
            target(Projection::Up)?,
            target(Projection::Down)?,
        ))
    });
    Ok(Plan {
        source,
        dense: dense.collect::<Result<_>>()?,
        experts: experts.collect::<Result<_>>()?,
        record_alignment: options.record_alignment,
        config,
    })
}

/// Bytes of all parts and records, without padding.
pub(super) fn payload_bytes(plan: &Plan) -> u64 {
    let dense: u64 = plan.dense.iter().map(|(_, s)| s.bytes() as u64).sum();
    let record: u64 = plan.experts.iter().map(|r| r.bytes).sum();
    dense + record * plan.config.moe.experts as u64
}

/// The affine format of most weights of a source; `None` if nothing is quantized.
fn main_format(
    config: &ModelConfig,
    dense: &[(String, TensorSpec, Role)],
    experts: &[RecordLayout],
) -> Option<(u8, usize)> {
    let mut weights: HashMap<(u8, usize), u64> = HashMap::new();
    let mut add = |spec: &TensorSpec, times: usize| {
        if let Format::Affine(a) = spec.format {
            *weights.entry((a.bits, a.group_size)).or_default() +=
                (spec.rows() * spec.columns() * times) as u64;
        }
    };
    dense.iter().for_each(|(_, spec, _)| add(spec, 1));
    for layout in experts {
        Projection::ALL.iter().for_each(|&p| add(&layout.get(p).spec, config.moe.experts));
    }
    weights.into_iter().max_by_key(|&(format, n)| (n, format)).map(|(format, _)| format)
}

fn action(source: Option<(u8, usize)>, options: RepackOptions) -> Result<Action> {
    let refused = |option, expected: String, found: String, fix| {
        Err(CheckpointError::Option { option, expected, found, fix })
    };
    if let Some(b) = options.bits.filter(|b| *b != 16 && !BITS.contains(b)) {
        return refused("bits", "2, 3, 4, 5, 6, 8 or 16".to_owned(), b.to_string(), "choose one of them");
    }
    if let Some(g) = options.group_size.filter(|g| !GROUP_SIZES.contains(g)) {
        return refused("group size", "32, 64 or 128".to_owned(), g.to_string(), "choose one of them");
    }
    if let Some((bits, group)) = source {
        let fix =
            "leave the option out to keep the source's own bytes, or repack from the unquantized checkpoint";
        let is = |what: String| format!("{what}, as most of the source is: it is quantized already");
        if let Some(b) = options.bits.filter(|b| *b != 16 && *b != bits) {
            return refused("bits", is(bits.to_string()), b.to_string(), fix);
        }
        if let Some(g) = options.group_size.filter(|g| *g != group && options.bits != Some(16)) {
            return refused("group size", is(group.to_string()), g.to_string(), fix);
        }
        return Ok(Action::Keep);
    }
    Ok(match options.bits.unwrap_or(4) {
        16 => Action::Keep,
        bits => Action::Quantize { bits, group_size: options.group_size.unwrap_or(64) },
    })
}

/// Where the weights come from, as far as paths tell: a folder's name, or repository and commit of a download cache.
fn identity(model: &dyn Source, folder: &Path) -> SourceIdentity {
    let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    let name_of = |p: Option<&Path>| {
        p.and_then(Path::file_name).map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
    };
    let (mut name, mut revision) = (name_of(Some(&folder)), None);
    let snapshots = folder.parent().filter(|p| p.ends_with("snapshots"));
    if let Some(repository) = name_of(snapshots.and_then(Path::parent)).strip_prefix("models--") {
        revision = Some(std::mem::replace(&mut name, repository.replacen("--", "/", 1)));
    }
    let file = |(path, bytes)| SourceFile { path, bytes, sha256: None };
    SourceIdentity {
        format: model.format().to_owned(),
        name,
        model_type: model.model_type().to_owned(),
        revision,
        files: model.files().into_iter().map(file).collect(),
    }
}
