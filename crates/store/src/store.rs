//! The store: which record lies in which slot, what is evicted, and reading what is missing.
//!
//! Bookkeeping is O(1) a record, but for a walk over slots that are leased at the time. Reads are made by the calling thread, one at a time.

use std::sync::Arc;

use spinetail_core::{ExpertId, ReadError, RecordSource, SLAB_ALIGN, SlabError, SlotMemory};

use crate::lru::Lru;
use crate::slot::{Held, Lease, Slot};

/// Slots lie at multiples of this: the block of every drive known. (Slabs are aligned to more, for pages of 16 KiB.)
const SLOT_ALIGN: usize = 4096;

/// Slabs are about this large; the last one may be smaller.
const SLAB_BYTES: usize = 64 << 20;

/// What the store may use.
#[derive(Debug, Clone, Copy)]
pub struct StoreOptions {
    /// Bytes of slot memory. Less than one record is allowed: then nothing is kept and every use is a read.
    pub budget_bytes: usize,
    /// Layers whose records will be asked for, from 0: slots are as large as the largest of their records.
    pub layers: u16,
}

/// What went wrong while records were fetched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A record could not be read.
    #[error("{id} could not be read: {error}")]
    Read {
        /// The record.
        id: ExpertId,
        /// Why.
        #[source]
        error: ReadError,
    },
    /// Slot memory could not be had.
    #[error(transparent)]
    Memory(#[from] SlabError),
    /// An id past the model's layers or experts.
    #[error("the model has no {id}")]
    Unknown {
        /// The id asked for.
        id: ExpertId,
    },
}

/// Counters since the store was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreStats {
    /// Records found in a slot.
    pub hits: u64,
    /// Records that had to be read.
    pub misses: u64,
    /// Bytes of records read.
    pub bytes_read: u64,
    /// Nanoseconds spent waiting for reads.
    pub read_ns: u64,
    /// Records that gave way to others.
    pub evictions: u64,
}

struct Entry {
    slot: Arc<Slot>,
    /// `None` after a failed read, until the slot is used again: it is then in `empty`.
    id: Option<ExpertId>,
}

/// A bounded cache of expert records.
pub struct ExpertStore {
    source: Arc<dyn RecordSource>,
    memory: Box<dyn SlotMemory>,
    slot_bytes: usize,
    max_slots: usize,
    /// Slots cut from a slab but never used yet.
    fresh: Vec<Slot>,
    entries: Vec<Entry>,
    /// Entries that hold no record, to be used before any record gives way.
    empty: Vec<u32>,
    lru: Lru,
    /// Entry of each record, by `layer · expert_count + expert`; `u32::MAX` when it is in none.
    table: Vec<u32>,
    experts: usize,
    stats: StoreStats,
}

const ABSENT: u32 = u32::MAX;

impl ExpertStore {
    /// A store over `source` whose slots come from `memory`. Nothing is allocated until a record is needed.
    pub fn new(source: Arc<dyn RecordSource>, memory: Box<dyn SlotMemory>, options: StoreOptions) -> Self {
        let layers = (0..options.layers).map_while(|l| source.record_layout(l));
        let largest = layers.map(|l| l.bytes as usize).max().unwrap_or(1);
        let slot_bytes = largest.next_multiple_of(SLOT_ALIGN);
        let experts = source.expert_count();
        let records = experts * usize::from(options.layers);
        Self {
            slot_bytes,
            max_slots: (options.budget_bytes / slot_bytes).min(records),
            fresh: Vec::new(),
            entries: Vec::new(),
            empty: Vec::new(),
            lru: Lru::default(),
            table: vec![ABSENT; records],
            experts,
            stats: StoreStats::default(),
            source,
            memory,
        }
    }

    /// Counters so far.
    pub fn stats(&self) -> StoreStats {
        self.stats
    }

    /// Bytes of one slot.
    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// Slots that the budget allows.
    pub fn max_slots(&self) -> usize {
        self.max_slots
    }

    /// Starts fetching `ids`, which are distinct. Leases come through [`Fetch::next`]: first the records that are in
    /// memory, in the order of `ids`, then the others as each is read.
    pub fn fetch<'s>(&'s mut self, ids: &'s [ExpertId]) -> Fetch<'s> {
        debug_assert!((1..ids.len()).all(|i| !ids[..i].contains(&ids[i])), "ids are distinct: {ids:?}");
        Fetch { store: self, ids, next: 0, pass: Pass::Hits, missing: Vec::new() }
    }

    fn index(&self, id: ExpertId) -> Result<usize, StoreError> {
        let i = usize::from(id.layer) * self.experts + usize::from(id.expert);
        if usize::from(id.expert) >= self.experts || i >= self.table.len() {
            return Err(StoreError::Unknown { id });
        }
        Ok(i)
    }

