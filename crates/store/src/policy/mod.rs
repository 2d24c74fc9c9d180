//! Which record gives way when a slot is needed.
//!
//! A [`Policy`] knows records by number and nothing else: no slots, no bytes, no files. The live store and
//! [`replay`](crate::replay) drive the same code.

mod clock;
mod decayed_lfu;
mod lists;
mod lru;
mod s3_fifo;
#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;

pub use clock::Clock;
pub use decayed_lfu::DecayedLfu;
pub use lru::Lru;
pub use s3_fifo::S3Fifo;

/// Batches of at most this many rows are decoding, as several users or drafts do; larger ones are prefill chunks.
pub const MAX_DECODE_ROWS: usize = 8;

/// How much a use by a prefill chunk says about the next token: see [`Policy::used`].
pub const SWEEP_WEIGHT: f32 = 0.05;

/// Why a record came into a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// A token needed it.
    Demand,
    /// A prefill chunk needed it: the chunk touches nearly every expert once, which says little about the next token.
    Sweep,
    /// It was read ahead and may be needed soon, or never.
    Guess,
}

/// Decides which record gives way. Records are numbered `layer · experts + expert`.
///
/// On a miss the order of calls is [`used`](Self::used), then [`victim`](Self::victim) and [`removed`](Self::removed) if no
/// slot is free, then [`inserted`](Self::inserted) once the record is read. A record that is read ahead is inserted without
/// being used. Every call is O(1), but for victims that may not go and for what is said otherwise.
///
/// Record numbers are below the count that the policy was made for; others are the caller's fault and panic.
pub trait Policy: Send {
    /// `record` was needed, in a slot or not. `weight` is how much that says about the next token: 1 for a use by a decoded
    /// token, less for one by a row of a prefill chunk. At 0 nothing is learned, and a record that is in a slot does not
    /// rise.
    fn used(&mut self, record: u32, weight: f32);

    /// `record`, which was in no slot, lies in one now.
    fn inserted(&mut self, record: u32, arrival: Arrival);

    /// `record` has left its slot.
    fn removed(&mut self, record: u32);

    /// The record that should give way, of those in slots for which `may_go` says yes; `None` if none may. It stays
    /// until [`removed`](Self::removed) is called.
    fn victim(&mut self, may_go: &mut dyn FnMut(u32) -> bool) -> Option<u32>;

    /// A token has ended: the unit of time in which uses are forgotten.
    fn tick(&mut self);

    /// Up to `n` records by falling worth, in slots or not, for [`seed`](Self::seed) of another run. O(records · log).
    fn hottest(&self, n: usize) -> Vec<u32>;

    /// Values the records of `ordered`, the hottest first, as a run that found them so might have; for a policy that has
    /// seen nothing yet. Those that remember nothing of records outside slots ignore it. Unknown records are skipped.
    fn seed(&mut self, ordered: &[u32]) {
        let _ = ordered;
    }
}

/// The policies by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PolicyKind {
    /// The least recently used record gives way.
    Lru,
    /// The record with the fewest uses, counted for ever.
    Lfu,
    /// The record with the fewest uses, where a use counts half after a number of tokens. The default.
    DecayedLfu,
    /// First in, first out, with a second chance for what was used meanwhile.
    Clock,
    /// Two queues and a memory of what left the first one.
    S3Fifo,
    /// The record whose next use is furthest away: the ceiling, which only a replay can know.
    Belady,
}

impl PolicyKind {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Lru, Self::Lfu, Self::DecayedLfu, Self::Clock, Self::S3Fifo, Self::Belady];

    /// The name, as it is parsed.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::Lfu => "lfu",
            Self::DecayedLfu => "decayed-lfu",
            Self::Clock => "clock",
            Self::S3Fifo => "s3-fifo",
            Self::Belady => "belady",
        }
    }

    /// A policy over `records` records; `half_life_tokens` is for [`DecayedLfu`]. `None` for [`PolicyKind::Belady`].
    pub fn build(self, records: u32, half_life_tokens: f64) -> Option<Box<dyn Policy>> {
        Some(match self {
            Self::Lru => Box::new(Lru::new(records)),
            Self::Lfu => Box::new(DecayedLfu::new(records, f64::INFINITY)),
            Self::DecayedLfu => Box::new(DecayedLfu::new(records, half_life_tokens)),
            Self::Clock => Box::new(Clock::new(records)),
            Self::S3Fifo => Box::new(S3Fifo::new(records)),
            Self::Belady => return None,
        })
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no policy's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no eviction policy is called {0:?}: expected lru, lfu, decayed-lfu, clock, s3-fifo or belady")]
pub struct UnknownPolicy(pub String);

impl FromStr for PolicyKind {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        Self::ALL.into_iter().find(|k| k.name() == name).ok_or_else(|| UnknownPolicy(name.to_owned()))
    }
}
