//! `cargo xtask synth`: a container of a real model's shape with random weights.
//!
//! For speed and memory, not for meaning. Weights are random 4-bit codes; scales keep activations finite at any depth,
//! and a direction that all tokens share gives every layer's router favourites, as trained models have.

mod presets;
mod routing;
mod tokenizer;
mod weights;

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;
use spinetail_container::{Plan, SourceIdentity, Writer};
use spinetail_core::{Affine, DType, ExpertId, Format, RecordLayout, Role, TensorSpec, dense_specs};

use weights::Weights;

#[derive(Args)]
pub(crate) struct SynthArgs {
    /// qwen3.6-35b, qwen3-next-80b, qwen3.5-397b, or the path of a config.json
    #[arg(long)]
    config: String,
    /// Container to make
    #[arg(long)]
    output: PathBuf,
    /// Only the first N layers
    #[arg(long)]
    layers: Option<usize>,
    /// Write K layer files and make the others hard links to them, in turn. For direct reads only: the page cache would
    /// see one file where the model has many
    #[arg(long)]
    distinct_layers: Option<usize>,
    /// How unequal experts are: most of the popularity of the n-th falls as n^-S; 0 is uniform
    #[arg(long, default_value_t = 1.2)]
    router_skew: f64,
    /// Same seed, same container
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

pub(crate) fn run(a: &SynthArgs) -> anyhow::Result<()> {
    if !(0.0..=4.0).contains(&a.router_skew) {
        bail!("--router-skew {}: expected 0 to 4", a.router_skew);
    }
    let mut config = presets::find(&a.config)?;
    if let Some(n) = a.layers {
        config.layers.truncate(n);
    }
    config.check()?;
    let layers = config.layers.len();
    let distinct = a.distinct_layers.unwrap_or(layers);
    if !(1..=layers).contains(&distinct) {
        bail!("--distinct-layers {distinct}: expected 1 to {layers}");
    }
    let spec = |rows, columns, bits| TensorSpec {
        shape: vec![rows, columns],
        format: Format::Affine(Affine { bits, group_size: 64, scales: DType::Bf16 }),
    };
    let dense = dense_specs(&config).into_iter().map(|d| {
        let spec = match d.role {
            Role::Matrix => spec(d.shape[0], d.shape[1], 4),
            Role::Sensitive => spec(d.shape[0], d.shape[1], 8),
            Role::Vector => TensorSpec::plain(&d.shape, DType::F32),
        };
        (d.name, spec)
    });
    let (h, i) = (config.hidden, config.moe.intermediate);
    let record = RecordLayout::packed(spec(i, h, 4), spec(i, h, 4), spec(h, i, 4));
    let plan = Plan {
        source: SourceIdentity {
            format: "synthetic".to_owned(),
            name: a.config.clone(),
            model_type: config.family.name().to_owned(),
            revision: Some(format!("seed {}, skew {}, {distinct} distinct layers", a.seed, a.router_skew)),
            files: Vec::new(),
        },
        dense: dense.collect(),
        experts: vec![record.clone(); layers],
        record_alignment: 16384,
        config: config.clone(),
    };
    let tensors = plan.dense.clone();
    let mut writer =
        Writer::create_sharing(&a.output, plan, distinct).context("cannot start the container")?;
    let mut weights = Weights::new(&config, a.seed, a.router_skew);
    for (name, spec) in &tensors {
        weights.dense(name, spec, &mut |part, offset, bytes| {
            Ok(writer.write_dense(name, part, offset, bytes)?)
        })?;
    }
    let mut bytes = vec![0; record.bytes as usize];
    for layer in 0..distinct {
        for expert in 0..config.moe.experts {
            weights.record(&record, &mut bytes);
            writer.write_record(ExpertId { layer: layer as u16, expert: expert as u16 }, &bytes)?;
        }
    }
    for (name, text) in tokenizer::files(config.vocab) {
        writer.add_file(name, text.as_bytes())?;
    }
    let summary = writer.finish()?;
    #[allow(clippy::print_stdout)]
    {
        println!(
            "{}: {} bytes, {} of them dense, {distinct} of {layers} layer files distinct",
            summary.path.display(),
            summary.bytes,
            summary.dense_bytes
        );
    }
    Ok(())
}