    fn lookup(&mut self, id: ExpertId) -> Result<Option<Lease>, StoreError> {
        let entry = self.table[self.index(id)?];
        if entry == ABSENT {
            return Ok(None);
        }
        self.lru.touch(entry);
        self.stats.hits += 1;
        Ok(Some(Lease { id, held: Held::Slot(Arc::clone(&self.entries[entry as usize].slot)) }))
    }

    fn load(&mut self, id: ExpertId) -> Result<Lease, StoreError> {
        let index = self.index(id)?;
        self.stats.misses += 1;
        let Some(entry) = self.vacate()? else {
            return self.pass_through(id);
        };
        let e = &mut self.entries[entry as usize];
        let slot = Arc::get_mut(&mut e.slot).expect("vacate returns only slots that nobody leases");
        let read = timed_read(&*self.source, id, slot.bytes_mut(), &mut self.stats);
        // The slot's old record is gone whether or not the read succeeded.
        e.id = read.is_ok().then_some(id);
        if let Err(e) = read {
            self.empty.push(entry);
            return Err(e);
        }
        self.table[index] = entry;
        self.lru.touch(entry);
        Ok(Lease { id, held: Held::Slot(Arc::clone(&self.entries[entry as usize].slot)) })
    }

    /// A slot that nobody leases: a new one while the budget lasts, else the least recently used. `None` when every
    /// slot is leased or there are none.
    fn vacate(&mut self) -> Result<Option<u32>, StoreError> {
        if let Some(entry) = self.empty.pop() {
            return Ok(Some(entry));
        }
        if self.entries.len() < self.max_slots {
            if self.fresh.is_empty() {
                self.grow()?;
            }
            if let Some(slot) = self.fresh.pop() {
                self.entries.push(Entry { slot: Arc::new(slot), id: None });
                return Ok(Some(self.lru.push()));
            }
        }
        let entries = &mut self.entries;
        let victim = self.lru.iter().find(|&s| Arc::get_mut(&mut entries[s as usize].slot).is_some());
        if let Some(old) = victim.and_then(|v| self.entries[v as usize].id.take()) {
            let index = self.index(old)?;
            self.table[index] = ABSENT;
            self.stats.evictions += 1;
        }
        Ok(victim)
    }

    fn grow(&mut self) -> Result<(), StoreError> {
        let wanted = self.max_slots - self.entries.len();
        let slots = wanted.min((SLAB_BYTES / self.slot_bytes).max(1));
        let bytes = (slots * self.slot_bytes).next_multiple_of(SLAB_ALIGN);
        let slab = self.memory.allocate(bytes)?;
        self.fresh = Slot::cut(slab, self.slot_bytes);
        self.fresh.truncate(slots);
        // Slots are taken from the end: the first one first, so that memory is touched in order.
        self.fresh.reverse();
        Ok(())
    }

    fn pass_through(&mut self, id: ExpertId) -> Result<Lease, StoreError> {
        let mut bytes = vec![0; self.slot_bytes];
        timed_read(&*self.source, id, &mut bytes, &mut self.stats)?;
        Ok(Lease { id, held: Held::Buffer(Arc::new(bytes)) })
    }
}

fn timed_read(
    source: &dyn RecordSource,
    id: ExpertId,
    out: &mut [u8],
    stats: &mut StoreStats,
) -> Result<(), StoreError> {
    let layout = source.record_layout(id.layer).ok_or(StoreError::Unknown { id })?;
    let start = std::time::Instant::now();
    source.read_record(id, out).map_err(|error| StoreError::Read { id, error })?;
    stats.read_ns += start.elapsed().as_nanos() as u64;
    stats.bytes_read += layout.bytes;
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Pass {
    Hits,
    Misses,
}

/// Records on their way; see [`ExpertStore::fetch`].
pub struct Fetch<'s> {
    store: &'s mut ExpertStore,
    ids: &'s [ExpertId],
    next: usize,
    pass: Pass,
    missing: Vec<usize>,
}

impl Fetch<'_> {
    /// The next record that is ready, with its index in the ids asked for; `None` when all have been handed out.
    ///
    /// Drop the lease before asking for the next one where possible: a leased slot cannot be reused.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<(usize, Lease)>, StoreError> {
        while self.pass == Pass::Hits {
            let i = self.next;
            let Some(&id) = self.ids.get(i) else {
                self.pass = Pass::Misses;
                self.next = 0;
                break;
            };
            self.next += 1;
            if let Some(lease) = self.store.lookup(id)? {
                return Ok(Some((i, lease)));
            }
            self.missing.push(i);
        }
        let Some(&i) = self.missing.get(self.next) else {
            return Ok(None);
        };
        self.next += 1;
        Ok(Some((i, self.store.load(self.ids[i])?)))
    }
}

#[cfg(test)]
mod tests;
