//! The store over a source in memory, with and without faults.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::Mutex;
use std::time::Duration;

use spinetail_core::{DType, ReadError, RecordLayout, SLAB_ALIGN, Slab, SlabError, TensorSpec};

use super::*;
use crate::{Fault, FaultySource};

mod ring;
mod stall;

struct TestSlab(NonNull<u8>, Layout);

// SAFETY: plain heap memory, owned by this value alone.
unsafe impl Send for TestSlab {}
// SAFETY: as above.
unsafe impl Sync for TestSlab {}
// SAFETY: the block is zeroed, aligned and lives until drop.
unsafe impl Slab for TestSlab {
    fn base(&self) -> NonNull<u8> {
        self.0
    }
    fn len(&self) -> usize {
        self.1.size()
    }
}

impl Drop for TestSlab {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.0.as_ptr(), self.1) }
    }
}

struct TestMemory;

impl SlotMemory for TestMemory {
    fn allocate(&self, bytes: usize) -> Result<Box<dyn Slab>, SlabError> {
        let layout = Layout::from_size_align(bytes, SLAB_ALIGN).map_err(|_| SlabError { bytes })?;
        // SAFETY: the layout is not empty.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(SlabError { bytes })?;
        Ok(Box::new(TestSlab(base, layout)))
    }
}

/// Records whose every byte tells whose they are.
struct TestSource {
    layout: RecordLayout,
    reads: Mutex<Vec<ExpertId>>,
}

fn byte(id: ExpertId) -> u8 {
    (usize::from(id.layer) * 8 + usize::from(id.expert) + 1) as u8
}

impl RecordSource for TestSource {
    fn record_layout(&self, layer: u16) -> Option<&RecordLayout> {
        (layer < 3).then_some(&self.layout)
    }
    fn expert_count(&self) -> usize {
        8
    }
    fn read_record(&self, id: ExpertId, out: &mut [u8]) -> Result<(), ReadError> {
        self.reads.lock().unwrap().push(id);
        out.fill(byte(id));
        Ok(())
    }
}

fn source() -> Arc<TestSource> {
    let m = || TensorSpec::plain(&[32, 32], DType::F32);
    let layout = RecordLayout::packed(m(), m(), m());
    Arc::new(TestSource { layout, reads: Mutex::default() })
}

const SLOT: usize = 16384;

/// Least recently used, one reader: what happens can be said beforehand.
fn plain(slots: usize) -> StoreOptions {
    StoreOptions { readers: 1, policy: PolicyKind::Lru, ..StoreOptions::new(slots * SLOT, 3) }
}

fn store_with(source: Arc<dyn RecordSource>, options: StoreOptions) -> ExpertStore {
    let store = ExpertStore::new(source, Box::new(TestMemory), options);
    assert_eq!((store.slot_bytes(), store.max_slots()), (SLOT, (options.budget_bytes / SLOT).min(24)));
    store
}

fn store(source: &Arc<TestSource>, slots: usize) -> ExpertStore {
    store_with(Arc::clone(source) as _, plain(slots))
}

fn faulty(faults: Vec<Fault>, options: StoreOptions) -> ExpertStore {
    store_with(Arc::new(FaultySource::new(source(), faults, 7)), options)
}

fn id(layer: u16, expert: u16) -> ExpertId {
    ExpertId { layer, expert }
}

fn fetch_how(store: &mut ExpertStore, ids: &[ExpertId], how: Use) -> Result<Vec<usize>, StoreError> {
    let mut order = Vec::new();
    let mut fetch = store.fetch(ids, how)?;
    while let Some((i, lease)) = fetch.next()? {
        assert_eq!(lease.id(), ids[i]);
        assert!(lease.bytes().iter().all(|&b| b == byte(ids[i])), "{lease:?} holds another record");
        order.push(i);
    }
    drop(fetch);
    store.tick();
    Ok(order)
}

fn fetch_all(store: &mut ExpertStore, ids: &[ExpertId]) -> Result<Vec<usize>, StoreError> {
    fetch_how(store, ids, Use::DECODE)
}

fn layer(layer: u16) -> Vec<ExpertId> {
    (0..8).map(|e| id(layer, e)).collect()
}

#[test]
fn hits_come_first_and_every_record_is_read_once() {
    let source = source();
    let mut store = store(&source, 6);
    assert_eq!(fetch_all(&mut store, &[id(0, 1), id(0, 5)]).unwrap(), [0, 1]);
    assert_eq!(fetch_all(&mut store, &[id(0, 0), id(0, 1), id(0, 5)]).unwrap(), [1, 2, 0]);
    assert_eq!(source.reads.lock().unwrap().as_slice(), [id(0, 1), id(0, 5), id(0, 0)]);
    let s = store.stats();
    assert_eq!((s.hits, s.misses, s.late, s.evictions), (2, 3, 0, 0));
    assert_eq!((s.bytes_read, s.reads), (3 * 12288, 3));
}

