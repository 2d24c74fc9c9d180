//! What speed to expect of a model on a machine, before it has been loaded: from the bytes and operations of a token, rates
//! of the machine, and how often an expert is in memory.
//!
//! Estimates, and to be called so: they were held against the figures in docs/benchmarks.md. Must not measure anything, and
//! nothing may be decided by them.

use crate::drive::DriveProfile;
use crate::inspect::ModelSummary;
use crate::machine::Rates;
use crate::memory::MemoryPlan;

/// What a layer of a decoded token takes beside its bytes: forks and joins, norms, routing, the state's bookkeeping. It was
/// 0.15 to 0.4 ms on two processors with 1 to 16 threads.
const LAYER_SECONDS: f64 = 0.33e-3;

/// Of the rate of integer products, what the threads together get out of a long prompt: the rest goes into scales, unpacking,
/// attention, the recurrence and what is computed in f32.
const PROMPT_SHARE: f64 = 0.47;

/// Bytes that one thread alone moves for each token of a prompt, layer and element of the residual stream.
const PROMPT_ALONE_BYTES: f64 = 430.0;

/// Share of uses that find their expert in slots for a share `s` of all: `s^0.31`. Traces of models with 256 experts gave
/// 43 % for a share of 0.06 and 70 % for 0.33 with decayed LFU.
const TYPICAL_EXPONENT: f64 = 0.31;

/// How a model chooses its experts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Routing {
    /// Each as often as any other: the worst there is for a cache.
    Even,
    /// Some more often than others, as in published traces.
    Typical,
    /// Share of uses that a recorded trace would find in memory.
    Hits(f64),
}

impl Routing {
    /// Share of uses that find their expert in memory, once slots for `share` of all are full.
    pub fn hit_rate(self, share: f64) -> f64 {
        let share = share.clamp(0.0, 1.0);
        match self {
            Self::Even => share,
            Self::Typical => share.powf(TYPICAL_EXPONENT),
            Self::Hits(rate) => rate.clamp(0.0, 1.0),
        }
    }
}

/// What a machine can do, as far as it was measured.
#[derive(Debug, Clone, Copy)]
pub struct MachineSpeed {
    /// Rates of one thread.
    pub one: Rates,
    /// Rates of all threads that compute.
    pub all: Rates,
    /// How the model's drive is read; without rates nothing is said of budgets that need it.
    pub drive: DriveProfile,
}

/// What to expect of a budget.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Estimate {
    /// Share of uses that find their expert in memory.
    pub hit_rate: f64,
    /// Bytes of experts that are read for a decoded token.
    pub read_bytes_per_token: f64,
    /// Seconds of compute of a decoded token after a short prompt.
    pub compute_seconds: f64,
    /// Seconds that its reads take; `None` where they are needed and the drive was not measured.
    pub read_seconds: Option<f64>,
    /// Tokens of a prompt per second, of one as long as a chunk; `None` as above.
    pub prompt_tokens_per_s: Option<f64>,
}

impl Estimate {
    /// For the model of `summary` with memory as in `plan`.
    pub fn new(summary: &ModelSummary, plan: &MemoryPlan, machine: &MachineSpeed, routing: Routing) -> Self {
        let (r, c) = (&machine.all, &summary.config);
        let (layers, k, record) = (c.layers.len() as f64, plan.top_k as f64, plan.slot_bytes as f64);
        let share = plan.slots_bytes as f64 / plan.records_bytes.max(1) as f64;
        let hit_rate = if share >= 1.0 { 1.0 } else { routing.hit_rate(share) };
        let misses = layers * k * (1.0 - hit_rate);
        let weights = (summary.dense_bytes_per_token + summary.expert_bytes_per_token) as f64;
        // Read and written.
        let state = 2.0 * 4.0 * c.state_elements() as f64;
        let read_seconds = if misses == 0.0 {
            Some(0.0)
        } else {
            // In every layer that misses anything, the first record takes longer than one among many.
            let pauses = layers * (1.0 - hit_rate.powf(k));
            machine.reading(record, k).map(|(each, first)| misses * each + pauses * first)
        };
        Self {
            hit_rate,
            read_bytes_per_token: misses * record,
            compute_seconds: weights / r.unpack_memory_bytes_per_s
                + state / r.memory_bytes_per_s
                + layers * LAYER_SECONDS,
            read_seconds,
            prompt_tokens_per_s: prompt_rate(summary, plan, machine),
        }
    }

    /// Tokens per second if reads and compute take turns: what is to be expected of even routing.
    pub fn in_turns(&self) -> Option<f64> {
        self.read_seconds.map(|read| 1.0 / (self.compute_seconds + read))
    }

    /// Tokens per second if the longer of the two hid the other: the most that reading ahead could reach.
    pub fn overlapped(&self) -> Option<f64> {
        self.read_seconds.map(|read| 1.0 / self.compute_seconds.max(read))
    }
}

