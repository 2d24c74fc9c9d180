//! `spinetail bench`

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::builder::ValueHint;
use spinetail_engine::machine::MachineRates;
use spinetail_engine::{BenchOptions, Engine, EngineError, EngineOptions, Measured, inspect};

use crate::args::{EngineArgs, GlobalArgs};
use crate::models;
use crate::output::{self, Bar, peak_rss_bytes};
use crate::settings::{EngineSettings, Settings, UsageError};
use crate::units::size;

#[derive(Debug, clap::Args)]
pub(crate) struct BenchArgs {
    /// Container or checkpoint folder, or the name of a model
    #[arg(default_value = "pip", value_hint = ValueHint::AnyPath)]
    model: PathBuf,
    /// Positions of random keys, values and state before the decoded tokens; several, with commas, are measured in turn
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "0", value_parser = positions(0))]
    context_fill: Vec<u32>,
    /// Tokens decoded in each run; 0 measures no decoding
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = positions(0))]
    decode: u32,
    /// Lengths of prompts to read; several, with commas, are measured in turn
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = positions(1))]
    prefill: Vec<u32>,
    /// Runs of each kind
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// Tokens decoded before the first run, to fill the cache
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = positions(0))]
    warmup: u32,
    /// Read as many experts into memory as the budget holds before measuring
    #[arg(long)]
    preload: bool,
    /// Chooses the tokens
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    engine: EngineArgs,
}

/// More positions than any model has.
const MAX_POSITIONS: i64 = 1 << 24;

fn positions(least: i64) -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(least..=MAX_POSITIONS)
}

pub(crate) fn run(a: &BenchArgs, globals: &GlobalArgs) -> anyhow::Result<()> {
    let mut settings = Settings::load(globals)?;
    let mut asked = EngineSettings::resolve(&a.engine, &mut settings)?;
    if a.engine.context.is_none() {
        asked.options.context = needed_context(a);
        asked.context_may_shrink = false;
    }
    // Random tokens are no lesson, and what was learned is not to be measured.
    asked.options.experts.state_dir = None;
    let path = models::find(&a.model, &mut settings)?;
    check_context(a, &path, &asked.options)?;
    // Before the model is there: it takes memory, and the peak is to be the model's.
    let machine = MachineRates::measure(asked.options.threads, asked.options.isa, asked.options.memory_bytes);
    output::forget_peak_rss();
    let engine = super::open(&path, &asked, &mut settings)?;
    settings.print();
    if a.preload {
        let bar = Bar::records("reading experts");
        engine.preload(&mut |done, total| bar.set(done, total))?;
    }
    let options = BenchOptions {
        decode_tokens: a.decode as usize,
        warmup_tokens: a.warmup as usize,
        runs: a.runs as usize,
        seed: a.seed,
    };
    let mut prefills = Vec::new();
    for &tokens in &a.prefill {
        let bar = Bar::tokens("reading prompts");
        let progress = &mut |p: spinetail_engine::Progress| bar.set(p.done as u64, p.total as u64);
        prefills.push(engine.measure_prefill(tokens as usize, &options, progress)?);
    }
    let mut decodes = Vec::new();
    for &context in a.context_fill.iter().filter(|_| a.decode > 0) {
        let bar = Bar::tokens("decoding");
        let progress = &mut |p: spinetail_engine::Progress| bar.set(p.done as u64, p.total as u64);
        decodes.push(engine.measure_decode(context, &options, progress)?);
    }
    let mut out = output::out();
    if a.json {
        writeln!(out, "{}", object(&path, &engine, &machine, &prefills, &decodes))?;
    } else {
        print(&mut out, &engine, &machine, &prefills, &decodes)?;
    }
    out.flush()?;
    Ok(())
}

/// The context that the longest of what is asked for needs.
fn needed_context(a: &BenchArgs) -> u32 {
    let fill = a.context_fill.iter().max().copied().unwrap_or(0);
    let decode = fill + a.decode.max(a.warmup) + 2;
    a.prefill.iter().max().copied().unwrap_or(0).max(decode)
}

/// Sees that what is to be measured fits, in the model and in `--context`, before anything is.
fn check_context(a: &BenchArgs, path: &Path, options: &EngineOptions) -> anyhow::Result<()> {
    if a.decode == 0 && a.prefill.is_empty() {
        return Err(UsageError(
            "nothing is to be measured; give --prefill, or leave --decode 0 out".to_owned(),
        )
        .into());
    }
    let (needed, most) = (needed_context(a), options.context);
    if needed > most {
        let what = "--prefill, and --context-fill with --decode or --warmup and two more";
        return Err(UsageError(format!(
            "{what} need a context of {needed}, --context is {most}; raise it, or measure less"
        ))
        .into());
    }
    match inspect(path, &EngineOptions { context: needed, memory_bytes: Some(u64::MAX), ..options.clone() }) {
        Err(EngineError::Context { max, .. }) => Err(UsageError(format!(
            "{needed} positions are to be measured, and the model was made for {max}; lower --prefill, --context-fill, \
             --decode or --warmup"
        ))
        .into()),
        _ => Ok(()),
    }
}

