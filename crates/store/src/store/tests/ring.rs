//! The store over a ring that ends reads late and in any order, writes to their memory until the last moment, and is
//! refused, fails or panics when it is told to.

use std::sync::Condvar;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::task::{Wake, Waker};
use std::time::Instant;

use spinetail_core::{ReadMode, ReadRing, RingEnd};

use super::*;

/// What goes wrong, counted in reads that were started.
#[derive(Clone, Copy, Default)]
struct Trouble {
    never: bool,
    refused_after: Option<usize>,
    panics_after: Option<usize>,
    /// One in this many fails once.
    flaky: Option<usize>,
    broken: Option<ExpertId>,
    delay: Duration,
}

struct RingSource {
    inner: Arc<TestSource>,
    trouble: Trouble,
    refused: AtomicBool,
    most_at_once: AtomicUsize,
    started: Mutex<Vec<ExpertId>>,
}

impl RingSource {
    fn new(trouble: Trouble) -> Arc<Self> {
        Arc::new(Self {
            inner: source(),
            trouble,
            refused: AtomicBool::new(false),
            most_at_once: AtomicUsize::new(0),
            started: Mutex::default(),
        })
    }

    fn read_by_threads(&self) -> usize {
        self.inner.reads.lock().unwrap().len()
    }

    fn started(&self) -> usize {
        self.started.lock().unwrap().len()
    }
}

impl RecordSource for RingSource {
    fn record_layout(&self, layer: u16) -> Option<&RecordLayout> {
        self.inner.record_layout(layer)
    }
    fn expert_count(&self) -> usize {
        self.inner.expert_count()
    }
    fn read_record(&self, id: ExpertId, out: &mut [u8]) -> Result<(), ReadError> {
        assert!(self.refused.load(SeqCst) || self.trouble.panics_after.is_some());
        self.inner.read_record(id, out)
    }
    fn read_mode(&self) -> ReadMode {
        if self.refused.load(SeqCst) { ReadMode::Buffered } else { ReadMode::Uring }
    }
    fn ring(&self, reads: u32) -> Option<Box<dyn ReadRing + '_>> {
        if self.trouble.never {
            self.refused.store(true, SeqCst);
            return None;
        }
        Some(Box::new(LateRing {
            source: self,
            reads: reads as usize,
            flying: Vec::new(),
            failed: Vec::new(),
            bell: Arc::default(),
            state: 1,
        }))
    }
}

#[derive(Default)]
struct Bell(Mutex<bool>, Condvar);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        *self.0.lock().unwrap() = true;
        self.1.notify_all();
    }
}

struct Flying(u64, ExpertId, NonNull<u8>, usize);

impl Flying {
    /// What a drive does to the memory meanwhile.
    fn write(&self, byte: u8) {
        // SAFETY: as promised to `start`, and the read has not ended.
        unsafe { self.2.write_bytes(byte, self.3) };
    }
}

struct LateRing<'s> {
    source: &'s RingSource,
    reads: usize,
    flying: Vec<Flying>,
    failed: Vec<ExpertId>,
    bell: Arc<Bell>,
    state: u64,
}

impl LateRing<'_> {
    fn random(&mut self, below: usize) -> usize {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.state >> 33) as usize % below
    }

    fn end(&mut self, id: ExpertId) -> RingEnd {
        let error = || {
            let error = std::io::Error::other("input/output error");
            RingEnd::Done(Err(ReadError::Io { path: "ring".into(), offset: 0, bytes: 0, error }))
        };
        let n = self.source.started();
        if self.source.trouble.refused_after.is_some_and(|most| n > most) {
            self.source.refused.store(true, SeqCst);
            return RingEnd::Refused;
        }
        assert!(self.source.trouble.panics_after.is_none_or(|most| n <= most), "as told");
        if self.source.trouble.broken == Some(id) {
            return error();
        }
        if self.source.trouble.flaky.is_some_and(|f| n.is_multiple_of(f)) && !self.failed.contains(&id) {
            self.failed.push(id);
            return error();
        }
        self.failed.retain(|&f| f != id);
        RingEnd::Done(Ok(()))
    }
}

// SAFETY: it writes to what is flying only, and what flies is forgotten when it ends and when the ring is dropped.
unsafe impl ReadRing for LateRing<'_> {
    unsafe fn start(&mut self, token: u64, id: ExpertId, out: NonNull<u8>, len: usize) {
        assert!(self.flying.iter().all(|f| f.0 != token && f.2 != out));
        assert_eq!(len, SLOT);
        self.source.started.lock().unwrap().push(id);
        self.flying.push(Flying(token, id, out, len));
        assert!(self.flying.len() <= self.reads);
        self.source.most_at_once.fetch_max(self.flying.len(), SeqCst);
    }

    fn wait(&mut self, ended: &mut Vec<(u64, RingEnd)>, most: Option<Duration>) {
        self.flying.iter().for_each(|f| f.write(0xee));
        if self.flying.is_empty() {
            let rung = self.bell.0.lock().unwrap();
            let most = most.unwrap_or(Duration::from_secs(3600));
            let (mut rung, _) = self.bell.1.wait_timeout_while(rung, most, |rung| !*rung).unwrap();
            *rung = false;
            return;
        }
        std::thread::sleep(self.source.trouble.delay);
        for _ in 0..=self.random(2) {
            if self.flying.is_empty() {
                return;
            }
            let i = self.random(self.flying.len());
            let (token, id) = (self.flying[i].0, self.flying[i].1);
            let end = self.end(id);
            let flying = self.flying.swap_remove(i);
            if matches!(end, RingEnd::Done(Ok(()))) {
                flying.write(byte(id));
            }
            ended.push((token, end));
        }
    }

    fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.bell))
    }
}

