//! `spinetail doctor`

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::builder::ValueHint;
use serde_json::{Value, json};
use spinetail_engine::drive::{
    DriveId, DriveProbe, DriveProfile, DriveProfiles, RunnerUp, Shortage, probe_drive,
};
use spinetail_engine::machine::{Machine, MachineRates, Rates};
use spinetail_engine::{EngineOptions, inspect};

use super::speed::Basis;

use crate::args::GlobalArgs;
use crate::output::{self, note};
use crate::settings::Settings;
use crate::units::size;
use crate::{dirs, models};

#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    /// Container, or the name of a model, whose drive is measured too; how it is best read is remembered
    #[arg(value_hint = ValueHint::DirPath)]
    model: Option<PathBuf>,
    /// Time to measure the drive, in seconds: a slow one needs more to be sure of
    #[arg(long, value_name = "S", default_value_t = 4.0, value_parser = seconds, allow_negative_numbers = true)]
    seconds: f64,
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
}

/// What was found out about a drive, and where it is kept.
struct Drive {
    model: PathBuf,
    id: DriveId,
    before: Option<DriveProfile>,
    probe: DriveProbe,
    remembered: Option<PathBuf>,
}

pub(crate) fn run(a: &DoctorArgs, globals: &GlobalArgs) -> anyhow::Result<()> {
    let mut settings = Settings::load(globals)?;
    let model = a.model.as_deref().map(|m| models::find(m, &mut settings)).transpose()?;
    settings.print();
    // The drive first: whether it can be measured is known at once.
    let drive = model.map(|m| examine_drive(m, Duration::from_secs_f64(a.seconds))).transpose()?;
    let (machine, rates) = (Machine::look(), MachineRates::measure(None, None, None));
    let mut out = output::out();
    if a.json {
        let object = json!({
            "processor": {
                "cores": machine.processors,
                "isa": rates.isa.name(),
                "isas": machine.isas.iter().map(|isa| isa.name()).collect::<Vec<_>>(),
            },
            "memory": {
                "total_bytes": machine.memory_bytes,
                "available_bytes": machine.available_bytes,
                "limit_bytes": machine.limit_bytes,
                "limit_free_bytes": machine.limit_free_bytes,
            },
            "rates": ([&rates.one, &rates.all].map(rates_json)),
            "rates_buffer_bytes": rates.buffer_bytes,
            "rates_cached": rates.cached,
            "drive": drive.as_ref().map(drive_json),
        });
        writeln!(out, "{object}")?;
    } else {
        print_machine(&mut out, &machine, &rates)?;
        if let Some(drive) = &drive {
            print_drive(&mut out, drive)?;
            let summary = inspect(&drive.model, &EngineOptions::default())?;
            if super::speed::is_large(&summary) {
                let basis = Basis { rates: rates.clone(), drive: Some(drive.probe.chosen), trace: None };
                super::speed::print(&mut out, &summary, &basis)?;
            }
        }
    }
    out.flush()?;
    Ok(())
}

fn seconds(text: &str) -> Result<f64, String> {
    let found = text.parse().ok().filter(|s| (0.1..=600.0).contains(s));
    found.ok_or_else(|| format!("expected 0.1 to 600 seconds, found {text:?}"))
}

/// Measures the drive that the model lies on, and keeps what follows.
fn examine_drive(model: PathBuf, time: Duration) -> anyhow::Result<Drive> {
    let id = DriveId::of(&model)
        .with_context(|| format!("cannot tell the drive of {}; check the path", model.display()))?;
    let profiles = dirs::drives().map(DriveProfiles::new);
    let before = profiles.as_ref().and_then(|p| {
        p.recall(&id).unwrap_or_else(|e| {
            note(&format!("{e}\n"));
            None
        })
    });
    let probe = probe_drive(&model, time)?;
    if probe.small_model && before.is_some() {
        // It was measured before, perhaps with a model that said more.
        return Ok(Drive { model, id, before, probe, remembered: None });
    }
    let remembered = match profiles.map(|p| (p.remember(&id, &probe.chosen), p)) {
        None => {
            note("nothing is remembered: the platform's folders are unknown without HOME\n");
            None
        }
        Some((Ok(file), _)) => Some(file),
        Some((Err(e), p)) => {
            note(&format!("nothing is remembered: cannot write to {}: {e}\n", p.folder().display()));
            None
        }
    };
    Ok(Drive { model, id, before, probe, remembered })
}

fn rates_json(r: &Rates) -> Value {
    json!({
        "threads": r.threads,
        "memory_bytes_per_s": r.memory_bytes_per_s,
        "unpack_memory_bytes_per_s": r.unpack_memory_bytes_per_s,
        "unpack_cache_bytes_per_s": r.unpack_cache_bytes_per_s,
        "integer_ops_per_s": r.integer_ops_per_s,
    })
}

fn profile_json(p: &DriveProfile) -> Value {
    json!({
        "mode": p.mode.name(),
        "pages": p.pages.name(),
        "depth": p.depth,
        "read_bytes_per_s": p.read_bytes_per_s,
        "burst_bytes_per_s": p.burst_bytes_per_s,
    })
}