#[test]
fn the_least_recently_used_record_gives_way() {
    let source = source();
    let mut store = store(&source, 2);
    fetch_all(&mut store, &[id(0, 0), id(0, 1)]).unwrap();
    fetch_all(&mut store, &[id(0, 0)]).unwrap();
    fetch_all(&mut store, &[id(1, 7)]).unwrap();
    assert_eq!(store.stats().evictions, 1);
    fetch_all(&mut store, &[id(0, 0)]).unwrap();
    assert_eq!(store.stats().misses, 3, "0 was used more recently than 1, so 1 was evicted");
}

#[test]
fn a_leased_slot_is_never_reused() {
    let source = source();
    let mut store = store(&source, 2);
    let held = store.fetch(&[id(2, 3)], Use::DECODE).unwrap().next().unwrap().unwrap().1;
    for expert in 0..8 {
        fetch_all(&mut store, &[id(0, expert)]).unwrap();
        assert!(held.bytes().iter().all(|&b| b == byte(id(2, 3))));
    }
    let second = store.fetch(&[id(1, 1)], Use::DECODE).unwrap().next().unwrap().unwrap().1;
    // Both slots are leased: the read goes through memory of its own.
    assert_eq!(fetch_all(&mut store, &[id(0, 0), id(1, 1)]).unwrap(), [1, 0]);
    assert!(second.bytes().iter().all(|&b| b == byte(id(1, 1))));
}

#[test]
fn leases_outlive_the_store() {
    let source = source();
    let mut store = store(&source, 1);
    let held = store.fetch(&[id(2, 3)], Use::DECODE).unwrap().next().unwrap().unwrap().1;
    drop(store);
    assert!(held.bytes().iter().all(|&b| b == byte(id(2, 3))));
}

#[test]
fn a_budget_below_one_record_still_works() {
    let source = source();
    let mut store = store(&source, 0);
    fetch_all(&mut store, &[id(0, 0), id(0, 1)]).unwrap();
    fetch_all(&mut store, &[id(0, 0)]).unwrap();
    assert_eq!((store.stats().hits, store.stats().misses), (0, 3));
}

#[test]
fn a_failed_read_leaves_no_wrong_record_behind() {
    let mut store = faulty(vec![Fault::Broken(id(1, 4))], plain(1));
    fetch_all(&mut store, &[id(0, 0)]).unwrap();
    let error = fetch_all(&mut store, &[id(1, 4)]).unwrap_err();
    assert!(error.to_string().starts_with("expert 4 of layer 1 could not be read"), "{error}");
    assert_eq!(store.stats().retries, 2);
    // Neither the broken record nor the one it displaced may be taken for present.
    assert!(fetch_all(&mut store, &[id(1, 4)]).is_err());
    fetch_all(&mut store, &[id(0, 0)]).unwrap();
    assert_eq!(store.stats().hits, 0);
}

#[test]
fn an_error_is_not_blamed_on_the_next_fetch() {
    let faults = vec![Fault::Short(id(1, 0)), Fault::Broken(id(1, 1)), Fault::Broken(id(1, 2))];
    let mut store = faulty(faults, StoreOptions { readers: 4, ..plain(8) });
    // The short read fails at once; the others are still being tried again when the next fetch waits.
    assert!(fetch_all(&mut store, &[id(1, 0), id(1, 1), id(1, 2)]).is_err());
    for _ in 0..3 {
        fetch_all(&mut store, &layer(0)).unwrap();
        fetch_all(&mut store, &layer(2)).unwrap();
    }
}

#[test]
fn faults_that_pass_are_not_seen() {
    for readers in [1, 3, 8] {
        let faults = vec![Fault::Delay(Duration::from_micros(300)), Fault::Flaky(4)];
        let mut store = faulty(faults, StoreOptions { readers, ..StoreOptions::new(5 * SLOT, 3) });
        for round in 0..4 {
            for l in 0..3 {
                let how = Use { in_order: round % 2 == 1, sweep: round > 1, ..Use::DECODE };
                let mut order = fetch_how(&mut store, &layer(l), how).unwrap();
                assert!(!how.in_order || order.is_sorted());
                order.sort_unstable();
                assert_eq!(order, [0, 1, 2, 3, 4, 5, 6, 7]);
            }
        }
        assert!(store.stats().retries > 0);
    }
}

