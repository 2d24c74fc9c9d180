//! `spinetail replay`

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use clap::builder::ValueHint;
use serde_json::{Value, json};
use spinetail_engine::{EngineOptions, MemoryPlan, ModelSummary, inspect};
use spinetail_store::policy::{DecayedLfu, PolicyKind};
use spinetail_store::replay::{Outcome, ReplayOptions, TraceStats, replay};
use spinetail_store::trace::{Trace, TraceHeader, model_id};

use crate::args::{GlobalArgs, PrecisionArg};
use crate::settings::{CONTEXT, MEMORY, PRECISION, Settings, UsageError};
use crate::units::size;
use crate::{models, output};

/// Some 700,000 tokens of a model with 40 layers.
const MAX_TRACE_BYTES: u64 = 256 << 20;

/// Each is a walk through the whole trace, and a line.
const MAX_RUNS: usize = 1000;

#[derive(Debug, clap::Args)]
pub(crate) struct ReplayArgs {
    /// Trace that --trace recorded
    #[arg(value_hint = ValueHint::FilePath)]
    trace: PathBuf,
    /// Memory the process may use, several after commas; slots are what is left of it
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = MEMORY.parse, conflicts_with = "slots")]
    memory: Vec<u64>,
    /// Memory for slots alone, several after commas [default: 1/32 to 1/2 of all records]
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = MEMORY.parse)]
    slots: Vec<u64>,
    /// Policies, several after commas: lru, lfu, decayed-lfu, clock, s3-fifo, belady (which knows the future), or all
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "all", value_parser = parse_policy)]
    policy: Vec<Policies>,
    /// Tokens after which a use counts half, several after commas, for decayed-lfu
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', default_values_t = [DecayedLfu::HALF_LIFE_TOKENS],
          value_parser = parse_positive, allow_negative_numbers = true)]
    half_life: Vec<f64>,
    /// Reckon --memory with what this model takes besides slots, instead of what was recorded
    #[arg(long, value_name = "MODEL", value_hint = ValueHint::AnyPath, requires = "memory")]
    model: Option<PathBuf>,
    /// Positions of the context to reckon with, with --model [default: 4096]
    #[arg(long, value_name = "N", value_parser = CONTEXT.parse, requires = "model")]
    context: Option<u32>,
    /// Precision to reckon with, with --model [default: fast]
    #[arg(long, value_enum, requires = "model")]
    precision: Option<PrecisionArg>,
    /// Bytes that the drive reads in a second, for the prediction [default: as recorded]
    #[arg(long, value_name = "SIZE", value_parser = MEMORY.parse)]
    read_rate: Option<u64>,
    /// Milliseconds of compute for a token, for the prediction [default: as recorded]
    #[arg(long, value_name = "MS", value_parser = parse_positive, allow_negative_numbers = true)]
    compute_ms: Option<f64>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy)]
enum Policies {
    All,
    One(PolicyKind),
}

fn parse_policy(name: &str) -> Result<Policies, String> {
    match name {
        "all" => Ok(Policies::All),
        name => name.parse().map(Policies::One).map_err(|e| format!("{e}, or all")),
    }
}

fn parse_positive(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|n: &f64| *n > 0.0 && n.is_finite());
    number.ok_or_else(|| format!("expected a number above 0, found {text:?}"))
}

/// Slots of one size, and the budget that leaves them, if one was given.
struct Cache {
    memory_bytes: Option<u64>,
    slots: usize,
    slots_bytes: u64,
}

/// What a token costs, as far as it is known.
struct Costs {
    compute_seconds: Option<f64>,
    read_bytes_per_second: Option<f64>,
    /// Where the rate is from, for people.
    rate_source: &'static str,
}

