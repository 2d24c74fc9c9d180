//! Replays of small traces whose outcome can be counted by hand, and of random ones against each other.

use std::time::Duration;

use proptest::prelude::*;
use spinetail_core::ExpertId;

use super::*;
use crate::trace::{StepTime, TraceHeader, TraceWriter};

/// A trace of one layer of 16 experts, a step for each list; `Err` is a prompt.
fn trace(steps: &[Result<Vec<u16>, Vec<u16>>]) -> Trace {
    let file = tempfile();
    let header =
        TraceHeader { layers: 1, experts: 16, top_k: 2, slot_bytes: 4096, fixed_bytes: 0, model_id: 0 };
    let mut writer = TraceWriter::new(Box::new(file.clone()), &header);
    let time =
        StepTime { compute: Duration::from_millis(20), read: Duration::from_millis(10), read_bytes: 1 << 20 };
    for step in steps {
        writer.begin_step();
        let (kind, ids) = match step {
            Ok(ids) => (StepKind::Decode, ids),
            Err(ids) => (StepKind::Prefill, ids),
        };
        writer.layer(&ids.iter().map(|&expert| ExpertId { layer: 0, expert }).collect::<Vec<_>>());
        writer.end_step(kind, if kind == StepKind::Decode { 1 } else { 16 }, &time);
    }
    writer.finish().expect("memory");
    Trace::parse(&file.0.lock().expect("a lock")).expect("a trace")
}

#[derive(Clone)]
struct Memory(std::sync::Arc<Mutex<Vec<u8>>>);

fn tempfile() -> Memory {
    Memory(std::sync::Arc::default())
}

impl std::io::Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("a lock").extend(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn one(trace: &Trace, slots: usize, policy: PolicyKind) -> Outcome {
    replay(trace, &[ReplayOptions::new(slots, policy)])[0]
}

#[test]
fn a_cycle_is_lrus_worst_and_beladys_best() {
    let steps: Vec<_> = (0..30).map(|i| Ok(vec![i % 3])).collect();
    let trace = trace(&steps);
    let lru = one(&trace, 2, PolicyKind::Lru);
    assert_eq!(lru.decode, Counts { tokens: 30, uses: 30, hits: 0 });
    // It became full in the third step.
    assert_eq!(lru.warm.tokens, 27);
    // One of the two others is kept from turn to turn: every second use but those of the start.
    assert_eq!(one(&trace, 2, PolicyKind::Belady).decode.hits, 14);
    let all = one(&trace, 3, PolicyKind::Lru);
    assert_eq!((all.decode.hits, all.warm.tokens, all.steady().tokens), (27, 0, 30));
}

#[test]
fn a_layer_that_needs_more_than_there_is_reads_the_rest() {
    let trace = trace(&vec![Ok(vec![1, 2, 3, 4]); 5]);
    for policy in PolicyKind::ALL {
        assert_eq!(one(&trace, 0, policy).decode.hits, 0, "{policy}");
        assert_eq!(one(&trace, 3, policy).decode.hits, 12, "{policy}");
        assert_eq!(one(&trace, 4, policy).decode.hits, 16, "{policy}");
    }
}

/// Two favourites, and a prompt that touches everything in the middle.
#[test]
fn a_prompt_does_not_push_out_the_favourites() {
    let mut steps = vec![Ok(vec![3, 9]); 20];
    steps.push(Err((0..16).collect()));
    steps.push(Ok(vec![3, 9]));
    let trace = trace(&steps);
    for policy in PolicyKind::ALL {
        let outcome = one(&trace, 4, policy);
        assert_eq!(outcome.decode.hits, 40, "{policy}: {outcome:?}");
        assert_eq!(outcome.prefill.tokens, 16);
    }
}

#[test]
fn a_trace_is_summed_up() {
    let trace = trace(&[Err(vec![7]), Ok(vec![1, 2]), Ok(vec![2, 3]), Ok(vec![2, 3])]);
    let s = TraceStats::new(&trace);
    assert_eq!((s.decode_tokens, s.prefill_tokens, s.distinct_records), (3, 16, 3));
    // Two of sixteen records are a tenth, rounded up: 2 with three uses and 3 with two.
    assert_eq!(s.top_tenth_share, 5.0 / 6.0);
    assert_eq!(s.repetition, 3.0 / 4.0);
    assert_eq!(s.compute_seconds_per_token, Some(0.02));
    assert!((s.read_bytes_per_second.expect("reads") - 104_857_600.0).abs() < 1.0);
}

proptest! {
    /// With one record a step; with several, what a layer pins is beyond Belady's proof.
    #[test]
    fn nobody_beats_belady(
        // A square makes low numbers likelier.
        ids in prop::collection::vec((0u16..16, 0u16..16).prop_map(|(a, b)| Ok(vec![a * b / 16])), 1..300),
        slots in 1usize..16
    ) {
        let trace = trace(&ids);
        let best = one(&trace, slots, PolicyKind::Belady).decode;
        for policy in PolicyKind::ALL {
            let found = one(&trace, slots, policy).decode;
            prop_assert!(found.hits <= best.hits && found.uses == ids.len() as u64, "{policy}");
        }
    }
}
