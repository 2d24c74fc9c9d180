//! Records read through io_uring: the bytes of other reads, the errors of other reads, and what happens where the system
//! refuses it.
#![cfg(all(feature = "io-uring", target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
#![allow(unsafe_code)]

use std::fs::OpenOptions as FileOptions;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use spinetail_container::{Container, OpenOptions};
use spinetail_core::{ExpertId, ReadError, ReadMode, ReadRing, RecordSource, RingEnd};

use crate::common::{ids, plan, record_bytes, written};

/// Bytes for one read.
const ROOM: usize = 1 << 17;

/// Memory for several reads at once, each at a multiple of 4096 and `off` bytes.
struct Memory {
    bytes: Vec<u8>,
    off: usize,
}

impl Memory {
    fn new(reads: usize, off: usize) -> Self {
        Self { bytes: vec![0xff; (reads + 1) * ROOM], off }
    }

    fn start(&self) -> usize {
        self.bytes.as_ptr().align_offset(4096) + self.off
    }

    fn place(&mut self, i: usize) -> NonNull<u8> {
        let at = self.start() + i * ROOM;
        NonNull::from(&mut self.bytes[at..][..ROOM / 2]).cast()
    }

    fn read(&self, i: usize) -> &[u8] {
        &self.bytes[self.start() + i * ROOM..][..ROOM / 2]
    }
}

fn open(path: &std::path::Path, verify_reads: bool) -> Container {
    Container::open_with(path, &OpenOptions { read_mode: ReadMode::Uring, verify_reads }).unwrap()
}

/// A ring, unless this system has none for us.
fn ring(c: &Container, reads: u32) -> Option<Box<dyn ReadRing + '_>> {
    assert_eq!(c.read_mode(), ReadMode::Uring);
    let ring = c.ring(reads);
    if ring.is_none() {
        println!("skipped: io_uring is refused here");
    }
    ring
}

/// Waits for `n` reads, by token.
fn all(ring: &mut dyn ReadRing, n: usize) -> Vec<RingEnd> {
    let mut ended = Vec::new();
    while ended.len() < n {
        // Nothing but a read that has ended ends this wait: one that was never begun would last for ever.
        let (start, before) = (Instant::now(), ended.len());
        ring.wait(&mut ended, Some(Duration::from_secs(60)));
        assert!(ended.len() > before || start.elapsed() < Duration::from_secs(50), "{ended:?}");
    }
    ended.sort_by_key(|(token, _)| *token);
    assert!((0..n).all(|i| ended[i].0 == i as u64), "{ended:?}");
    ended.into_iter().map(|(_, end)| end).collect()
}

#[test]
fn a_ring_gives_the_bytes_of_other_reads() {
    let (_dir, path) = written();
    let ids = ids(&plan());
    for verify in [false, true] {
        let c = open(&path, verify);
        for at_once in [1, 3, ids.len()] {
            let Some(mut ring) = ring(&c, at_once as u32) else { return };
            // Good addresses and others, with and without room for padding.
            for (off, extra) in [(0, 0), (0, 4096), (64, 0), (0, usize::MAX)] {
                let mut memory = Memory::new(at_once, off);
                for batch in ids.chunks(at_once) {
                    let bytes = |id: &ExpertId| c.record_layout(id.layer).unwrap().bytes as usize;
                    for (i, id) in batch.iter().enumerate() {
                        let room = bytes(id).saturating_add(extra).min(ROOM / 2);
                        // SAFETY: each read has a place of its own, which is looked at when all have ended.
                        unsafe { ring.start(i as u64, *id, memory.place(i), room) };
                    }
                    for (end, (i, id)) in all(&mut *ring, batch.len()).iter().zip(batch.iter().enumerate()) {
                        assert!(matches!(end, RingEnd::Done(Ok(()))), "{id}: {end:?}");
                        let expected = record_bytes(*id, c.record_layout(id.layer).unwrap());
                        assert!(memory.read(i)[..bytes(id)] == expected, "{id} {off} {extra}");
                    }
                }
            }
        }
        assert_eq!(c.read_mode(), ReadMode::Uring);
    }
}

#[test]
fn what_is_wrong_with_a_read_is_said_as_without_a_ring() {
    for verify in [false, true] {
        let (_dir, path) = written();
        let c = open(&path, verify);
        let Some(mut ring) = ring(&c, 8) else { return };
        let file = c.record_files()[0].clone();
        let stride = file.stride_bytes as usize;
        let write = FileOptions::new().write(true).open(&file.path).unwrap();
        let mut byte = [0];
        std::fs::File::open(&file.path).unwrap().read_exact_at(&mut byte, 5).unwrap();
        write.write_all_at(&[byte[0] ^ 1], 5).unwrap();
        for left in [2 * stride + 1000, 2 * stride + 4096, 2 * stride, 2 * stride - 1] {
            write.set_len(left as u64).unwrap();
            let mut memory = Memory::new(5, 0);
            let wanted = [(0, 0), (0, 2), (1, 1), (0, 99), (77, 0)];
            for (i, (layer, expert)) in wanted.into_iter().enumerate() {
                // SAFETY: as above.
                unsafe { ring.start(i as u64, ExpertId { layer, expert }, memory.place(i), stride) };
            }
            let ends = all(&mut *ring, 5);
            let damaged = matches!(ends[0], RingEnd::Done(Err(ReadError::Checksum { .. })));
            assert_eq!(damaged, verify, "{ends:?}");
            match &ends[1] {
                RingEnd::Done(Err(ReadError::Short { path, offset, bytes, found })) => {
                    assert_eq!((path, *offset, *bytes), (&file.path, 2 * stride as u64, stride as u64));
                    assert_eq!(*found, left.saturating_sub(2 * stride) as u64);
                }
                end => panic!("{end:?}"),
            }
            assert!(matches!(ends[2], RingEnd::Done(Ok(()))), "{ends:?}");
            for end in &ends[3..] {
                assert!(matches!(end, RingEnd::Done(Err(ReadError::Unknown { .. }))), "{end:?}");
            }
        }
    }
}