pub(crate) fn run(a: &ReplayArgs, globals: &GlobalArgs) -> anyhow::Result<()> {
    let trace = read_trace(&a.trace)?;
    let header = trace.header();
    let stats = check_decoded(&a.trace, &trace)?;
    let caches = caches(a, globals, header)?;
    let policies = policies(a);
    let count = caches.len() * policies.len();
    if count > MAX_RUNS {
        return Err(UsageError(format!(
            "that many sizes and policies are {count} replays or more, expected at most {MAX_RUNS}; name fewer of either"
        ))
        .into());
    }
    let runs: Vec<(&Cache, ReplayOptions)> = caches
        .iter()
        .flat_map(|cache| {
            let with =
                |&(policy, half_life_tokens)| ReplayOptions { slots: cache.slots, policy, half_life_tokens };
            policies.iter().map(with).map(move |options| (cache, options))
        })
        .collect();
    let options: Vec<ReplayOptions> = runs.iter().map(|&(_, o)| o).collect();
    let results: Vec<Row<'_>> = runs
        .iter()
        .zip(replay(&trace, &options))
        .map(|(&(cache, options), outcome)| Row { cache, options, outcome })
        .collect();
    let costs = Costs {
        compute_seconds: a.compute_ms.map(|ms| ms / 1e3).or(stats.compute_seconds_per_token),
        read_bytes_per_second: a.read_rate.map(|r| r as f64).or(stats.read_bytes_per_second),
        rate_source: if a.read_rate.is_some() { "" } else { " (bytes by time waited, as recorded)" },
    };
    let mut out = output::out();
    if a.json {
        writeln!(out, "{}", object(header, &stats, &costs, &results))?;
    } else {
        print(&mut out, header, &stats, &costs, &results, policies.len())?;
    }
    out.flush()?;
    Ok(())
}

/// Reads what --trace recorded.
pub(super) fn read_trace(path: &Path) -> anyhow::Result<Trace> {
    let name = path.display();
    let cannot = |e| anyhow!("cannot read {name}: {e}; give the file that --trace recorded");
    let file = std::fs::File::open(path).map_err(cannot)?;
    let mut bytes = Vec::new();
    file.take(MAX_TRACE_BYTES + 1).read_to_end(&mut bytes).map_err(cannot)?;
    if bytes.len() as u64 > MAX_TRACE_BYTES {
        bail!("{name} has more than {}, the most that is replayed; record less", size(MAX_TRACE_BYTES));
    }
    let trace = Trace::parse(&bytes).with_context(|| name.to_string())?;
    if trace.ignored_bytes() > 0 {
        output::note(&format!(
            "note: the last {} bytes of {name} are no whole step and are left out\n",
            trace.ignored_bytes()
        ));
    }
    Ok(trace)
}

fn policies(a: &ReplayArgs) -> Vec<(PolicyKind, f64)> {
    let half_lives = once_each(a.half_life.iter().copied());
    let kinds = a.policy.iter().flat_map(|p| match p {
        Policies::All => PolicyKind::ALL.to_vec(),
        Policies::One(kind) => vec![*kind],
    });
    once_each(kinds)
        .into_iter()
        .flat_map(|kind| {
            let times = if kind == PolicyKind::DecayedLfu { &half_lives[..] } else { &half_lives[..1] };
            times.iter().map(move |&t| (kind, t))
        })
        .collect()
}

/// What is named twice is tried once, where it was named first. Ends when there are more than are tried.
fn once_each<T: PartialEq>(all: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut once = Vec::new();
    for item in all {
        if !once.contains(&item) {
            once.push(item);
        }
        if once.len() > MAX_RUNS {
            break;
        }
    }
    once
}

