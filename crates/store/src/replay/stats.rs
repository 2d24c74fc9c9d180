//! What a trace is like, whatever the cache.

use crate::trace::{Step, StepKind, Trace};

use super::record_count;

/// Figures of the decoded tokens of a trace.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TraceStats {
    /// Tokens decoded.
    pub decode_tokens: u64,
    /// Rows of prompts.
    pub prefill_tokens: u64,
    /// Records that were used at all.
    pub distinct_records: u64,
    /// Share of uses that the most used tenth of all records has.
    pub top_tenth_share: f64,
    /// Share of a token's experts that the token before it used in the same layer.
    pub repetition: f64,
    /// Seconds of compute for a token, as recorded; `None` if nothing was.
    pub compute_seconds_per_token: Option<f64>,
    /// Bytes read for each second of waiting for reads, over all steps: more than the drive's rate where computing hid
    /// reads. `None` if nothing was read.
    pub read_bytes_per_second: Option<f64>,
}

impl TraceStats {
    /// Counts over a whole trace.
    pub fn new(trace: &Trace) -> Self {
        let mut counts = vec![0u64; record_count(trace) as usize];
        let (mut stats, mut last) = (Self::default(), None);
        let (mut repeated, mut repeatable, mut compute) = (0, 0, 0.0);
        let (mut read_bytes, mut read_seconds) = (0u64, 0.0);
        for step in trace.steps() {
            read_bytes = read_bytes.saturating_add(step.time.read_bytes);
            read_seconds += step.time.read.as_secs_f64();
            if step.kind == StepKind::Prefill {
                stats.prefill_tokens += u64::from(step.rows);
                last = None;
                continue;
            }
            stats.decode_tokens += u64::from(step.rows);
            compute += step.time.compute.as_secs_f64();
            let mut first = 0;
            for ids in step.layers() {
                ids.iter().for_each(|&id| counts[first + usize::from(id)] += 1);
                first += usize::from(trace.header().experts);
            }
            if let Some(last) = last.replace(step) {
                let (common, all) = repetition(&last, &step);
                repeated += common;
                repeatable += all;
            }
        }
        let uses: u64 = counts.iter().sum();
        stats.distinct_records = counts.iter().filter(|&&c| c > 0).count() as u64;
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let top: u64 = counts[..counts.len().div_ceil(10)].iter().sum();
        stats.top_tenth_share = share(top, uses);
        stats.repetition = share(repeated, repeatable);
        let tokens = stats.decode_tokens as f64;
        stats.compute_seconds_per_token = (compute > 0.0 && tokens > 0.0).then(|| compute / tokens);
        stats.read_bytes_per_second =
            (read_bytes > 0 && read_seconds > 0.0).then(|| read_bytes as f64 / read_seconds);
        stats
    }
}

fn share(part: u64, all: u64) -> f64 {
    if all == 0 { 0.0 } else { part as f64 / all as f64 }
}

/// How many of the experts of `step` `last` had too, and how many there are.
fn repetition(last: &Step<'_>, step: &Step<'_>) -> (u64, u64) {
    let (mut common, mut all) = (0, 0);
    for (before, now) in last.layers().zip(step.layers()) {
        common += now.iter().filter(|id| before.binary_search(id).is_ok()).count() as u64;
        all += now.len() as u64;
    }
    (common, all)
}
