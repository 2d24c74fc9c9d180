//! S3-FIFO (Yang et al., SOSP 2023): most records are used once, and a small queue in front lets those go early.

use super::lists::Lists;
use super::{Arrival, Policy};

/// New records, a tenth of all.
const SMALL: u32 = 0;
/// Records that were used again while they were new, or came back soon.
const MAIN: u32 = 1;
/// Numbers of records that left the small queue: one that comes back goes to the main queue.
const GHOST: u32 = 2;

const MAX_USES: u8 = 3;

/// Three first-in-first-out queues. Only numbers are kept of records that are in no slot.
#[derive(Debug)]
pub struct S3Fifo {
    lists: Lists,
    queue: Vec<Queue>,
    uses: Vec<u8>,
    len: [usize; 3],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Queue {
    None,
    In(u32),
}

impl S3Fifo {
    /// A policy over records 0 to `records - 1`.
    pub fn new(records: u32) -> Self {
        let n = records as usize;
        Self { lists: Lists::new(records, 3), queue: vec![Queue::None; n], uses: vec![0; n], len: [0; 3] }
    }

    fn take(&mut self, record: u32) -> Queue {
        let from = std::mem::replace(&mut self.queue[record as usize], Queue::None);
        if let Queue::In(list) = from {
            self.lists.unlink(record);
            self.len[list as usize] -= 1;
        }
        from
    }

    fn put(&mut self, list: u32, record: u32) {
        self.lists.push_newest(list, record);
        self.queue[record as usize] = Queue::In(list);
        self.len[list as usize] += 1;
    }

    fn resident(&self) -> usize {
        self.len[SMALL as usize] + self.len[MAIN as usize]
    }
}

impl Policy for S3Fifo {
    fn used(&mut self, record: u32, weight: f32) {
        let uses = &mut self.uses[record as usize];
        if weight > 0.0 && matches!(self.queue[record as usize], Queue::In(SMALL | MAIN)) {
            *uses = (*uses + 1).min(MAX_USES);
        }
    }

    fn inserted(&mut self, record: u32, arrival: Arrival) {
        self.uses[record as usize] = 0;
        match (self.take(record), arrival) {
            (Queue::In(GHOST), Arrival::Demand) => self.put(MAIN, record),
            (_, Arrival::Demand | Arrival::Guess) => self.put(SMALL, record),
            (_, Arrival::Sweep) => {
                self.put(SMALL, record);
                self.lists.unlink(record);
                self.lists.push_oldest(SMALL, record);
            }
        }
    }

    fn removed(&mut self, record: u32) {
        if self.take(record) == Queue::In(SMALL) {
            self.put(GHOST, record);
        }
        while self.len[GHOST as usize] > self.resident().max(1) {
            let Some(oldest) = self.lists.oldest(GHOST) else { break };
            self.take(oldest);
        }
    }

    fn victim(&mut self, may_go: &mut dyn FnMut(u32) -> bool) -> Option<u32> {
        // Every turn takes a use from a record or moves one to the main queue, from which none comes back: it ends.
        loop {
            let small = self.len[SMALL as usize] * 10 >= self.resident();
            let list = if small && self.len[SMALL as usize] > 0 { SMALL } else { MAIN };
            let record = self.lists.oldest(list)?;
            let uses = self.uses[record as usize];
            if list == SMALL && uses > 1 {
                self.take(record);
                self.uses[record as usize] = 0;
                self.put(MAIN, record);
            } else if list == MAIN && uses > 0 {
                self.take(record);
                self.uses[record as usize] = uses - 1;
                self.put(MAIN, record);
            } else {
                let other = if list == SMALL { MAIN } else { SMALL };
                return self.lists.iter(list).chain(self.lists.iter(other)).find(|&r| may_go(r));
            }
        }
    }

    fn tick(&mut self) {}

    fn hottest(&self, n: usize) -> Vec<u32> {
        let mut order: Vec<u32> = self.lists.iter(SMALL).chain(self.lists.iter(MAIN)).collect();
        order.reverse();
        order.sort_by_key(|&r| std::cmp::Reverse(self.uses[r as usize]));
        order.truncate(n);
        order
    }
}