fn print(
    out: &mut dyn Write,
    engine: &Engine,
    machine: &MachineRates,
    prefills: &[Measured],
    decodes: &[Measured],
) -> std::io::Result<()> {
    let r = &machine.all;
    writeln!(
        out,
        "machine   {} threads, {}: memory {:.1} GB/s, 4-bit unpack-and-dot {:.1} GB/s, integer dot {:.0} GOPS",
        r.threads,
        engine.isa(),
        r.memory_bytes_per_s / 1e9,
        r.unpack_memory_bytes_per_s / 1e9,
        r.integer_ops_per_s / 1e9
    )?;
    if machine.cached {
        writeln!(out, "          {}", cached(machine))?;
    }
    let plan = engine.plan();
    writeln!(
        out,
        "memory    {} planned, {} of experts of {}; peak {}",
        size(plan.total_bytes()),
        size(plan.slots_bytes),
        size(plan.records_bytes),
        peak_rss_bytes().map_or_else(|| "unknown".to_owned(), size)
    )?;
    writeln!(out, "          {}", output::page_cache(engine))?;
    for m in prefills {
        writeln!(
            out,
            "prefill   {:>6} tokens     {:8.2} tok/s ({})  hits {:.1} %, {} read per token",
            m.tokens,
            m.median_rate(),
            spread(m),
            100.0 * m.hit_rate(),
            size(m.bytes_read_per_token() as u64),
        )?;
    }
    for m in decodes {
        let b = m.token_bytes;
        let rate = m.median_rate();
        writeln!(
            out,
            "decode    after {:>6}      {:8.2} tok/s ({})  hits {:.1} %, {} read per token",
            m.context,
            rate,
            spread(m),
            100.0 * m.hit_rate(),
            size(m.bytes_read_per_token() as u64),
        )?;
        writeln!(
            out,
            "          {:.3} GB per token (dense {:.3}, experts {:.3}, state {:.3}, kv {:.3}): {:.0} % of the memory's speed, \
             weights {:.0} % of unpack-and-dot",
            b.total() as f64 / 1e9,
            b.dense as f64 / 1e9,
            b.experts as f64 / 1e9,
            b.state as f64 / 1e9,
            b.kv as f64 / 1e9,
            100.0 * rate * b.total() as f64 / r.memory_bytes_per_s,
            100.0 * rate * b.weights() as f64 / r.unpack_memory_bytes_per_s,
        )?;
    }
    Ok(())
}

/// Why rates of memory may be none.
pub(super) fn cached(machine: &MachineRates) -> String {
    format!(
        "measured in {}, which a cache may hold: rates of memory may be the cache's; more memory for it shows memory's",
        size(machine.buffer_bytes)
    )
}

/// The rates from the lowest to the highest.
fn spread(m: &Measured) -> String {
    let rates = m.rates();
    let low = rates.iter().copied().fold(f64::INFINITY, f64::min);
    let high = rates.iter().copied().fold(0.0, f64::max);
    format!("{low:.2}–{high:.2}")
}

fn object(
    path: &Path,
    engine: &Engine,
    machine: &MachineRates,
    prefills: &[Measured],
    decodes: &[Measured],
) -> serde_json::Value {
    let r = &machine.all;
    let plan = engine.plan();
    let row = |m: &Measured| {
        let b = m.token_bytes;
        serde_json::json!({
            "context": m.context,
            "tokens": m.tokens,
            "seconds": m.seconds,
            "tokens_per_second": m.median_rate(),
            "dense_bytes_per_token": b.dense,
            "expert_bytes_per_token": b.experts,
            "state_bytes_per_token": b.state,
            "kv_bytes_per_token": b.kv,
            "expert_hits": m.store.hits,
            "expert_late": m.store.late,
            "expert_misses": m.store.misses,
            "expert_bytes_read": m.store.bytes_read,
            "expert_bytes_wasted": m.store.wasted_bytes,
            "read_wait_ns": m.store.read_wait_ns,
            "reading_ns": m.store.reading_ns,
            "read_retries": m.store.retries,
            "read_failures": m.store.failures,
        })
    };
    serde_json::json!({
        "model": path.display().to_string(),
        "threads": r.threads,
        "isa": engine.isa().to_string(),
        "memory_bytes_per_second": r.memory_bytes_per_s,
        "unpack_memory_bytes_per_second": r.unpack_memory_bytes_per_s,
        "integer_ops_per_second": r.integer_ops_per_s,
        "rates_buffer_bytes": machine.buffer_bytes,
        "rates_cached": machine.cached,
        "budget_bytes": plan.total_bytes(),
        "slots_bytes": plan.slots_bytes,
        "records_bytes": plan.records_bytes,
        "peak_rss_bytes": peak_rss_bytes(),
        "page_cache_bytes": engine.page_cache_bytes(),
        "prefill": prefills.iter().map(row).collect::<Vec<_>>(),
        "decode": decodes.iter().map(row).collect::<Vec<_>>(),
    })
}
