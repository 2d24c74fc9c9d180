//! `spinetail inspect`

use std::io::Write;
use std::path::PathBuf;

use clap::builder::ValueHint;
use spinetail_core::LayerKind;
use spinetail_engine::drive::{DriveId, DriveProfiles};
use spinetail_engine::machine::MachineRates;
use spinetail_engine::{EngineOptions, ModelSummary, inspect};

use super::speed::Basis;

use crate::args::{GlobalArgs, PrecisionArg};
use crate::settings::{CONTEXT, MEMORY, PRECISION, READERS, Settings, THREADS};
use crate::units::{least_size, size};
use crate::{dirs, models, output};

#[derive(Debug, clap::Args)]
pub(crate) struct InspectArgs {
    /// Container or checkpoint folder, or the name of a model
    #[arg(default_value = "pip", value_hint = ValueHint::AnyPath)]
    model: PathBuf,
    /// Positions of the context to reckon with [default: 4096]
    #[arg(long, value_name = "N", value_parser = CONTEXT.parse, allow_negative_numbers = true)]
    context: Option<u32>,
    /// Precision to reckon with, which decides how large keys and values are [default: fast]
    #[arg(long, value_enum)]
    precision: Option<PrecisionArg>,
    /// Memory the process may use, such as 2.6GiB
    #[arg(long, value_name = "SIZE", value_parser = MEMORY.parse, allow_negative_numbers = true)]
    memory: Option<u64>,
    /// Estimate hits from a trace of this model that --trace recorded, instead of from published ones
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    trace: Option<PathBuf>,
    /// Compute threads to reckon with [default: one per processor]
    #[arg(long, value_name = "N", value_parser = THREADS.parse)]
    threads: Option<usize>,
    /// Reads on their way at once to reckon with [default: one per processor, 2 to 8]
    #[arg(long, value_name = "N", value_parser = READERS.parse)]
    readers: Option<usize>,
}

pub(crate) fn run(a: &InspectArgs, globals: &GlobalArgs) -> anyhow::Result<()> {
    let mut settings = Settings::load(globals)?;
    let mut options = EngineOptions::default();
    options.context = settings.pick_or(&CONTEXT, a.context, options.context)?;
    options.precision = settings.pick_or(&PRECISION, a.precision, PrecisionArg::Fast)?.into();
    options.memory_bytes = settings.pick(&MEMORY, a.memory)?;
    options.threads = settings.pick(&THREADS, a.threads)?;
    options.experts.readers = settings.pick_or(&READERS, a.readers, options.experts.readers)?;
    let path = models::find(&a.model, &mut settings)?;
    settings.print();
    let summary = inspect(&path, &options)?;
    let trace = a.trace.as_deref().map(super::replay::read_trace).transpose()?;
    if let Some(trace) = &trace {
        super::replay::check_shape(&path, &summary, trace.header())?;
        super::replay::check_decoded(a.trace.as_deref().unwrap_or(&path), trace)?;
    }
    let mut out = output::out();
    writeln!(out, "model        {}", path.display())?;
    print(&mut out, &summary, options.context)?;
    // What takes no time is shown before what does.
    out.flush()?;
    if !super::speed::is_large(&summary) {
        writeln!(out, "\nno estimate of its speed: it is so small that processors keep it in their caches")?;
        return Ok(out.flush()?);
    }
    let drive = dirs::drives().and_then(|folder| {
        DriveProfiles::new(folder).recall(&DriveId::of(&path).ok()?).unwrap_or_else(|e| {
            output::note(&format!("{e}\n"));
            None
        })
    });
    let rates = MachineRates::measure(options.threads, None, options.memory_bytes);
    super::speed::print(&mut out, &summary, &Basis { rates, drive, trace: trace.as_ref() })?;
    out.flush()?;
    Ok(())
}

fn print(out: &mut dyn Write, s: &ModelSummary, context: u32) -> std::io::Result<()> {
    let (c, a, d, m, p) = (&s.config, &s.config.attention, &s.config.delta, &s.config.moe, &s.plan);
    writeln!(out, "family       {}", c.family.name())?;
    writeln!(out, "parameters   {}, {} active per token", count(s.parameters), count(s.active_parameters))?;
    let (delta, attention) = (c.count(LayerKind::Delta), c.count(LayerKind::Attention));
    writeln!(
        out,
        "layers       {} ({delta} DeltaNet, {attention} attention), hidden {}",
        c.layers.len(),
        c.hidden
    )?;
    writeln!(
        out,
        "experts      {} per layer, {} active, one shared; width {}",
        m.experts, m.top_k, m.intermediate
    )?;
    writeln!(
        out,
        "attention    {} query and {} key/value heads of {}, {} of them rotated",
        a.heads, a.kv_heads, a.head_dim, a.rotary_dims
    )?;
    writeln!(
        out,
        "DeltaNet     {} key heads of {}, {} value heads of {}",
        d.key_heads, d.key_dim, d.value_heads, d.value_dim
    )?;
    let tied = if c.tied_embeddings { "tied" } else { "not tied" };
    writeln!(out, "vocabulary   {} ({tied}), made for {} positions", c.vocab, c.max_positions)?;
    let heads = if c.mtp_layers > 0 { "kept, not used yet" } else { "none" };
    writeln!(out, "prediction   {heads}")?;
    for (format, bytes) in &s.dense_formats {
        writeln!(out, "dense        {format}: {}", size(*bytes))?;
    }
    for (format, layers) in &s.expert_formats {
        writeln!(out, "experts      {format}: {layers} layers")?;
    }
    writeln!(
        out,
        "\none token touches {} of dense weights and {} of experts; one expert takes {} of memory, all take {}",
        size(s.dense_bytes_per_token),
        size(s.expert_bytes_per_token),
        size(s.record_bytes),
        size(s.experts_bytes)
    )?;
    writeln!(out, "\nmemory at a context of {context}")?;
    let rows = [
        ("dense weights", p.dense_bytes),
        ("KV cache", p.kv_bytes),
        ("states", p.state_bytes),
        ("scratch", p.scratch_bytes),
        ("process", p.process_bytes),
        ("expert slots", p.slots_bytes),
        ("together", p.total_bytes()),
    ];
    for (name, bytes) in rows {
        writeln!(out, "  {name:14} {:>9}", size(bytes))?;
    }
    if p.prompt_bytes > 0 {
        writeln!(
            out,
            "  a prompt is read in chunks of {} tokens; for that time up to {} are lent to it, {} of them by expert slots",
            p.chunk_rows,
            size(p.prompt_bytes),
            size(p.lent_bytes(p.chunk_rows))
        )?;
    }
    writeln!(
        out,
        "  at least {}; every expert in memory takes {}",
        least_size(p.minimum_bytes()),
        least_size(p.useful_bytes())
    )
}

/// A count for people: three significant digits.
fn count(n: u64) -> String {
    let n = n as f64;
    if n >= 1e9 { format!("{:.1} G", n / 1e9) } else { format!("{:.1} M", n / 1e6) }
}
