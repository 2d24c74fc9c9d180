//! The store: which record lies in which slot, what is being read, and what gives way.
//!
//! Bookkeeping is O(1) a record, but for a walk over slots that are leased at the time.

use std::sync::Arc;
use std::time::Duration;

use spinetail_core::{ExpertId, RecordSource, SlotMemory};

use crate::error::StoreError;
use crate::policy::{Arrival, DecayedLfu, Policy, PolicyKind};
use crate::readers::{Done, Job, Readers, Urgency};
use crate::slabs::SlabPlan;
use crate::slot::{Lease, Slot};
use crate::stats::StoreStats;

/// What the store may use, and how it goes about it. Only the budget and `layers` have a right value; the output of a
/// model depends on none of it.
#[derive(Debug, Clone, Copy)]
pub struct StoreOptions {
    /// Bytes of slot memory. Less than one record is allowed: then nothing is kept and every use is a read.
    pub budget_bytes: usize,
    /// Layers whose records will be asked for, from 0: slots are as large as the largest of their records.
    pub layers: u16,
    /// Reads on their way at once, each by a thread unless the source has a ring; at least 1.
    pub readers: usize,
    /// What gives way.
    pub policy: PolicyKind,
    /// For the policies that forget: tokens after which a use counts half.
    pub half_life_tokens: f64,
    /// How long a read that is waited for may take before a warning says that the drive does not answer, and how long
    /// until the next.
    pub patience: Duration,
}

impl StoreOptions {
    /// Reads on their way at once that are enough for every drive that was measured, though some want fewer, and so do few
    /// processors (docs/performance.md).
    pub const DEFAULT_READERS: usize = 8;

    /// The defaults, with a budget.
    pub fn new(budget_bytes: usize, layers: u16) -> Self {
        Self {
            budget_bytes,
            layers,
            readers: Self::DEFAULT_READERS,
            policy: PolicyKind::DecayedLfu,
            half_life_tokens: DecayedLfu::HALF_LIFE_TOKENS,
            patience: Duration::from_secs(5),
        }
    }
}

/// How a batch uses the records that it fetches.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Use {
    /// What a use says about the next token, for the policy: see [`Policy::used`].
    pub weight: f32,
    /// Whether the batch is a prefill chunk, which needs nearly every record once.
    pub sweep: bool,
    /// Whether leases come in the order of the ids asked for, or as each is ready.
    pub in_order: bool,
}

impl Use {
    /// By decoded tokens: what is there first, then the others as they come.
    pub const DECODE: Self = Self { weight: 1.0, sweep: false, in_order: false };
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Empty,
    /// With a reader. `wanted`: a token waits for it.
    Loading {
        record: u32,
        arrival: Arrival,
        wanted: bool,
    },
    /// `guess`: read ahead, and not used yet.
    Held {
        record: u32,
        guess: bool,
    },
}

struct Entry {
    /// `None` while a reader has it.
    slot: Option<Arc<Slot>>,
    state: State,
}

/// A bounded cache of expert records.
pub struct ExpertStore {
    source: Arc<dyn RecordSource>,
    memory: Box<dyn SlotMemory>,
    readers: Readers,
    plan: SlabPlan,
    record_bytes: usize,
    /// Slots of each slab, in order of their entries.
    slabs: Vec<usize>,
    entries: Vec<Entry>,
    /// Entries that hold no record, to be used before any record gives way.
    empty: Vec<u32>,
    policy: Box<dyn Policy>,
    /// Entry of each record, `ABSENT` when it is in none.
    table: Vec<u32>,
    /// The token that used each record last.
    used_at: Vec<u32>,
    token: u32,
    experts: usize,
    /// Jobs that readers have or will have.
    in_flight: usize,
    guesses_in_flight: usize,
    /// Buffers of reads that found no slot: they are dropped with their lease.
    passing: Vec<(u32, Arc<Slot>)>,
    /// Records that the fetch at hand reads past the cache.
    passing_wanted: Vec<u32>,
    /// Of a read that somebody waits for and that was taken in by the way.
    failed: Option<StoreError>,
    pub(crate) stats: StoreStats,
}

