//! The store over a source in memory, with and without faults.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::Mutex;

use spinetail_core::{DType, RecordLayout, Slab, TensorSpec};

use super::*;

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
    broken: Option<ExpertId>,
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
        match self.broken == Some(id) {
            true => Err(ReadError::Unknown { what: id.to_string() }),
            false => Ok(()),
        }
    }
}

fn source(broken: Option<ExpertId>) -> Arc<TestSource> {
    let m = || TensorSpec::plain(&[32, 32], DType::F32);
    let layout = RecordLayout::packed(m(), m(), m());
    Arc::new(TestSource { layout, reads: Mutex::default(), broken })
}

fn store(source: &Arc<TestSource>, slots: usize) -> ExpertStore {
    let source: Arc<dyn RecordSource> = Arc::clone(source) as _;
    let options = StoreOptions { budget_bytes: slots * 12288, layers: 3 };
    let store = ExpertStore::new(source, Box::new(TestMemory), options);
    assert_eq!((store.slot_bytes(), store.max_slots()), (12288, slots.min(24)));
    store
}

fn id(layer: u16, expert: u16) -> ExpertId {
    ExpertId { layer, expert }
}

fn fetch_all(store: &mut ExpertStore, ids: &[ExpertId]) -> Result<Vec<usize>, StoreError> {
    let mut order = Vec::new();
    let mut fetch = store.fetch(ids);
    while let Some((i, lease)) = fetch.next()? {
        assert_eq!(lease.id(), ids[i]);
        assert!(lease.bytes().iter().all(|&b| b == byte(ids[i])), "{lease:?} holds another record");
        order.push(i);
    }
    Ok(order)
}

#[test]
fn hits_come_first_and_every_record_is_read_once() {
    let source = source(None);
    let mut store = store(&source, 6);
    assert_eq!(fetch_all(&mut store, &[id(0, 1), id(0, 5)]).unwrap(), [0, 1]);
    assert_eq!(fetch_all(&mut store, &[id(0, 0), id(0, 1), id(0, 5)]).unwrap(), [1, 2, 0]);
    assert_eq!(source.reads.lock().unwrap().as_slice(), [id(0, 1), id(0, 5), id(0, 0)]);
    let s = store.stats();
    assert_eq!((s.hits, s.misses, s.evictions, s.bytes_read), (2, 3, 0, 3 * 12288));
}

#[test]
fn the_least_recently_used_record_gives_way() {
    let source = source(None);
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
    let source = source(None);
    let mut store = store(&source, 2);
    let held = store.fetch(&[id(2, 3)]).next().unwrap().unwrap().1;
    for expert in 0..8 {
        fetch_all(&mut store, &[id(0, expert)]).unwrap();
        assert!(held.bytes().iter().all(|&b| b == byte(id(2, 3))));
    }
    let second = store.fetch(&[id(1, 1)]).next().unwrap().unwrap().1;
    // Both slots are leased: the read goes through a buffer of its own.
    assert_eq!(fetch_all(&mut store, &[id(0, 0), id(1, 1)]).unwrap(), [1, 0]);
    assert!(second.bytes().iter().all(|&b| b == byte(id(1, 1))));
}

#[test]
fn leases_outlive_the_store() {
    let source = source(None);
    let mut store = store(&source, 1);
    let held = store.fetch(&[id(2, 3)]).next().unwrap().unwrap().1;
    drop(store);
    assert!(held.bytes().iter().all(|&b| b == byte(id(2, 3))));
}

#[test]
fn a_budget_below_one_record_still_works() {
    let source = source(None);
    let mut store = store(&source, 0);
    fetch_all(&mut store, &[id(0, 0), id(0, 1)]).unwrap();
    fetch_all(&mut store, &[id(0, 0)]).unwrap();
    assert_eq!((store.stats().hits, store.stats().misses), (0, 3));
}

#[test]
fn a_failed_read_leaves_no_wrong_record_behind() {
    let source = source(Some(id(1, 4)));
    let mut store = store(&source, 1);
    fetch_all(&mut store, &[id(0, 0)]).unwrap();
    let error = fetch_all(&mut store, &[id(1, 4)]).unwrap_err();
    assert!(error.to_string().starts_with("expert 4 of layer 1 could not be read"), "{error}");
    // Neither the broken record nor the one it displaced may be taken for present.
    assert!(fetch_all(&mut store, &[id(1, 4)]).is_err());
    fetch_all(&mut store, &[id(0, 0)]).unwrap();
    assert_eq!(store.stats().hits, 0);
}

#[test]
fn ids_past_the_model_are_refused() {
    let source = source(None);
    let mut store = store(&source, 1);
    for bad in [id(3, 0), id(0, 8), id(u16::MAX, u16::MAX)] {
        assert!(matches!(fetch_all(&mut store, &[bad]), Err(StoreError::Unknown { id }) if id == bad));
    }
}
