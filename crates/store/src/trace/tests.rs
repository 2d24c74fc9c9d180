//! Round trips, and traces that were cut, damaged or made up.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use spinetail_core::ExpertId;

use super::*;

const HEADER: TraceHeader = TraceHeader {
    layers: 3,
    experts: 300,
    top_k: 2,
    slot_bytes: 4096,
    fixed_bytes: 1 << 40,
    model_id: 0x0123_4567_89ab_cdef,
};

/// A file in memory that can be looked at afterwards, and that is full after so many bytes.
#[derive(Clone, Default)]
struct File {
    bytes: Arc<Mutex<Vec<u8>>>,
    room: Option<usize>,
}

impl Write for File {
    fn write(&mut self, more: &[u8]) -> io::Result<usize> {
        let mut bytes = self.bytes.lock().expect("a lock");
        if self.room.is_some_and(|room| bytes.len() + more.len() > room) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        bytes.extend(more);
        Ok(more.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

type Routed = Vec<Vec<u16>>;

fn written(steps: &[Routed]) -> Vec<u8> {
    let file = File::default();
    let mut writer = TraceWriter::new(Box::new(file.clone()), &HEADER);
    for (i, step) in steps.iter().enumerate() {
        writer.begin_step();
        for (layer, experts) in step.iter().enumerate() {
            let id = |&expert| ExpertId { layer: layer as u16, expert };
            writer.layer(&experts.iter().map(id).collect::<Vec<_>>());
        }
        let kind = if i % 2 == 0 { StepKind::Prefill } else { StepKind::Decode };
        writer.end_step(kind, i + 1, &time(i));
    }
    assert_eq!(writer.finish().expect("memory"), steps.len() as u64);
    file.bytes.lock().expect("a lock").clone()
}

fn time(i: usize) -> StepTime {
    StepTime {
        compute: Duration::from_micros(1 << (3 * i)),
        read: Duration::from_micros(i as u64),
        read_bytes: 1 << (2 * i),
    }
}

fn routed() -> impl Strategy<Value = Vec<Routed>> {
    let layer = prop::collection::btree_set(0..HEADER.experts, 0..20).prop_map(|s| s.into_iter().collect());
    prop::collection::vec(prop::collection::vec(layer, 3..=3), 0..6)
}

fn read(trace: &Trace) -> Vec<Routed> {
    trace.steps().map(|s| s.layers().map(<[u16]>::to_vec).collect()).collect()
}

proptest! {
    #[test]
    fn what_is_written_is_read(steps in routed()) {
        let trace = Trace::parse(&written(&steps)).expect("a trace");
        prop_assert_eq!(trace.header(), &HEADER);
        prop_assert_eq!(read(&trace), steps);
        prop_assert_eq!(trace.ignored_bytes(), 0);
        for (i, step) in trace.steps().enumerate() {
            prop_assert_eq!((step.rows as usize, step.time), (i + 1, time(i)));
        }
    }

    /// Wherever it is cut, the steps before the cut are there.
    #[test]
    fn a_cut_tail_leaves_what_was_whole(steps in routed(), cut in 0usize..400) {
        let bytes = written(&steps);
        let cut = cut.min(bytes.len());
        match Trace::parse(&bytes[..bytes.len() - cut]) {
            Ok(trace) => {
                let kept = read(&trace);
                prop_assert_eq!(&kept[..], &steps[..kept.len()]);
                prop_assert_eq!(written(&kept).len() + trace.ignored_bytes(), bytes.len() - cut);
            }
            Err(_) => prop_assert!(bytes.len() - cut < HEADER_BYTES),
        }
    }

    #[test]
    fn damage_ends_the_trace_or_is_refused(steps in routed(), at in 0usize..2000, flip in 1u8..=255) {
        let mut bytes = written(&steps);
        let at = at % bytes.len();
        bytes[at] ^= flip;
        match Trace::parse(&bytes) {
            Ok(trace) => {
                let kept = read(&trace);
                prop_assert!(kept.len() < steps.len() && at >= HEADER_BYTES);
                prop_assert_eq!(&kept[..], &steps[..kept.len()]);
            }
            Err(_) => prop_assert!(at < HEADER_BYTES),
        }
    }

    #[test]
    fn made_up_steps_do_no_harm(payload in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut bytes = written(&[]);
        bytes.extend((payload.len() as u32).to_le_bytes());
        bytes.extend(checksum(&payload).to_le_bytes());
        bytes.extend(&payload);
        let _ = Trace::parse(&bytes);
    }
}

#[test]
fn every_fault_has_its_message() {
    let with = |payload: &[u8]| {
        let mut bytes = written(&[]);
        bytes.extend((payload.len() as u32).to_le_bytes());
        bytes.extend(checksum(payload).to_le_bytes());
        bytes.extend(payload);
        Trace::parse(&bytes).expect_err("a fault").to_string()
    };
    for (payload, part) in [
        (&[3u8, 1, 0, 0, 0, 0, 0, 0][..], "kind"),
        (&[1, 0, 0, 0, 0, 0, 0, 0], "found none"),
        (&[1, 1, 0, 0, 0, 0, 0], "ends early"),
        (&[1, 1, 0, 0, 0, 0, 0, 0, 0], "1 bytes more"),
        (&[1, 1, 0, 0, 0, 2, 0xab, 2, 0, 0, 0], "below 300"),
        (&[1, 1, 0, 0, 0, 0xad, 2, 0, 0], "at most 300"),
        (&[1, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2], "64 bits"),
    ] {
        let message = with(payload);
        assert!(message.contains(part) && message.starts_with("step 0"), "{message}");
    }
    assert_eq!(Trace::parse(b"GGUF"), Err(TraceError::Magic));
    let mut bytes = written(&[]);
    bytes[8] = 9;
    assert_eq!(Trace::parse(&bytes), Err(TraceError::Version { found: 9 }));
}

/// A header with a right checksum that would have a replay allocate gigabytes.
#[test]
fn a_model_that_nobody_has_is_refused() {
    let mut bytes = written(&[]);
    bytes[10..14].fill(0xff);
    let sum = checksum(&bytes[..40]);
    bytes[40..44].copy_from_slice(&sum.to_le_bytes());
    assert!(matches!(Trace::parse(&bytes), Err(TraceError::Header { .. })));
}

/// Zeros, as a file system leaves them after a crash, are no step.
#[test]
fn zeros_at_the_end_are_ignored() {
    let mut bytes = written(&[vec![vec![1, 2], vec![0, 299], vec![7]]]);
    bytes.resize(bytes.len() + 5000, 0);
    let trace = Trace::parse(&bytes).expect("a trace");
    assert_eq!((trace.steps().len(), trace.ignored_bytes()), (1, 5000));
}

#[test]
fn a_full_drive_is_told_at_the_end() {
    let file = File { room: Some(60), ..File::default() };
    let mut writer = TraceWriter::new(Box::new(file), &HEADER);
    for _ in 0..100 {
        writer.end_step(StepKind::Decode, 1, &StepTime::default());
    }
    assert_eq!(writer.finish().expect_err("no room").kind(), io::ErrorKind::StorageFull);
}