impl Drop for LateRing<'_> {
    fn drop(&mut self) {
        std::thread::sleep(self.source.trouble.delay);
        self.flying.iter().for_each(|f| f.write(0xee));
    }
}

fn over(source: &Arc<RingSource>, slots: usize, readers: usize) -> ExpertStore {
    store_with(Arc::clone(source) as _, StoreOptions { readers, ..plain(slots) })
}

/// Fetches of some layers' experts, with guesses at the next layer's amid them; every byte is looked at.
fn work(store: &mut ExpertStore, tokens: u16) -> Result<(), StoreError> {
    for t in 0..tokens {
        for l in 0..3 {
            let some =
                |l: u16, n: u16| -> Vec<_> { (0..n).map(|i| id(l, (t * 3 + l + 2 * i) % 8)).collect() };
            let ids = some(l, 4);
            let mut fetch = store.fetch(&ids, Use::DECODE)?;
            fetch.guess(&some((l + 1) % 3, 3))?;
            while let Some((i, lease)) = fetch.next()? {
                assert!(lease.bytes().iter().all(|&b| b == byte(ids[i])), "{lease:?} holds another record");
            }
        }
        store.tick();
    }
    Ok(())
}

#[test]
fn a_ring_reads_every_record_as_threads_do() {
    for (slots, readers) in [(0, 1), (1, 8), (3, 2), (6, 8), (24, 5)] {
        let source = RingSource::new(Trouble::default());
        let mut store = over(&source, slots, readers);
        work(&mut store, 40).unwrap();
        assert_eq!(source.read_by_threads(), 0);
        let most = source.most_at_once.load(SeqCst);
        assert!((1..=readers).contains(&most), "{most} of {readers}");
        assert!(store.stats().misses > 0);
    }
}

#[test]
fn where_there_is_no_ring_threads_read() {
    let source = RingSource::new(Trouble { never: true, ..Trouble::default() });
    let mut store = over(&source, 6, 4);
    work(&mut store, 20).unwrap();
    assert_eq!(source.started(), 0);
    assert!(source.read_by_threads() > 0);
}

#[test]
fn a_ring_that_is_refused_leaves_its_reads_to_threads() {
    for after in [0, 1, 2, 5, 11, 30] {
        for flaky in [None, Some(3)] {
            let source = RingSource::new(Trouble { refused_after: Some(after), flaky, ..Trouble::default() });
            let mut store = over(&source, 6, 4);
            work(&mut store, 20).unwrap();
            assert!(source.started() >= after && source.read_by_threads() > 0);
        }
    }
}

#[test]
fn failures_of_a_ring_are_tried_again_and_then_told() {
    let source = RingSource::new(Trouble { flaky: Some(7), ..Trouble::default() });
    let mut store = over(&source, 6, 4);
    work(&mut store, 20).unwrap();
    assert!(store.stats().retries > 0);
    let broken = id(1, 4);
    let source = RingSource::new(Trouble { broken: Some(broken), ..Trouble::default() });
    let mut store = over(&source, 6, 4);
    let start = Instant::now();
    let error = fetch_all(&mut store, &[broken]).unwrap_err();
    assert!(error.to_string().starts_with("expert 4 of layer 1 could not be read"), "{error}");
    assert!(start.elapsed() >= Duration::from_millis(90), "after 10 and 80 ms");
    assert_eq!((store.stats().retries, source.started()), (2, 3));
    // Others are read while it is tried again.
    assert!(fetch_all(&mut store, &[id(0, 0), broken, id(0, 1), id(0, 2)]).is_err());
    fetch_all(&mut store, &[id(0, 0), id(0, 1), id(0, 2)]).unwrap();
}

#[test]
fn what_is_needed_goes_before_what_is_worth_having() {
    let source = RingSource::new(Trouble { delay: Duration::from_millis(3), ..Trouble::default() });
    let mut store = over(&source, 24, 1);
    store.warm(&layer(0)).unwrap();
    fetch_all(&mut store, &[id(2, 2)]).unwrap();
    store.set_budget(0);
    let started = source.started.lock().unwrap();
    assert!(started.iter().position(|&s| s == id(2, 2)).is_some_and(|i| i < 7), "{started:?}");
}

#[test]
fn a_store_can_be_dropped_amid_reads() {
    for round in 0..60u64 {
        let delay = Duration::from_micros(50 * (round % 7));
        let source = RingSource::new(Trouble { delay, flaky: Some(4), ..Trouble::default() });
        let mut store = over(&source, 12, 8);
        fetch_all(&mut store, &[id(2, 1)]).unwrap();
        let held = store.fetch(&[id(2, 1)], Use::DECODE).unwrap().next().unwrap().unwrap().1;
        store.warm(&layer(0)).unwrap();
        std::thread::sleep(Duration::from_micros(30 * (round % 11)));
        drop(store);
        assert!(held.bytes().iter().all(|&b| b == byte(id(2, 1))));
    }
}

#[test]
fn a_ring_that_panics_leaves_nobody_waiting() {
    let source = RingSource::new(Trouble { panics_after: Some(10), ..Trouble::default() });
    let mut store = over(&source, 6, 4);
    let error = work(&mut store, 20).unwrap_err();
    assert!(error.to_string().contains("its reader panicked"), "{error}");
    work(&mut store, 20).unwrap();
    assert!(source.read_by_threads() > 0);
}
