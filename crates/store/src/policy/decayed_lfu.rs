//! Least frequently used, where uses are forgotten by half every so many tokens.
//!
//! A record's score is the sum over its uses of `weight · 2^(-age / half_life)`. Ageing multiplies all scores by the same
//! factor, which leaves their order as it is; so scores stay and what a use adds grows instead. Kept as logarithms they
//! never overflow. Records that are in slots lie in buckets by score, a sixteenth of a doubling wide, each a list from the
//! least to the most recently used. The buckets are a ring that moves up with time: what falls below its bottom, 64
//! doublings under the top, stays in the bottom bucket.

use super::lists::Lists;
use super::{Arrival, Policy};

/// Buckets for each doubling of the score.
const PER_DOUBLING: f64 = 16.0;
const BUCKETS: i64 = 1024;

/// The record with the lowest decayed count of uses gives way; among about equals, the least recently used. Counts of
/// records that have left their slots are remembered.
#[derive(Debug)]
pub struct DecayedLfu {
    /// One list a bucket: that of bucket `b` is `b mod BUCKETS`.
    lists: Lists,
    /// A bit for each list; one that is set may be of a list that has become empty.
    filled: [u64; BUCKETS as usize / 64],
    /// The lowest bucket of the ring.
    bottom: i64,
    /// log2 of each record's score, in terms of a use at time 0; `-inf` if it was never used.
    scores: Vec<f64>,
    /// log2 of what a use of weight 1 adds now.
    now: f64,
    /// What a token adds to `now`.
    per_token: f64,
}

impl DecayedLfu {
    /// Tokens after which a use counts half; docs/performance.md has what was tried.
    pub const HALF_LIFE_TOKENS: f64 = 64.0;

    /// A policy over records 0 to `records - 1`. A half-life that is not above 0 counts as infinite: nothing is forgotten.
    pub fn new(records: u32, half_life_tokens: f64) -> Self {
        let per_token = if half_life_tokens > 0.0 { half_life_tokens.recip() } else { 0.0 };
        Self {
            lists: Lists::new(records, BUCKETS as u32),
            filled: [0; BUCKETS as usize / 64],
            bottom: -BUCKETS / 2,
            scores: vec![f64::NEG_INFINITY; records as usize],
            now: 0.0,
            // Faster than a bucket ring a token would be no count at all.
            per_token: per_token.min(BUCKETS as f64 / PER_DOUBLING),
        }
    }

    /// The decayed count of uses of `record` as of now.
    pub fn score(&self, record: u32) -> f64 {
        (self.scores[record as usize] - self.now).exp2()
    }

    /// The list of a record with this score, moving the ring up where it is above it.
    fn list(&mut self, score: f64) -> u32 {
        if score == f64::NEG_INFINITY {
            return ring(self.bottom);
        }
        let bucket = (score * PER_DOUBLING).floor() as i64;
        self.raise(bucket - BUCKETS + 1);
        ring(bucket.max(self.bottom))
    }

    /// Raises the bottom of the ring to `bottom`: the buckets below it become one.
    fn raise(&mut self, bottom: i64) {
        let mut steps = 0;
        while self.bottom < bottom {
            // After a round all lists are one, which can move as far as need be.
            let next = if steps < BUCKETS { self.bottom + 1 } else { bottom };
            self.lists.merge_below(ring(self.bottom), ring(next));
            self.mark(ring(next));
            self.bottom = next;
            steps += 1;
        }
    }

    fn mark(&mut self, list: u32) {
        self.filled[list as usize / 64] |= 1 << (list % 64);
    }

    fn link(&mut self, record: u32, newest: bool) {
        let list = self.list(self.scores[record as usize]);
        self.mark(list);
        if newest {
            self.lists.push_newest(list, record);
        } else {
            self.lists.push_oldest(list, record);
        }
    }

    /// The first list that may hold something, from `list` up to the last before `end`.
    fn next_filled(&self, list: u32, end: u32) -> Option<u32> {
        let mut word = list / 64;
        let mut bits = self.filled.get(word as usize)? & (u64::MAX << (list % 64));
        while bits == 0 {
            word += 1;
            if word * 64 >= end {
                return None;
            }
            bits = *self.filled.get(word as usize)?;
        }
        Some(word * 64 + bits.trailing_zeros()).filter(|&l| l < end)
    }

    /// The victim among the lists from `list` up to the last before `end`.
    fn victim_in(&mut self, list: u32, end: u32, may_go: &mut dyn FnMut(u32) -> bool) -> Option<u32> {
        let mut from = list;
        while let Some(list) = self.next_filled(from, end) {
            if self.lists.is_empty(list) {
                self.filled[list as usize / 64] &= !(1 << (list % 64));
            } else if let Some(victim) = self.lists.iter(list).find(|&r| may_go(r)) {
                return Some(victim);
            }
            from = list + 1;
        }
        None
    }
}

/// The list of a bucket.
fn ring(bucket: i64) -> u32 {
    bucket.rem_euclid(BUCKETS) as u32
}

/// `log2(2^a + 2^b)`
fn log2_sum(a: f64, b: f64) -> f64 {
    let (low, high) = if a < b { (a, b) } else { (b, a) };
    if low == f64::NEG_INFINITY { high } else { high + (1.0 + (low - high).exp2()).log2() }
}

impl Policy for DecayedLfu {
    fn used(&mut self, record: u32, weight: f32) {
        // Not `weight <= 0`: one that is not a number teaches nothing either.
        if !(weight > 0.0 && weight.is_finite()) {
            return;
        }
        let score = &mut self.scores[record as usize];
        *score = log2_sum(*score, self.now + f64::from(weight).log2());
        if self.lists.contains(record) {
            self.lists.unlink(record);
            self.link(record, true);
        }
    }

    fn inserted(&mut self, record: u32, arrival: Arrival) {
        self.link(record, arrival != Arrival::Sweep);
    }

    fn removed(&mut self, record: u32) {
        self.lists.unlink(record);
    }

    fn victim(&mut self, may_go: &mut dyn FnMut(u32) -> bool) -> Option<u32> {
        let bottom = ring(self.bottom);
        self.victim_in(bottom, BUCKETS as u32, may_go).or_else(|| self.victim_in(0, bottom, may_go))
    }

    fn tick(&mut self) {
        self.now += self.per_token;
    }

    fn hottest(&self, n: usize) -> Vec<u32> {
        let score = |r: u32| self.scores[r as usize];
        let mut order: Vec<u32> = (0..self.lists.records()).filter(|&r| score(r).is_finite()).collect();
        order.sort_by(|&a, &b| score(b).total_cmp(&score(a)));
        order.truncate(n);
        order
    }

    /// The first is valued at half of what a use every token comes to (at most 64 uses), the last at one use, the others
    /// geometrically between: a half-life of real uses outweighs it.
    fn seed(&mut self, ordered: &[u32]) {
        let every_token = if self.per_token > 0.0 { 1.0 / (1.0 - (-self.per_token).exp2()) } else { 128.0 };
        let first = (every_token / 2.0).clamp(1.0, 64.0).log2();
        let last = ordered.len().saturating_sub(1).max(1) as f64;
        for (rank, &record) in ordered.iter().enumerate() {
            if record >= self.lists.records() {
                continue;
            }
            let weight = (first * (1.0 - rank as f64 / last)).exp2();
            self.used(record, weight as f32);
        }
    }
}