const ABSENT: u32 = u32::MAX;
/// The entry of a job whose slot is no slot of the cache.
const PASSING: u32 = u32::MAX - 1;

impl ExpertStore {
    /// A store over `source` whose slots come from `memory`. Nothing is allocated until a record is needed.
    pub fn new(source: Arc<dyn RecordSource>, memory: Box<dyn SlotMemory>, options: StoreOptions) -> Self {
        let layers = (0..options.layers).map_while(|l| source.record_layout(l));
        let record_bytes = layers.map(|l| l.bytes as usize).max().unwrap_or(1);
        let experts = source.expert_count();
        let records = experts * usize::from(options.layers);
        let policy = options.policy.build(records as u32, options.half_life_tokens);
        // Belady's needs the future.
        let policy =
            policy.or_else(|| PolicyKind::DecayedLfu.build(records as u32, DecayedLfu::HALF_LIFE_TOKENS));
        Self {
            plan: SlabPlan::new(record_bytes, options.budget_bytes, records),
            record_bytes,
            slabs: Vec::new(),
            entries: Vec::new(),
            empty: Vec::new(),
            policy: policy.expect("every policy but Belady's can be built"),
            table: vec![ABSENT; records],
            used_at: vec![0; records],
            // The first token finds nothing used in the last one.
            token: 2,
            experts,
            in_flight: 0,
            guesses_in_flight: 0,
            passing: Vec::new(),
            passing_wanted: Vec::new(),
            failed: None,
            stats: StoreStats::default(),
            readers: Readers::new(Arc::clone(&source), options.readers, options.patience),
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
        self.plan.slot_bytes
    }

    /// Slots that the budget allows.
    pub fn max_slots(&self) -> usize {
        self.plan.max_slots
    }

    /// Bytes of the slabs that have been allocated.
    pub fn allocated_bytes(&self) -> usize {
        self.slabs.iter().map(|&n| self.plan.bytes(n)).sum()
    }

    /// Whether every record has a slot of its own.
    pub fn holds_everything(&self) -> bool {
        self.plan.max_slots == self.table.len()
    }

    /// Whether records have to give way by now.
    pub fn is_full(&self) -> bool {
        self.empty.is_empty() && self.entries.len() == self.plan.max_slots
    }

    /// The end of a token, or of a prefill chunk: uses grow old by one.
    pub fn tick(&mut self) {
        self.token += 1;
        self.policy.tick();
    }

    /// Changes the budget. When it shrinks, whole slabs go back to the operating system, once what is being read has
    /// come and leases on their slots are dropped.
    pub fn set_budget(&mut self, budget_bytes: usize) {
        self.take_back_guesses();
        self.take_back(Urgency::Warm);
        while self.in_flight > 0 {
            let done = self.readers.wait();
            self.settle(done);
        }
        self.plan = SlabPlan::new(self.record_bytes, budget_bytes, self.table.len());
        // A slab that is no whole one goes as well: others may follow it, and each wastes part of a page.
        while self.entries.len() > self.plan.max_slots
            || self.slabs.last().is_some_and(|&n| n < self.plan.slots)
        {
            let slots = self.slabs.pop().expect("entries belong to slabs");
            for entry in self.entries.drain(self.entries.len() - slots..) {
                if let State::Held { record, .. } = entry.state {
                    self.table[record as usize] = ABSENT;
                    self.policy.removed(record);
                    self.stats.evictions += 1;
                }
            }
        }
        let left = self.entries.len() as u32;
        self.empty.retain(|&e| e < left);
    }

    /// Reads records ahead that may be needed soon; what was asked for before and has not been begun is forgotten. A guess
    /// never takes the slot of a record that this token or the last one used, and never goes before what is needed.
    pub fn guess(&mut self, ids: &[ExpertId]) -> Result<(), StoreError> {
        self.settle_all();
        self.take_back_guesses();
        for &id in ids {
            let record = self.record(id)?;
            if self.table[record as usize] != ABSENT || self.guesses_in_flight >= 2 * self.readers.count() {
                continue;
            }
            let Some(entry) = self.vacate(true)? else { break };
            self.stats.guesses += 1;
            self.guesses_in_flight += 1;
            self.start(record, entry, Arrival::Guess, false, Urgency::Guess)?;
        }
        Ok(())
    }

    /// Begins to read `ids` into slots that are free, after everything that is needed; returns how many were begun. What
    /// is in memory already, and what finds no free slot, is left out.
    pub fn warm(&mut self, ids: &[ExpertId]) -> Result<usize, StoreError> {
        let mut begun = 0;
        for &id in ids {
            let record = self.record(id)?;
            if self.table[record as usize] != ABSENT {
                continue;
            }
            let Some(entry) = self.free_slot()? else { break };
            // Its worth is what the policy was seeded with; nobody guessed.
            self.start(record, entry, Arrival::Demand, false, Urgency::Warm)?;
            begun += 1;
        }
        Ok(begun)
    }

    /// Reads records until all are in memory or every slot is taken, in the order of their ids.
    ///
    /// `progress` is told records read and records to read.
    pub fn preload(&mut self, progress: &mut dyn FnMut(u64, u64)) -> Result<(), StoreError> {
        let free = self.plan.max_slots - (self.entries.len() - self.empty.len());
        let absent = (0..self.table.len()).filter(|&r| self.table[r] == ABSENT).take(free);
        let ids: Vec<ExpertId> = absent.map(|r| self.id(r as u32)).collect();
        let mut read = 0;
        for batch in ids.chunks(4 * self.readers.count()) {
            self.warm(batch)?;
            while self.in_flight > 0 {
                let done = self.readers.wait();
                if let Some((_, error)) = self.settle(done) {
                    return Err(error);
                }
                read += 1;
                progress(read, ids.len() as u64);
            }
        }
        Ok(())
    }

    /// The records most worth having, the best first, for [`seed`](Self::seed) of another run.
    pub fn hottest(&self, n: usize) -> Vec<ExpertId> {
        self.policy.hottest(n).into_iter().map(|r| self.id(r)).collect()
    }

    /// Values records as a run that found `ordered` the hottest, best first, might have. Unknown ids are skipped.
    pub fn seed(&mut self, ordered: &[ExpertId]) {
        let known: Vec<u32> = ordered.iter().filter_map(|&id| self.record(id).ok()).collect();
        self.policy.seed(&known);
    }

    fn id(&self, record: u32) -> ExpertId {
        let (layer, expert) = (record as usize / self.experts, record as usize % self.experts);
        ExpertId { layer: layer as u16, expert: expert as u16 }
    }

    pub(crate) fn record(&self, id: ExpertId) -> Result<u32, StoreError> {
        let i = usize::from(id.layer) * self.experts + usize::from(id.expert);
        if usize::from(id.expert) >= self.experts || i >= self.table.len() {
            return Err(StoreError::Unknown { id });
        }
        Ok(i as u32)
    }

    /// A lease on a record that is in memory.
    pub(crate) fn lease(&self, id: ExpertId, record: u32) -> Option<Lease> {
        let entry = self.table[record as usize];
        let slot = self.entries.get(entry as usize)?.slot.as_ref()?;
        Some(Lease { id, slot: Arc::clone(slot) })
    }

    /// Counts a use, and says whether the record is in memory, coming, or neither.
    pub(crate) fn note_use(&mut self, record: u32, how: Use) -> Found {
        self.policy.used(record, how.weight);
        self.used_at[record as usize] = self.token;
        let entry = self.table[record as usize];
        if entry == ABSENT {
            self.stats.misses += 1;
            return Found::Absent;
        }
        match &mut self.entries[entry as usize].state {
            State::Loading { wanted, arrival, .. } => {
                self.stats.late += 1;
                if *arrival == Arrival::Guess && !*wanted {
                    self.stats.guesses_used += 1;
                }
                *wanted = true;
                self.readers.promote(entry);
                Found::Coming
            }
            State::Held { guess, .. } => {
                self.stats.hits += 1;
                if std::mem::take(guess) {
                    self.stats.guesses_used += 1;
                }
                Found::Here
            }
            State::Empty => unreachable!("the table names only entries that have a record"),
        }
    }

    /// Begins to read a record that is needed and in no slot, unless it is being read already; whether there was a slot
    /// for it.
    pub(crate) fn demand(&mut self, record: u32, how: Use) -> Result<bool, StoreError> {
        let entry = self.table[record as usize];
        if let Some(State::Loading { wanted, .. }) =
            self.entries.get_mut(entry as usize).map(|e| &mut e.state)
        {
            *wanted = true;
            self.readers.promote(entry);
            return Ok(true);
        }
        let Some(entry) = self.vacate(false)? else { return Ok(false) };
        let arrival = if how.sweep { Arrival::Sweep } else { Arrival::Demand };
        self.start(record, entry, arrival, true, Urgency::Demand)?;
        Ok(true)
    }

    /// Begins to read a record into memory of its own: every slot is leased, or there are none.
    pub(crate) fn demand_passing(&mut self, record: u32) -> Result<(), StoreError> {
        let slab = self.memory.allocate(self.plan.bytes(1))?;
        let slot = Slot::cut(slab, self.plan.slot_bytes).pop();
        let slot = Arc::new(slot.expect("a slab for one slot has one"));
        self.passing_wanted.push(record);
        self.submit(Job { id: self.id(record), entry: PASSING, slot }, Urgency::Demand)
    }

    /// The lease of a read that went past the cache, once.
    pub(crate) fn take_passing(&mut self, record: u32) -> Option<Lease> {
        let i = self.passing.iter().position(|(r, _)| *r == record)?;
        Some(Lease { id: self.id(record), slot: self.passing.swap_remove(i).1 })
    }

    pub(crate) fn readers(&self) -> usize {
        self.readers.count()
    }

    fn start(
        &mut self,
        record: u32,
        entry: u32,
        arrival: Arrival,
        wanted: bool,
        urgency: Urgency,
    ) -> Result<(), StoreError> {
        let id = self.id(record);
        let e = &mut self.entries[entry as usize];
        let slot = e.slot.take().expect("a vacated entry has its slot");
        e.state = State::Loading { record, arrival, wanted };
        self.table[record as usize] = entry;
        self.submit(Job { id, entry, slot }, urgency)
    }

    fn submit(&mut self, job: Job, urgency: Urgency) -> Result<(), StoreError> {
        if let Err(error) = self.readers.start() {
            self.forget(job);
            return Err(StoreError::Threads { error });
        }
        self.in_flight += 1;
        self.readers.submit(job, urgency);
        Ok(())
    }

    /// A job that came to nothing: its slot is free again.
    fn forget(&mut self, job: Job) {
        let Some(e) = self.entries.get_mut(job.entry as usize) else { return };
        if let State::Loading { record, arrival, .. } = e.state {
            self.table[record as usize] = ABSENT;
            self.guesses_in_flight -= usize::from(arrival == Arrival::Guess);
        }
        e.state = State::Empty;
        e.slot = Some(job.slot);
        self.empty.push(job.entry);
    }

    fn take_back_guesses(&mut self) {
        let before = self.in_flight;
        self.take_back(Urgency::Guess);
        self.stats.guesses -= (before - self.in_flight) as u64;
    }

    fn take_back(&mut self, urgency: Urgency) {
        for job in self.readers.take_back(urgency) {
            self.in_flight -= 1;
            self.forget(job);
        }
    }

    /// Nobody waits any more for a record that is being read: an error is nobody's business.
    pub(crate) fn unwant(&mut self, record: u32) {
        let entry = self.table[record as usize];
        if let Some(State::Loading { wanted, .. }) =
            self.entries.get_mut(entry as usize).map(|e| &mut e.state)
        {
            *wanted = false;
        }
    }

    /// Forgets what is left of a fetch that is over: reads that went past the cache, and errors.
    pub(crate) fn clear(&mut self) {
        self.passing.clear();
        self.passing_wanted.clear();
        self.failed = None;
    }

    /// Takes in what has been read meanwhile. Errors of guesses come again if the record is needed.
    pub(crate) fn settle_all(&mut self) {
        while let Some(done) = self.readers.poll() {
            let error = self.settle(done).filter(|(wanted, _)| *wanted);
            self.failed = self.failed.take().or(error.map(|(_, error)| error));
        }
    }

    /// The error of a read that somebody waits for, if one was taken in by the way.
    pub(crate) fn take_error(&mut self) -> Option<StoreError> {
        self.failed.take()
    }

    /// Waits for one read. Its error comes with the record it is about.
    pub(crate) fn wait(&mut self) -> Option<StoreError> {
        let start = std::time::Instant::now();
        let done = self.readers.wait();
        self.stats.read_wait_ns += start.elapsed().as_nanos() as u64;
        self.settle(done).filter(|(wanted, _)| *wanted).map(|(_, error)| error)
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Takes in one read. Returns its error, and whether somebody waits for the record.
    fn settle(&mut self, done: Done) -> Option<(bool, StoreError)> {
        self.in_flight -= 1;
        let Done { job, result, ns, retries } = done;
        self.stats.retries += u64::from(retries);
        self.stats.reading_ns += ns;
        let id = job.id;
        let wanted = match self.entries.get(job.entry as usize).map(|e| e.state) {
            Some(State::Loading { wanted, .. }) => wanted,
            _ => self.record(id).is_ok_and(|record| self.passing_wanted.contains(&record)),
        };
        if let Err(error) = result {
            self.stats.failures += 1;
            self.forget(job);
            if !wanted {
                tracing::debug!("{id} could not be read ahead: {error}");
            }
            return Some((wanted, StoreError::Read { id, error }));
        }
        self.stats.reads += 1;
        self.stats.bytes_read += self.source.record_layout(id.layer).map_or(0, |l| l.bytes);
        if job.entry == PASSING {
            let record = self.record(id).expect("only known records are read");
            self.passing.push((record, job.slot));
            return None;
        }
        let e = &mut self.entries[job.entry as usize];
        e.slot = Some(job.slot);
        if let State::Loading { record, arrival, wanted } = e.state {
            let guess = arrival == Arrival::Guess;
            self.guesses_in_flight -= usize::from(guess);
            e.state = State::Held { record, guess: guess && !wanted };
            self.policy.inserted(record, if wanted && guess { Arrival::Demand } else { arrival });
        }
        None
    }

    /// A slot that nobody leases: a free one, or that of the record that gives way. `None` when there is none.
    fn vacate(&mut self, for_guess: bool) -> Result<Option<u32>, StoreError> {
        if let Some(entry) = self.free_slot()? {
            return Ok(Some(entry));
        }
        let Self { entries, table, used_at, token, policy, .. } = self;
        let victim = policy.victim(&mut |record| {
            let recent = for_guess && used_at[record as usize] + 1 >= *token;
            let slot = entries[table[record as usize] as usize].slot.as_mut();
            !recent && slot.is_some_and(|s| Arc::get_mut(s).is_some())
        });
        let Some(record) = victim else { return Ok(None) };
        policy.removed(record);
        let entry = std::mem::replace(&mut table[record as usize], ABSENT);
        let e = &mut entries[entry as usize];
        if e.state == (State::Held { record, guess: true }) {
            let id = self.id(record);
            self.stats.wasted_bytes += self.source.record_layout(id.layer).map_or(0, |l| l.bytes);
        }
        self.entries[entry as usize].state = State::Empty;
        self.stats.evictions += 1;
        Ok(Some(entry))
    }

    /// A slot that holds no record.
    fn free_slot(&mut self) -> Result<Option<u32>, StoreError> {
        if self.empty.is_empty() && self.entries.len() < self.plan.max_slots {
            self.grow()?;
        }
        Ok(self.empty.pop())
    }

    fn grow(&mut self) -> Result<(), StoreError> {
        let slots = (self.plan.max_slots - self.entries.len()).min(self.plan.slots);
        let slab = self.memory.allocate(self.plan.bytes(slots))?;
        let first = self.entries.len() as u32;
        for slot in Slot::cut(slab, self.plan.slot_bytes).into_iter().take(slots) {
            self.entries.push(Entry { slot: Some(Arc::new(slot)), state: State::Empty });
        }
        self.slabs.push(slots);
        // Taken from the end: the first one first, so that memory is touched in order.
        self.empty.extend((first..self.entries.len() as u32).rev());
        Ok(())
    }
}

/// Where a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    Here,
    Coming,
    Absent,
}

#[cfg(test)]
mod tests;
