//! What a cache of another size or with another policy would have done with a recorded trace.
//!
//! The policies are those that the live store uses, driven as it drives them: records of one layer of one step are needed
//! together and none of them gives way to another. Reading ahead is not replayed.

mod belady;
mod stats;
#[cfg(test)]
mod tests;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::policy::{Arrival, DecayedLfu, MAX_DECODE_ROWS, Policy, PolicyKind, SWEEP_WEIGHT};
use crate::trace::{StepKind, Trace};
use belady::{Belady, next_uses};
pub use stats::TraceStats;

/// One cache to try.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReplayOptions {
    /// Records that it holds.
    pub slots: usize,
    /// Which gives way.
    pub policy: PolicyKind,
    /// Tokens after which a use counts half, for [`PolicyKind::DecayedLfu`].
    pub half_life_tokens: f64,
}

impl ReplayOptions {
    /// A cache with the policy's usual half-life.
    pub fn new(slots: usize, policy: PolicyKind) -> Self {
        Self { slots, policy, half_life_tokens: DecayedLfu::HALF_LIFE_TOKENS }
    }
}

/// Uses of records, and how many of them found the record in a slot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Tokens (rows).
    pub tokens: u64,
    /// Records needed.
    pub uses: u64,
    /// Those that were in a slot.
    pub hits: u64,
}

impl Counts {
    /// Hits by uses; 0 where there were none.
    pub fn hit_rate(&self) -> f64 {
        if self.uses == 0 { 0.0 } else { self.hits as f64 / self.uses as f64 }
    }

    /// Records read per token; 0 where there were none.
    pub fn reads_per_token(&self) -> f64 {
        if self.tokens == 0 { 0.0 } else { (self.uses - self.hits) as f64 / self.tokens as f64 }
    }
}

/// How a cache did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Decoded tokens.
    pub decode: Counts,
    /// Decoded tokens after the step in which a record first gave way: without the misses of an empty cache.
    pub warm: Counts,
    /// Prompts.
    pub prefill: Counts,
}

impl Outcome {
    /// Decoded tokens of a full cache, or all where it never became full.
    pub fn steady(&self) -> &Counts {
        if self.warm.tokens > 0 { &self.warm } else { &self.decode }
    }
}

/// Replays `trace` through each of `caches`, several at a time.
pub fn replay(trace: &Trace, caches: &[ReplayOptions]) -> Vec<Outcome> {
    let belady = caches.iter().any(|c| c.policy == PolicyKind::Belady);
    let next = if belady { next_uses(trace) } else { Vec::new() };
    let (cursor, done) = (AtomicUsize::new(0), Mutex::new(vec![Outcome::default(); caches.len()]));
    let work = || {
        while let Some((i, cache)) = {
            let i = cursor.fetch_add(1, Ordering::Relaxed);
            caches.get(i).map(|c| (i, c))
        } {
            let outcome = replay_one(trace, cache, &next);
            done.lock().unwrap_or_else(std::sync::PoisonError::into_inner)[i] = outcome;
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(caches.len());
    std::thread::scope(|scope| {
        for _ in 1..threads {
            // This thread does what others that the system refuses would have done.
            if std::thread::Builder::new().spawn_scoped(scope, work).is_err() {
                break;
            }
        }
        work();
    });
    done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn replay_one(trace: &Trace, cache: &ReplayOptions, next: &[u32]) -> Outcome {
    let records = record_count(trace);
    let policy = cache.policy.build(records, cache.half_life_tokens);
    let policy = policy.unwrap_or_else(|| Box::new(Belady::new(records, next)));
    let mut cache = Cache {
        policy,
        slots: cache.slots,
        held: 0,
        resident: vec![false; records as usize],
        needed: vec![0; records as usize],
        fetch: 0,
        missing: Vec::new(),
        full: false,
    };
    let mut outcome = Outcome::default();
    for step in trace.steps() {
        let warm = cache.full;
        let mut counts = Counts { tokens: u64::from(step.rows), ..Counts::default() };
        let (weight, arrival) = match step.rows as usize {
            ..=MAX_DECODE_ROWS => (1.0, Arrival::Demand),
            _ => (SWEEP_WEIGHT, Arrival::Sweep),
        };
        let mut first = 0;
        for ids in step.layers() {
            counts.uses += ids.len() as u64;
            counts.hits += cache.fetch(ids.iter().map(|&id| first + u32::from(id)), weight, arrival);
            first += u32::from(trace.header().experts);
        }
        cache.policy.tick();
        match step.kind {
            StepKind::Prefill => outcome.prefill.add(&counts),
            StepKind::Decode => {
                outcome.decode.add(&counts);
                if warm {
                    outcome.warm.add(&counts);
                }
            }
        }
    }
    outcome
}

impl Counts {
    fn add(&mut self, other: &Self) {
        self.tokens += other.tokens;
        self.uses += other.uses;
        self.hits += other.hits;
    }
}

/// Records of the model that a trace is of: below 2^32, as both factors are below 2^16.
fn record_count(trace: &Trace) -> u32 {
    u32::from(trace.header().layers) * u32::from(trace.header().experts)
}

/// The store without bytes.
struct Cache<'t> {
    policy: Box<dyn Policy + 't>,
    slots: usize,
    held: usize,
    resident: Vec<bool>,
    /// The last fetch that needed each record.
    needed: Vec<u32>,
    fetch: u32,
    missing: Vec<u32>,
    /// Whether a record had to give way.
    full: bool,
}

impl Cache<'_> {
    /// Fetches the records that a layer needs; returns how many were there.
    fn fetch(&mut self, records: impl Iterator<Item = u32>, weight: f32, arrival: Arrival) -> u64 {
        self.fetch = self.fetch.wrapping_add(1);
        self.missing.clear();
        let mut hits = 0;
        for record in records {
            self.needed[record as usize] = self.fetch;
            self.policy.used(record, weight);
            if self.resident[record as usize] {
                hits += 1;
            } else {
                self.missing.push(record);
            }
        }
        for &record in &self.missing {
            if self.held == self.slots {
                self.full = true;
                let (needed, fetch) = (&self.needed, self.fetch);
                // With fewer slots than a layer needs, what is over is read and not kept.
                let Some(victim) = self.policy.victim(&mut |r| needed[r as usize] != fetch) else { break };
                self.policy.removed(victim);
                self.resident[victim as usize] = false;
                self.held -= 1;
            }
            self.policy.inserted(record, arrival);
            self.resident[record as usize] = true;
            self.held += 1;
        }
        hits
    }
}