impl MachineSpeed {
    /// Seconds that a record of `bytes` takes among others, and what the first of `burst` takes more.
    fn reading(&self, bytes: f64, burst: f64) -> Option<(f64, f64)> {
        let (steady, bursts) = (self.drive.read_bytes_per_s, self.drive.burst_bytes_per_s);
        let known = steady > 0.0 && bursts > 0.0;
        known.then(|| (bytes / steady, (burst * bytes * (1.0 / bursts - 1.0 / steady)).max(0.0)))
    }
}

/// Tokens per second of a prompt as long as a chunk, which reads every expert that is not in memory once.
fn prompt_rate(summary: &ModelSummary, plan: &MemoryPlan, machine: &MachineSpeed) -> Option<f64> {
    let (c, rows) = (&summary.config, plan.chunk_rows as f64);
    // The head meets only the last token.
    let weights = summary.active_parameters.saturating_sub((c.vocab * c.hidden) as u64) as f64;
    let together = 2.0 * weights / (PROMPT_SHARE * machine.all.integer_ops_per_s);
    let alone = PROMPT_ALONE_BYTES * (c.layers.len() * c.hidden) as f64 / machine.one.memory_bytes_per_s;
    let compute = rows * (together + alone);
    let missing = plan.records_bytes.saturating_sub(plan.slots_bytes) as f64;
    let read = if missing == 0.0 { 0.0 } else { machine.reading(missing, 0.0)?.0 };
    Some(rows / compute.max(read))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{EngineOptions, inspect};

    fn pip() -> ModelSummary {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/pip.qpack");
        inspect(&path, &EngineOptions { context: 512, ..EngineOptions::default() }).unwrap()
    }

    /// A drive that reads a megabyte in a millisecond, and takes one more for the first of a burst of two.
    fn machine() -> MachineSpeed {
        let rates = Rates {
            threads: 2,
            memory_bytes_per_s: 10e9,
            unpack_memory_bytes_per_s: 5e9,
            unpack_cache_bytes_per_s: 10e9,
            integer_ops_per_s: 1e12,
        };
        let drive =
            DriveProfile { read_bytes_per_s: 1e9, burst_bytes_per_s: 0.5e9, ..DriveProfile::default() };
        MachineSpeed { one: rates, all: rates, drive }
    }

    #[test]
    fn routing_says_how_much_slots_are_worth() {
        assert_eq!(Routing::Even.hit_rate(0.25), 0.25);
        assert_eq!(Routing::Hits(0.4).hit_rate(0.25), 0.4);
        // The two figures of traces that it was made from, within their spread.
        assert!((Routing::Typical.hit_rate(0.056) - 0.43).abs() < 0.05);
        assert!((Routing::Typical.hit_rate(0.333) - 0.70).abs() < 0.05);
        assert_eq!(Routing::Typical.hit_rate(1.5), 1.0);
    }

    #[test]
    fn less_memory_is_more_reading() {
        let (summary, machine) = (pip(), machine());
        let all = summary.plan.fixed_bytes() + summary.plan.records_bytes;
        let of = |bytes| {
            Estimate::new(&summary, &summary.plan.with_budget(bytes).unwrap(), &machine, Routing::Even)
        };
        let (least, half, most) =
            (of(summary.plan.minimum_bytes()), of(all - summary.plan.records_bytes / 2), of(all));
        assert!(least.in_turns().unwrap() < half.in_turns().unwrap(), "{least:?} {half:?}");
        assert!(half.in_turns().unwrap() < most.in_turns().unwrap(), "{half:?} {most:?}");
        assert!(half.overlapped().unwrap() > half.in_turns().unwrap());
        assert_eq!((most.hit_rate, most.read_bytes_per_token, most.read_seconds), (1.0, 0.0, Some(0.0)));
        assert!(least.prompt_tokens_per_s.unwrap() < most.prompt_tokens_per_s.unwrap());
        // Half of the uses miss; each record takes its bytes' time, and in all but a few layers one takes longer.
        let uses = (summary.config.layers.len() as u64 * summary.plan.top_k) as f64;
        let bytes = uses / 2.0 * summary.plan.slot_bytes as f64;
        assert!((half.read_bytes_per_token / bytes - 1.0).abs() < 0.02, "{half:?} {bytes}");
        let (read, once) = (half.read_seconds.unwrap(), bytes / 1e9);
        assert!(read > 1.5 * once && read < 3.1 * once, "{half:?} {once}");
    }

    #[test]
    fn nothing_is_said_of_a_drive_that_was_not_measured() {
        let summary = pip();
        let machine = MachineSpeed { drive: DriveProfile::default(), ..machine() };
        let of = |bytes| {
            Estimate::new(&summary, &summary.plan.with_budget(bytes).unwrap(), &machine, Routing::Typical)
        };
        let least = of(summary.plan.minimum_bytes());
        assert_eq!((least.in_turns(), least.overlapped(), least.prompt_tokens_per_s), (None, None, None));
        assert!(of(summary.plan.fixed_bytes() + summary.plan.records_bytes).in_turns().is_some());
    }
}
