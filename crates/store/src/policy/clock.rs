//! CLOCK: a queue that goes round.

use super::lists::Lists;
use super::{Arrival, Policy};

/// First in, first out; a record that was used since the hand last passed it is passed once more.
#[derive(Debug)]
pub struct Clock {
    /// The hand is at the oldest end.
    lists: Lists,
    used: Vec<bool>,
}

impl Clock {
    /// A policy over records 0 to `records - 1`.
    pub fn new(records: u32) -> Self {
        Self { lists: Lists::new(records, 1), used: vec![false; records as usize] }
    }
}

impl Policy for Clock {
    fn used(&mut self, record: u32, weight: f32) {
        if weight > 0.0 && self.lists.contains(record) {
            self.used[record as usize] = true;
        }
    }

    fn inserted(&mut self, record: u32, arrival: Arrival) {
        self.used[record as usize] = false;
        match arrival {
            Arrival::Demand | Arrival::Guess => self.lists.push_newest(0, record),
            Arrival::Sweep => self.lists.push_oldest(0, record),
        }
    }

    fn removed(&mut self, record: u32) {
        self.lists.unlink(record);
    }

    fn victim(&mut self, may_go: &mut dyn FnMut(u32) -> bool) -> Option<u32> {
        while let Some(record) = self.lists.oldest(0).filter(|&r| self.used[r as usize]) {
            self.used[record as usize] = false;
            self.lists.unlink(record);
            self.lists.push_newest(0, record);
        }
        self.lists.iter(0).find(|&r| may_go(r))
    }

    fn tick(&mut self) {}

    fn hottest(&self, n: usize) -> Vec<u32> {
        let mut order: Vec<u32> = self.lists.iter(0).collect();
        order.reverse();
        order.sort_by_key(|&r| !self.used[r as usize]);
        order.truncate(n);
        order
    }
}
