//! Least recently used.

use super::lists::Lists;
use super::{Arrival, Policy};

/// The least recently used record gives way. Remembers nothing of records that are in no slot.
#[derive(Debug)]
pub struct Lru {
    lists: Lists,
}

impl Lru {
    /// A policy over records 0 to `records - 1`.
    pub fn new(records: u32) -> Self {
        Self { lists: Lists::new(records, 1) }
    }
}

impl Policy for Lru {
    fn used(&mut self, record: u32, weight: f32) {
        if weight > 0.0 && self.lists.contains(record) {
            self.lists.unlink(record);
            self.lists.push_newest(0, record);
        }
    }

    fn inserted(&mut self, record: u32, arrival: Arrival) {
        match arrival {
            Arrival::Demand | Arrival::Guess => self.lists.push_newest(0, record),
            Arrival::Sweep => self.lists.push_oldest(0, record),
        }
    }

    fn removed(&mut self, record: u32) {
        self.lists.unlink(record);
    }

    fn victim(&mut self, may_go: &mut dyn FnMut(u32) -> bool) -> Option<u32> {
        self.lists.iter(0).find(|&r| may_go(r))
    }

    fn tick(&mut self) {}

    fn hottest(&self, n: usize) -> Vec<u32> {
        let mut order: Vec<u32> = self.lists.iter(0).collect();
        order.reverse();
        order.truncate(n);
        order
    }
}
