//! Records on their way to whoever computes with them.

use std::collections::VecDeque;

use spinetail_core::ExpertId;

use crate::error::StoreError;
use crate::slot::Lease;
use crate::store::{ExpertStore, Found, Use};

/// A record that was asked for.
enum Wanted {
    /// In a slot that cannot be reused until it is handed out.
    Leased(Lease),
    /// Being read.
    Coming,
    /// To be read.
    Absent,
    /// Handed out.
    Gone,
}

/// Records on their way; see [`ExpertStore::fetch`].
pub struct Fetch<'s> {
    store: &'s mut ExpertStore,
    ids: &'s [ExpertId],
    how: Use,
    wanted: Vec<Wanted>,
    /// Records that are there, in the order in which they are handed out.
    ready: VecDeque<usize>,
    /// Records that are being read.
    coming: Vec<usize>,
    /// The first record that may still have to be read.
    next_absent: usize,
    /// The next one to be handed out, if that is in order.
    next: usize,
}

impl ExpertStore {
    /// Starts fetching `ids`, which are distinct: reads begin at once, as many as there are slots and readers for. Leases
    /// come through [`Fetch::next`].
    pub fn fetch<'s>(&'s mut self, ids: &'s [ExpertId], how: Use) -> Result<Fetch<'s>, StoreError> {
        debug_assert!((1..ids.len()).all(|i| !ids[..i].contains(&ids[i])), "ids are distinct: {ids:?}");
        self.settle_all();
        self.clear();
        let records = ids.iter().map(|&id| self.record(id)).collect::<Result<Vec<_>, _>>()?;
        let mut fetch = Fetch {
            ids,
            how,
            wanted: Vec::with_capacity(ids.len()),
            ready: VecDeque::new(),
            coming: Vec::new(),
            next_absent: 0,
            next: 0,
            store: self,
        };
        for (i, &record) in records.iter().enumerate() {
            let wanted = match fetch.store.note_use(record, how) {
                Found::Here => match fetch.store.lease(ids[i], record) {
                    Some(lease) => {
                        fetch.ready.push_back(i);
                        Wanted::Leased(lease)
                    }
                    None => Wanted::Absent,
                },
                Found::Coming => {
                    fetch.coming.push(i);
                    Wanted::Coming
                }
                Found::Absent => Wanted::Absent,
            };
            fetch.wanted.push(wanted);
        }
        fetch.read_ahead()?;
        Ok(fetch)
    }
}

impl Fetch<'_> {
    /// Reads ahead what may be needed soon, after what is needed now; see [`ExpertStore::guess`].
    pub fn guess(&mut self, ids: &[ExpertId]) -> Result<(), StoreError> {
        self.store.guess(ids)
    }

    /// The next record, with its index in the ids asked for; `None` when all have been handed out. Unless
    /// [`Use::in_order`], those in memory come first and the others as each is read.
    ///
    /// Drop the lease before asking for the next one where possible: a leased slot cannot be reused.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<(usize, Lease)>, StoreError> {
        loop {
            // What has come is leased before anything else may take its slot.
            self.collect()?;
            self.read_ahead()?;
            if let Some(i) = self.take_ready() {
                let wanted = std::mem::replace(&mut self.wanted[i], Wanted::Gone);
                if let Wanted::Leased(lease) = wanted {
                    return Ok(Some((i, lease)));
                }
            } else if self.coming.is_empty() {
                let Some(i) = self.first_absent() else { return Ok(None) };
                self.make_room(i)?;
            } else {
                self.wait()?;
            }
        }
    }

    /// The record to be handed out, if it is there.
    fn take_ready(&mut self) -> Option<usize> {
        if !self.how.in_order {
            return self.ready.pop_front();
        }
        let next = matches!(self.wanted.get(self.next), Some(Wanted::Leased(_)));
        next.then(|| {
            self.next += 1;
            self.next - 1
        })
    }

    fn first_absent(&mut self) -> Option<usize> {
        while let Some(wanted) = self.wanted.get(self.next_absent) {
            if matches!(wanted, Wanted::Absent) {
                return Some(self.next_absent);
            }
            self.next_absent += 1;
        }
        None
    }

    /// Begins to read what is missing, as far as there are slots. A sweep stays a little ahead of what is computed and
    /// no further, so that it takes few slots at a time.
    fn read_ahead(&mut self) -> Result<(), StoreError> {
        let most = if self.how.sweep { 2 * self.store.readers() } else { usize::MAX };
        while self.coming.len() < most
            && let Some(i) = self.first_absent()
        {
            let record = self.store.record(self.ids[i])?;
            // It may have come since: as a guess, or because its lease was given up and its slot was not needed.
            if let Some(lease) = self.store.lease(self.ids[i], record) {
                self.wanted[i] = Wanted::Leased(lease);
                self.ready.push_back(i);
                continue;
            }
            if !self.store.demand(record, self.how)? {
                break;
            }
            self.wanted[i] = Wanted::Coming;
            self.coming.push(i);
        }
        Ok(())
    }

    /// Nothing is coming and record `i` finds no slot: every slot is leased, by us or by others.
    fn make_room(&mut self, i: usize) -> Result<(), StoreError> {
        // The last of what is held for later is read again when its turn comes.
        let held =
            (self.next..self.wanted.len()).rev().find(|&j| matches!(self.wanted[j], Wanted::Leased(_)));
        if let Some(j) = held {
            self.wanted[j] = Wanted::Absent;
            self.next_absent = self.next_absent.min(i.min(j));
            return Ok(());
        }
        self.store.demand_passing(self.store.record(self.ids[i])?)?;
        self.wanted[i] = Wanted::Coming;
        self.coming.push(i);
        Ok(())
    }

    /// Takes in what has come, and waits for it if nothing has.
    fn wait(&mut self) -> Result<(), StoreError> {
        self.store.settle_all();
        if let Some(error) = self.store.take_error() {
            return Err(error);
        }
        // The store may have taken reads in before, as it does when it is given guesses.
        while !self.collect()? {
            debug_assert!(self.store.in_flight() > 0, "what is coming is being read");
            if self.store.in_flight() == 0 {
                // Better read twice than wait for ever.
                for i in self.coming.drain(..) {
                    self.wanted[i] = Wanted::Absent;
                }
                self.next_absent = 0;
                return Ok(());
            }
            if let Some(error) = self.store.wait() {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Leases what has been read; whether there was something.
    fn collect(&mut self) -> Result<bool, StoreError> {
        let before = self.coming.len();
        let mut i = 0;
        while let Some(&at) = self.coming.get(i) {
            let id = self.ids[at];
            let record = self.store.record(id)?;
            let Some(lease) = self.store.lease(id, record).or_else(|| self.store.take_passing(record)) else {
                i += 1;
                continue;
            };
            self.coming.swap_remove(i);
            self.wanted[at] = Wanted::Leased(lease);
            self.ready.push_back(at);
        }
        Ok(self.coming.len() < before)
    }
}

impl Drop for Fetch<'_> {
    fn drop(&mut self) {
        // After an error some are still on their way.
        for &i in &self.coming {
            if let Ok(record) = self.store.record(self.ids[i]) {
                self.store.unwant(record);
            }
        }
    }
}