fn caches(a: &ReplayArgs, globals: &GlobalArgs, header: &TraceHeader) -> anyhow::Result<Vec<Cache>> {
    let records = usize::from(header.layers) * usize::from(header.experts);
    let cache = |memory_bytes, slots_bytes: u64| {
        let slots = usize::try_from(slots_bytes / header.slot_bytes).unwrap_or(usize::MAX).min(records);
        Cache { memory_bytes, slots, slots_bytes }
    };
    let (budgets, slots) = (once_each(a.memory.iter().copied()), once_each(a.slots.iter().copied()));
    if budgets.is_empty() {
        let parts = [32, 16, 8, 4, 2].map(|part| (records as u64 / part).saturating_mul(header.slot_bytes));
        let sizes = if slots.is_empty() { &parts[..] } else { &slots[..] };
        return Ok(sizes.iter().map(|&bytes| cache(None, bytes)).collect());
    }
    let fixed = match &a.model {
        Some(model) => {
            let plan = plan(a, model, globals, header)?;
            let of = |&memory: &u64| Ok(cache(Some(memory), plan.with_budget(memory)?.slots_bytes));
            return budgets.iter().map(of).collect();
        }
        None if header.fixed_bytes == 0 => {
            bail!(
                "this trace does not say what its model takes besides slots; give --model, or --slots instead of --memory"
            )
        }
        None => header.fixed_bytes,
    };
    let of = |&memory: &u64| match memory.checked_sub(fixed) {
        Some(slots) => Ok(cache(Some(memory), slots)),
        None => Err(anyhow!(
            "--memory {} leaves nothing for slots: the model takes {} besides; give more than that",
            size(memory),
            size(fixed)
        )),
    };
    budgets.iter().map(of).collect()
}

/// How the model of `--model` divides its memory.
fn plan(
    a: &ReplayArgs,
    model: &Path,
    globals: &GlobalArgs,
    header: &TraceHeader,
) -> anyhow::Result<MemoryPlan> {
    let mut settings = Settings::load(globals)?;
    let path = models::find(model, &mut settings)?;
    let mut options = EngineOptions::default();
    options.context = settings.pick_or(&CONTEXT, a.context, options.context)?;
    options.precision = settings.pick_or(&PRECISION, a.precision, PrecisionArg::Fast)?.into();
    let summary = inspect(&path, &options)?;
    check_shape(&path, &summary, header)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if header.model_id != 0 && header.model_id != model_id(&name) {
        output::note(&format!("note: the trace was recorded of a model that was not called {name}\n"));
    }
    Ok(summary.plan)
}

/// That a trace has something to go by.
pub(super) fn check_decoded(path: &Path, trace: &Trace) -> anyhow::Result<TraceStats> {
    let stats = TraceStats::new(trace);
    if stats.decode_tokens == 0 {
        bail!(
            "{} has no decoded token, only {} of prompts; record an answer",
            path.display(),
            stats.prefill_tokens
        );
    }
    Ok(stats)
}

/// That a trace was recorded of a model of this shape.
pub(super) fn check_shape(model: &Path, summary: &ModelSummary, header: &TraceHeader) -> anyhow::Result<()> {
    let shape = (summary.config.layers.len(), summary.config.moe.experts, summary.plan.slot_bytes);
    let recorded = (usize::from(header.layers), usize::from(header.experts), header.slot_bytes);
    if shape != recorded {
        bail!(
            "{} has layers, experts and bytes of a slot of {shape:?}, the trace {recorded:?}; give the model that was recorded",
            model.display()
        );
    }
    Ok(())
}

struct Row<'c> {
    cache: &'c Cache,
    options: ReplayOptions,
    outcome: Outcome,
}

impl Row<'_> {
    fn bytes_per_token(&self, header: &TraceHeader) -> f64 {
        self.outcome.steady().reads_per_token() * header.slot_bytes as f64
    }

    /// The policy, with its half-life where several are tried.
    fn name(&self, all: &[Row<'_>]) -> String {
        let (kind, time) = (self.options.policy, self.options.half_life_tokens);
        if all.iter().any(|r| r.options.policy == kind && r.options.half_life_tokens != time) {
            format!("{kind} {time}")
        } else {
            kind.to_string()
        }
    }

    /// Tokens per second if reads and compute take turns, and if the longer hides the other.
    fn prediction(&self, header: &TraceHeader, costs: &Costs) -> Option<(f64, f64)> {
        let compute = costs.compute_seconds?;
        let read = match self.bytes_per_token(header) {
            0.0 => 0.0,
            bytes => bytes / costs.read_bytes_per_second?,
        };
        Some((1.0 / (compute + read), 1.0 / compute.max(read)))
    }
}