fn drive_json(d: &Drive) -> Value {
    json!({
        "model": d.model.display().to_string(),
        "id": d.id.id,
        "name": d.id.name,
        "read_bytes": d.probe.read_bytes,
        "burst_records": d.probe.burst_records,
        "direct_refused": d.probe.direct_refused,
        "tried": d.probe.trials.iter().map(profile_json).collect::<Vec<_>>(),
        "chosen": profile_json(&d.probe.chosen),
        "runner_up": d.probe.runner_up.as_ref().map(|r| json!({
            "way": profile_json(&r.way),
            "faster": r.faster.is_finite().then_some(r.faster),
            "again": r.again.filter(|a| a.is_finite()),
        })),
        "before": d.before.as_ref().map(profile_json),
        "file": d.remembered.as_deref().map(|f| f.display().to_string()),
    })
}

fn print_machine(out: &mut impl Write, m: &Machine, rates: &MachineRates) -> std::io::Result<()> {
    let known = |bytes: Option<u64>| bytes.map_or_else(|| "unknown".to_owned(), size);
    let isas: Vec<_> = m.isas.iter().map(|isa| isa.name()).collect();
    writeln!(out, "cores            {}", m.processors)?;
    writeln!(out, "instruction set  {} (of {})", rates.isa.name(), isas.join(", "))?;
    let limit = m.limit_bytes.map_or_else(
        || "no limit".to_owned(),
        |b| format!("limit {}, {} of it free", size(b), known(m.limit_free_bytes)),
    );
    writeln!(
        out,
        "memory           {}, {} available, {limit}",
        known(m.memory_bytes),
        known(m.available_bytes)
    )?;
    let columns = if rates.all.threads == 1 { vec![rates.one] } else { vec![rates.one, rates.all] };
    write!(out, "\n{:40}", "threads")?;
    for r in &columns {
        write!(out, "{:>9}", r.threads)?;
    }
    type Row = (&'static str, fn(&Rates) -> f64, usize);
    let rows: [Row; 4] = [
        ("reading memory, GB/s", |r| r.memory_bytes_per_s, 1),
        ("4-bit weights from memory, GB/s", |r| r.unpack_memory_bytes_per_s, 1),
        ("4-bit weights from cache, GB/s", |r| r.unpack_cache_bytes_per_s, 1),
        ("8-bit multiply and add, GOPS", |r| r.integer_ops_per_s, 0),
    ];
    for (name, value, digits) in rows {
        write!(out, "\n{name:40}")?;
        for r in &columns {
            write!(out, "{:9.digits$}", value(r) / 1e9)?;
        }
    }
    writeln!(out)?;
    if rates.cached {
        writeln!(out, "{}", super::bench::cached(rates))?;
    }
    Ok(())
}

fn print_drive(out: &mut impl Write, d: &Drive) -> std::io::Result<()> {
    let p = &d.probe;
    writeln!(out, "\ndrive            {} ({})", d.id.name, shown(&d.model))?;
    writeln!(out, "reads            of {}, {} at a time in bursts\n", size(p.read_bytes), p.burst_records)?;
    writeln!(out, "{:10}{:8}{:>6}{:>12}{:>14}", "reads", "pages", "depth", "GB/s", "bursts, GB/s")?;
    for t in &p.trials {
        let chosen = (t.mode, t.pages, t.depth) == (p.chosen.mode, p.chosen.pages, p.chosen.depth);
        writeln!(
            out,
            "{:10}{:8}{:6}{:12.2}{:14.2}{}",
            t.mode,
            t.pages,
            t.depth,
            t.read_bytes_per_s / 1e9,
            t.burst_bytes_per_s / 1e9,
            if chosen { "  <- chosen" } else { "" }
        )?;
    }
    if let Some(r) = p.runner_up.as_ref().filter(|_| !p.small_model) {
        writeln!(out, "{}", why_not(r))?;
    }
    if p.direct_refused {
        writeln!(out, "direct reads are refused here")?;
    }
    if let Some((depth, shortage)) = p.most_depth {
        let why = match shortage {
            Shortage::Threads => "the system gives no more threads (`ulimit -u`, or the control group's)",
            _ => "there is no memory for more",
        };
        writeln!(out, "at most {depth} at once: {why}")?;
    }
    if !p.buffered_counts {
        writeln!(out, "buffered reads may have come from memory, and are not chosen")?;
    }
    if p.small_model {
        let kept = if d.before.is_some() { "what is remembered of this drive" } else { "the default" };
        writeln!(out, "this model is too small to choose by: {kept} stays")?;
    }
    if let Some(file) = &d.remembered {
        writeln!(out, "remembered in {}", shown(file))?;
    }
    Ok(())
}

/// Why a way that looks faster was not chosen.
fn why_not(r: &RunnerUp) -> String {
    let by = |ratio: f64| match 100.0 * (ratio - 1.0) {
        percent if percent.is_infinite() => "much faster".to_owned(),
        percent if percent.abs() < 0.5 => "as fast".to_owned(),
        percent if percent < 0.0 => format!("{:.0} % slower", -percent),
        percent => format!("{percent:.0} % faster"),
    };
    let way = format!("{}, {} pages, depth {}", r.way.mode, r.way.pages, r.way.depth);
    let again = r.again.map_or(String::new(), |again| format!(", and {} when measured anew", by(again)));
    format!(
        "{way}: {} in bursts than the default{again}; the default stays unless another is a tenth faster, twice",
        by(r.faster)
    )
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}