#[test]
fn a_ring_can_be_woken_and_waits_no_longer_than_it_is_told() {
    let (_dir, path) = written();
    let c = open(&path, false);
    let Some(mut ring) = ring(&c, 4) else { return };
    let mut none = Vec::new();
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(20) {
        ring.wait(&mut none, Some(Duration::from_millis(5)));
    }
    for _ in 0..100 {
        let waker = ring.waker();
        // Before the wait, or amid it: either ends it.
        let thread = std::thread::spawn(move || waker.wake());
        ring.wait(&mut none, None);
        thread.join().unwrap();
    }
    assert!(none.is_empty());
}

#[test]
fn nothing_is_written_after_a_ring_is_dropped() {
    let (_dir, path) = written();
    let c = open(&path, false);
    let ids = ids(&plan());
    for round in 0..100 {
        let Some(mut ring) = ring(&c, 8) else { return };
        let mut memory = Memory::new(8, 0);
        for i in 0..8 {
            // SAFETY: each has its place, which is looked at when the ring has been dropped.
            unsafe { ring.start(i as u64, ids[(round + i) % ids.len()], memory.place(i), ROOM / 2) };
        }
        // Some are on their way and some are not.
        ring.wait(&mut Vec::new(), Some(Duration::ZERO));
        drop(ring);
        memory.bytes.fill(0x5a);
        std::thread::sleep(Duration::from_millis(1));
        assert!(memory.bytes.iter().all(|&b| b == 0x5a));
    }
}

/// Counts warnings.
#[derive(Clone, Default)]
struct Warnings(Arc<AtomicU32>);

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Relaxed);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// Runs `f` on a thread of its own and returns how often it was warned.
fn warnings(f: impl FnOnce() + Send) -> u32 {
    let warnings = Warnings::default();
    std::thread::scope(|s| {
        s.spawn(|| tracing::subscriber::with_default(warnings.clone(), f)).join().unwrap();
    });
    warnings.0.load(Relaxed)
}

/// Has this thread's calls of a number fail with EPERM from now on, as container runtimes do.
fn forbid(call: libc::c_long) {
    let op = |code, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let filter = [
        // The number of the call, which is the first field.
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, call as u32),
        op(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        op(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // SAFETY: the program lives until the calls return; the kernel copies it.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program), 0);
    }
}

#[test]
fn where_a_ring_is_refused_a_line_says_so_once() {
    let (_dir, path) = written();
    let c = open(&path, false);
    let warned = warnings(|| {
        // A ring for no reads at all is none.
        assert!(c.ring(0).is_none());
        assert_eq!(c.read_mode(), ReadMode::Direct);
        assert!(c.ring(8).is_none(), "it has been given up");
    });
    assert_eq!(warned, 1);
    for call in [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter] {
        let c = open(&path, false);
        let warned = warnings(|| {
            forbid(call);
            assert!(c.ring(8).is_none());
            assert_eq!(c.read_mode(), ReadMode::Direct);
            let mut out = vec![0; ROOM];
            c.read_record(ExpertId { layer: 0, expert: 1 }, &mut out).unwrap();
        });
        assert_eq!(warned, 1);
    }
}

#[test]
fn a_ring_that_is_refused_later_hands_all_reads_back() {
    let (_dir, path) = written();
    for submitted in [false, true] {
        let c = open(&path, false);
        let warned = warnings(|| {
            let Some(mut ring) = ring(&c, 8) else { return };
            let mut memory = Memory::new(8, 0);
            let mut ended = Vec::new();
            let mut start = |ring: &mut dyn ReadRing, tokens: std::ops::Range<u64>| {
                for token in tokens {
                    let id = ExpertId { layer: 0, expert: token as u16 % 3 };
                    // SAFETY: each has its place, which nobody looks at.
                    unsafe { ring.start(token, id, memory.place(token as usize), ROOM / 2) };
                }
            };
            start(&mut *ring, 0..4);
            if submitted {
                ring.wait(&mut ended, Some(Duration::ZERO));
            }
            forbid(libc::SYS_io_uring_enter);
            start(&mut *ring, 4..8);
            while ended.len() < 8 {
                ring.wait(&mut ended, None);
            }
            let refused = ended.iter().filter(|(_, end)| matches!(end, RingEnd::Refused)).count();
            assert_eq!(refused, if submitted { 4 } else { 8 }, "{ended:?}");
            assert_eq!(c.read_mode(), ReadMode::Direct);
            start(&mut *ring, 0..1);
            ring.wait(&mut ended, None);
            assert!(matches!(ended[8], (0, RingEnd::Refused)), "{ended:?}");
            // Does not wait for what never began.
            drop(ring);
        });
        assert!(warned == 1 || c.read_mode() == ReadMode::Uring);
    }
}