#[test]
fn ids_past_the_model_are_refused() {
    let source = source();
    let mut store = store(&source, 1);
    for bad in [id(3, 0), id(0, 8), id(u16::MAX, u16::MAX)] {
        assert!(matches!(fetch_all(&mut store, &[bad]), Err(StoreError::Unknown { id }) if id == bad));
        assert!(store.guess(&[bad]).is_err() && store.warm(&[bad]).is_err());
    }
}

#[test]
fn leases_in_order_need_no_more_than_one_slot() {
    for slots in 0..9 {
        let source = source();
        let mut store = store(&source, slots);
        let how = Use { in_order: true, sweep: true, weight: 0.0 };
        for _ in 0..2 {
            assert_eq!(
                fetch_how(&mut store, &layer(1), how).unwrap(),
                [0, 1, 2, 3, 4, 5, 6, 7],
                "{slots} slots"
            );
        }
        assert!(store.allocated_bytes() <= slots * SLOT);
    }
}

#[test]
fn guesses_are_read_and_counted_and_never_evict_what_was_just_used() {
    let source = source();
    let mut store = store(&source, 3);
    fetch_all(&mut store, &[id(0, 0), id(0, 1)]).unwrap();
    store.guess(&[id(1, 0), id(1, 1)]).unwrap();
    // One slot was free; the other two hold what the last token used.
    assert_eq!((store.stats().guesses, store.in_flight()), (1, 1));
    fetch_all(&mut store, &[id(1, 0)]).unwrap();
    let s = store.stats();
    assert_eq!((s.guesses_used, s.hits + s.late, s.misses), (1, 1, 2));
    store.tick();
    store.tick();
    // Now they may go. Neither guess is used: both are waste once they give way.
    store.guess(&[id(2, 0), id(2, 1)]).unwrap();
    while store.in_flight() > 0 {
        assert!(store.wait().is_none());
    }
    fetch_all(&mut store, &[id(0, 4), id(0, 5), id(0, 6)]).unwrap();
    assert_eq!(store.stats().wasted_bytes, 2 * 12288);
}

#[test]
fn guesses_amid_a_fetch_lose_none_of_its_records() {
    for delay_us in [0, 50, 500] {
        let options = StoreOptions { readers: 3, ..StoreOptions::new(12 * SLOT, 3) };
        let mut store = faulty(vec![Fault::Delay(Duration::from_micros(delay_us))], options);
        for round in 0..60u16 {
            let (now, next) = (layer(round % 3), layer((round + 1) % 3));
            let mut fetch = store.fetch(&now[..4], Use::DECODE).unwrap();
            std::thread::sleep(Duration::from_micros(200));
            fetch.guess(&next[2..6]).unwrap();
            let mut seen = Vec::new();
            while let Some((i, lease)) = fetch.next().unwrap() {
                assert!(lease.bytes().iter().all(|&b| b == byte(now[i])));
                seen.push(i);
            }
            seen.sort_unstable();
            assert_eq!(seen, [0, 1, 2, 3]);
            drop(fetch);
            store.tick();
        }
        assert!(store.stats().guesses_used > 0);
    }
}

#[test]
fn errors_of_guesses_are_silent_until_the_record_is_needed() {
    let mut store = faulty(vec![Fault::Short(id(1, 4))], plain(4));
    store.guess(&[id(1, 4)]).unwrap();
    fetch_all(&mut store, &[id(0, 0), id(0, 1)]).unwrap();
    assert!(fetch_all(&mut store, &[id(1, 4)]).is_err());
}

#[test]
fn a_budget_that_shrinks_gives_slabs_back() {
    let source = source();
    let mut store = store(&source, 24);
    store.preload(&mut |_, _| {}).unwrap();
    assert_eq!((store.allocated_bytes(), source.reads.lock().unwrap().len()), (24 * SLOT, 24));
    let held = store.fetch(&[id(2, 7)], Use::DECODE).unwrap().next().unwrap().unwrap().1;
    store.guess(&[id(0, 0)]).unwrap();
    store.set_budget(5 * SLOT);
    assert!(store.allocated_bytes() <= 5 * SLOT);
    assert!(
        held.bytes().iter().all(|&b| b == byte(id(2, 7))),
        "a lease outlives its slab's place in the store"
    );
    for l in 0..3 {
        fetch_all(&mut store, &layer(l)).unwrap();
    }
    store.set_budget(24 * SLOT);
    for _ in 0..2 {
        for l in 0..3 {
            fetch_all(&mut store, &layer(l)).unwrap();
        }
    }
    assert!(store.stats().hits >= 24);
    assert_eq!(store.allocated_bytes(), 24 * SLOT);
}