fn print(
    out: &mut dyn Write,
    h: &TraceHeader,
    s: &TraceStats,
    costs: &Costs,
    rows: &[Row<'_>],
    per_cache: usize,
) -> std::io::Result<()> {
    writeln!(
        out,
        "trace        {} tokens decoded, {} of prompts; {} layers, {} experts, {} active; one slot is {}",
        s.decode_tokens,
        s.prefill_tokens,
        h.layers,
        h.experts,
        h.top_k,
        size(h.slot_bytes)
    )?;
    writeln!(
        out,
        "routing      {} of {} records used; the most used tenth has {:.1} % of uses; {:.1} % are repeated by the next token",
        s.distinct_records,
        usize::from(h.layers) * usize::from(h.experts),
        100.0 * s.top_tenth_share,
        100.0 * s.repetition
    )?;
    let compute = costs.compute_seconds.map_or("unknown".to_owned(), |s| format!("{:.1} ms", 1e3 * s));
    let rate = costs.read_bytes_per_second.map_or("unknown".to_owned(), |r| format!("{}/s", size(r as u64)));
    writeln!(
        out,
        "prediction   from {compute} of compute a token and reads at {rate}{}, not measured\n",
        costs.rate_source
    )?;
    writeln!(
        out,
        "{:>9} {:>9} {:>6}  {:16} {:>6} {:>11}  predicted tok/s",
        "memory", "slots", "number", "policy", "hits", "read/token"
    )?;
    for (i, row) in rows.iter().enumerate() {
        let cache = row.cache;
        if i > 0 && i % per_cache == 0 {
            writeln!(out)?;
        }
        let prediction =
            row.prediction(h, costs).map_or("-".to_owned(), |(a, b)| format!("{a:.2} to {b:.2}"));
        writeln!(
            out,
            "{:>9} {:>9} {:>6}  {:16} {:>4.1} % {:>11}  {prediction}",
            cache.memory_bytes.map_or("-".to_owned(), size),
            size(cache.slots_bytes),
            cache.slots,
            row.name(rows),
            100.0 * row.outcome.steady().hit_rate(),
            size(row.bytes_per_token(h) as u64)
        )?;
    }
    let cold = rows.iter().filter(|r| r.outcome.warm.tokens == 0).count();
    let note = match cold {
        0 => "",
        _ => " (of all tokens where it never became full)",
    };
    writeln!(
        out,
        "\nhits are those of decoded tokens once the cache is full{note}; predictions: reads and compute in turns, to\nthe longer hiding the other"
    )
}

fn object(h: &TraceHeader, s: &TraceStats, costs: &Costs, rows: &[Row<'_>]) -> Value {
    let row = |row: &Row<'_>| {
        let (o, steady) = (&row.outcome, row.outcome.steady());
        let prediction = row.prediction(h, costs);
        json!({
            "memory_bytes": row.cache.memory_bytes,
            "slots_bytes": row.cache.slots_bytes,
            "slots": row.cache.slots,
            "policy": row.options.policy.name(),
            "half_life_tokens": (row.options.policy == PolicyKind::DecayedLfu).then_some(row.options.half_life_tokens),
            "hit_rate": steady.hit_rate(),
            "tokens_counted": steady.tokens,
            "hit_rate_from_start": o.decode.hit_rate(),
            "prefill_hit_rate": o.prefill.hit_rate(),
            "read_bytes_per_token": row.bytes_per_token(h),
            "predicted_tokens_per_second_in_turns": prediction.map(|p| p.0),
            "predicted_tokens_per_second_overlapped": prediction.map(|p| p.1),
        })
    };
    json!({
        "layers": h.layers,
        "experts": h.experts,
        "top_k": h.top_k,
        "slot_bytes": h.slot_bytes,
        "decode_tokens": s.decode_tokens,
        "prefill_tokens": s.prefill_tokens,
        "distinct_records": s.distinct_records,
        "top_tenth_share": s.top_tenth_share,
        "repetition": s.repetition,
        "compute_seconds_per_token": costs.compute_seconds,
        "read_bytes_per_second": costs.read_bytes_per_second,
        "results": rows.iter().map(row).collect::<Vec<_>>(),
    })
}
