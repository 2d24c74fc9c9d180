//! The table of estimated speeds that `inspect` and `doctor` print. Must not measure: rates come from whoever did.

use std::io::{self, Write};

use spinetail_engine::drive::DriveProfile;
use spinetail_engine::machine::MachineRates;
use spinetail_engine::{Estimate, MachineSpeed, MemoryPlan, ModelSummary, Routing};
use spinetail_store::policy::{DecayedLfu, PolicyKind};
use spinetail_store::replay::{ReplayOptions, replay};
use spinetail_store::trace::Trace;

use crate::units::size;

/// Of a model that is not larger nothing is said: its weights lie in the processor's caches.
const MIN_MODEL_BYTES: u64 = 256 << 20;

/// Whether there is anything to say of the model.
pub(super) fn is_large(s: &ModelSummary) -> bool {
    s.plan.dense_bytes + s.plan.records_bytes >= MIN_MODEL_BYTES
}

/// What the estimates are made from.
pub(super) struct Basis<'t> {
    pub(super) rates: MachineRates,
    pub(super) drive: Option<DriveProfile>,
    pub(super) trace: Option<&'t Trace>,
}

/// Estimates for the budget of the summary's plan and for others around it.
pub(super) fn print(out: &mut dyn Write, s: &ModelSummary, basis: &Basis<'_>) -> io::Result<()> {
    let r = &basis.rates.all;
    let drive = basis.drive.filter(|d| d.read_bytes_per_s > 0.0);
    let known = drive
        .map_or("not measured".to_owned(), |d| format!("{:.2} GB/s in bursts", d.burst_bytes_per_s / 1e9));
    writeln!(
        out,
        "\nestimated speed, not measured: {} threads, 4-bit weights at {:.1} GB/s, drive {known}",
        r.threads,
        r.unpack_memory_bytes_per_s / 1e9
    )?;
    writeln!(
        out,
        "  {:>9} {:>7} {:>11} {:>9} {:>11} {:>13}",
        "memory", "hits", "read/token", "tokens/s", "overlapped", "long prompt/s"
    )?;
    let machine = MachineSpeed { one: basis.rates.one, all: *r, drive: drive.unwrap_or_default() };
    let plans: Vec<_> = budgets(&s.plan).into_iter().filter_map(|b| s.plan.with_budget(b).ok()).collect();
    for (plan, routing) in plans.iter().zip(routings(&plans, basis.trace)) {
        let e = Estimate::new(s, plan, &machine, routing);
        let rate = |rate: Option<f64>| rate.map_or("-".to_owned(), |r| format!("{r:.1}"));
        writeln!(
            out,
            "  {:>9} {:>5.0} % {:>11} {:>9} {:>11} {:>13}{}",
            size(plan.total_bytes()),
            100.0 * e.hit_rate,
            size(e.read_bytes_per_token as u64),
            rate(e.in_turns()),
            rate(e.overlapped()),
            rate(e.prompt_tokens_per_s),
            if plan.total_bytes() == s.plan.total_bytes() { "  <- the budget" } else { "" }
        )?;
    }
    notes(out, s, basis, drive)
}

fn notes(
    out: &mut dyn Write,
    s: &ModelSummary,
    basis: &Basis<'_>,
    drive: Option<DriveProfile>,
) -> io::Result<()> {
    let hits = match basis.trace {
        Some(_) => {
            "hits are those that the trace would have had, and say little of sizes that it is too short to fill"
        }
        None => "hits are typical of published traces; `inspect --trace` takes one of yours",
    };
    writeln!(out, "  {hits}")?;
    writeln!(
        out,
        "  tokens/s: after a short prompt, reads and compute taking turns; overlapped: the longer hiding the other. Off by\n  \
         a fifth or so, by more where routing differs or the machine is busy (docs/benchmarks.md)"
    )?;
    let missing = s.plan.records_bytes.saturating_sub(s.plan.slots_bytes);
    match drive {
        None => writeln!(out, "  measure the drive with `spinetail doctor MODEL`"),
        Some(_) if missing == 0 => Ok(()),
        Some(d) => writeln!(
            out,
            "  with {} of memory, a prompt of some dozens of tokens reads up to {} of experts first: {:.0} s",
            size(s.plan.total_bytes()),
            size(missing),
            missing as f64 / d.read_bytes_per_s
        ),
    }
}

/// The budget of the plan, some whole gigabytes, and all that helps.
fn budgets(plan: &MemoryPlan) -> Vec<u64> {
    let all = plan.useful_bytes();
    let steps = (0..8).flat_map(|n| [2u64 << (29 + n), 3 << (29 + n)]);
    let between = steps.filter(|&b| b >= plan.minimum_bytes() && b < all);
    let mut budgets: Vec<u64> = between.chain([plan.total_bytes().min(all), all]).collect();
    budgets.sort_unstable();
    budgets.dedup();
    budgets
}

fn routings(plans: &[MemoryPlan], trace: Option<&Trace>) -> Vec<Routing> {
    let Some(trace) = trace else { return vec![Routing::Typical; plans.len()] };
    let caches: Vec<_> = plans
        .iter()
        .map(|p| ReplayOptions {
            slots: (p.slots_bytes / p.slot_bytes) as usize,
            policy: PolicyKind::DecayedLfu,
            half_life_tokens: DecayedLfu::HALF_LIFE_TOKENS,
        })
        .collect();
    // Of a size that the trace does not fill, all first uses are misses. More memory never has fewer hits.
    let mut most: f64 = 0.0;
    let hits = replay(trace, &caches).into_iter().map(|o| {
        most = most.max(o.steady().hit_rate());
        Routing::Hits(most)
    });
    hits.collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use spinetail_engine::{EngineOptions, inspect};

    use super::*;

    fn table(drive: Option<DriveProfile>) -> String {
        let pip = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/pip.qpack");
        let options =
            EngineOptions { context: 512, memory_bytes: Some(40 << 20), ..EngineOptions::default() };
        let summary = inspect(&pip, &options).unwrap();
        assert!(!is_large(&summary));
        let rates = MachineRates::measure(Some(1), None, Some(64 << 20));
        let mut out = Vec::new();
        print(&mut out, &summary, &Basis { rates, drive, trace: None }).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_table_has_the_budget_and_everything() {
        let drive = DriveProfile { read_bytes_per_s: 2e9, burst_bytes_per_s: 1e9, ..DriveProfile::default() };
        let text = table(Some(drive));
        assert!(text.contains("drive 1.00 GB/s in bursts") && text.contains("\n   40.0 MiB "), "{text}");
        let budget = text.lines().find(|l| l.contains("<- the budget")).expect("a mark");
        assert!(budget.contains("40.0 MiB") && text.contains("of experts first: "), "{text}");
        let last = text.lines().find(|l| l.contains("100 %")).expect("all in memory");
        assert!(last.contains(" 0 B ") && !last.contains(" - "), "{text}");
    }

    #[test]
    fn a_drive_that_was_not_measured_has_no_speed() {
        let text = table(None);
        assert!(text.contains("drive not measured") && text.contains("spinetail doctor MODEL"), "{text}");
        let budget = text.lines().find(|l| l.contains("40.0 MiB")).expect("the budget");
        assert!(budget.matches(" - ").count() == 3, "{text}");
    }
}