#[test]
fn what_is_worth_having_is_remembered() {
    let source = source();
    let options = StoreOptions { readers: 1, ..StoreOptions::new(6 * SLOT, 3) };
    let mut store = store_with(Arc::clone(&source) as _, options);
    for token in 0..20 {
        fetch_all(
            &mut store,
            &[id(0, 3), id(0, token % 8)]
                .into_iter()
                .take(if token % 8 == 3 { 1 } else { 2 })
                .collect::<Vec<_>>(),
        )
        .unwrap();
        fetch_all(&mut store, &[id(1, 6)]).unwrap();
    }
    let hot = store.hottest(2);
    assert!(hot.contains(&id(0, 3)) && hot.contains(&id(1, 6)), "{hot:?}");
    let mut next = store_with(Arc::clone(&source) as _, options);
    next.seed(&hot);
    assert_eq!(next.warm(&hot).unwrap(), 2);
    fetch_all(&mut next, &[id(0, 3), id(1, 6)]).unwrap();
    assert_eq!(next.stats().misses, 0);
}

/// Whatever is asked for in whatever order, every lease holds its record, and nothing waits for ever.
#[test]
fn any_order_of_requests_gives_the_right_bytes() {
    for seed in 0..12u64 {
        let mut state = seed;
        let mut random = move |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        let policies = [PolicyKind::Lru, PolicyKind::DecayedLfu, PolicyKind::Clock, PolicyKind::S3Fifo];
        let options = StoreOptions {
            readers: 1 + random(4) as usize,
            policy: policies[random(4) as usize],
            ..StoreOptions::new(random(20) as usize * SLOT, 3)
        };
        let faults = vec![Fault::Delay(Duration::from_micros(random(80))), Fault::Flaky(100)];
        let mut store = faulty(faults, options);
        let mut held: Vec<Lease> = Vec::new();
        for _ in 0..250 {
            let some = |random: &mut dyn FnMut(u64) -> u64| -> Vec<ExpertId> {
                let (l, mask) = (random(3) as u16, random(256));
                (0..8).filter(|e| mask >> e & 1 == 1).map(|e| id(l, e)).collect()
            };
            match random(8) {
                0 => store.guess(&some(&mut random)).unwrap(),
                1 => drop(store.warm(&some(&mut random)).unwrap()),
                2 if random(4) == 0 => {
                    held.clear();
                    store.set_budget(random(24) as usize * SLOT);
                }
                _ => {
                    let ids = some(&mut random);
                    let how = Use { in_order: random(2) == 0, sweep: random(3) == 0, weight: 1.0 };
                    let mut fetch = store.fetch(&ids, how).unwrap();
                    if random(3) == 0 {
                        fetch.guess(&some(&mut random)).unwrap();
                    }
                    let mut seen = Vec::new();
                    // Now and then the rest is not wanted any more.
                    let most = if random(10) == 0 { random(4) as usize } else { usize::MAX };
                    while seen.len() < most {
                        let Some((i, lease)) = fetch.next().unwrap() else { break };
                        assert!(lease.bytes().iter().all(|&b| b == byte(ids[i])), "{lease:?}");
                        seen.push(i);
                        if random(12) == 0 {
                            held.push(lease);
                        }
                    }
                    drop(fetch);
                    assert!(most < usize::MAX || seen.len() == ids.len());
                    assert!(!how.in_order || seen.is_sorted());
                    held.truncate(3);
                    store.tick();
                }
            }
            for lease in &held {
                assert!(
                    lease.bytes().iter().all(|&b| b == byte(lease.id())),
                    "{lease:?} changed under its holder"
                );
            }
        }
    }
}

/// A source that panics ends no more than the read.
#[test]
fn a_reader_that_panics_is_an_error() {
    struct Panics(Arc<TestSource>);
    impl RecordSource for Panics {
        fn record_layout(&self, layer: u16) -> Option<&RecordLayout> {
            self.0.record_layout(layer)
        }
        fn expert_count(&self) -> usize {
            8
        }
        fn read_record(&self, id: ExpertId, out: &mut [u8]) -> Result<(), ReadError> {
            assert!(id.expert != 5, "on purpose");
            self.0.read_record(id, out)
        }
    }
    let mut store = store_with(Arc::new(Panics(source())), plain(4));
    let error = fetch_all(&mut store, &[id(0, 5)]).unwrap_err().to_string();
    assert!(error.contains("its reader panicked"), "{error}");
    fetch_all(&mut store, &[id(0, 1), id(0, 2)]).unwrap();
}
