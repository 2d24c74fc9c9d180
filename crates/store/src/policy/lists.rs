//! Doubly linked lists of records in two vectors: every operation is O(1) and nothing is allocated after the start.
//!
//! A record is in at most one list. Each list is a ring through a sentinel of its own, so that taking a record out needs
//! no knowledge of which list it is in.

/// Lists over records 0 to `records - 1`, each ordered from the oldest to the newest.
#[derive(Debug)]
pub(super) struct Lists {
    /// Towards the newest; a record that is in no list is its own neighbour.
    newer: Vec<u32>,
    older: Vec<u32>,
    records: u32,
}

impl Lists {
    pub(super) fn new(records: u32, lists: u32) -> Self {
        let itself: Vec<u32> = (0..records + lists).collect();
        Self { newer: itself.clone(), older: itself, records }
    }

    /// How many records there are, listed or not.
    pub(super) fn records(&self) -> u32 {
        self.records
    }

    /// Whether `record` is in some list.
    pub(super) fn contains(&self, record: u32) -> bool {
        self.newer[record as usize] != record
    }

    pub(super) fn is_empty(&self, list: u32) -> bool {
        let sentinel = self.records + list;
        self.newer[sentinel as usize] == sentinel
    }

    pub(super) fn oldest(&self, list: u32) -> Option<u32> {
        self.newer_than(self.records + list)
    }

    /// The records of `list` from the oldest on.
    pub(super) fn iter(&self, list: u32) -> impl Iterator<Item = u32> {
        std::iter::successors(self.oldest(list), |&r| self.newer_than(r))
    }

    /// Puts `record`, which is in no list, at the newest end.
    pub(super) fn push_newest(&mut self, list: u32, record: u32) {
        let sentinel = self.records + list;
        self.link(self.older[sentinel as usize], record, sentinel);
    }

    /// Puts `record`, which is in no list, at the oldest end.
    pub(super) fn push_oldest(&mut self, list: u32, record: u32) {
        let sentinel = self.records + list;
        self.link(sentinel, record, self.newer[sentinel as usize]);
    }

    /// Takes `record` out of its list, if it is in one.
    pub(super) fn unlink(&mut self, record: u32) {
        let (newer, older) = (self.newer[record as usize], self.older[record as usize]);
        self.older[newer as usize] = older;
        self.newer[older as usize] = newer;
        self.newer[record as usize] = record;
        self.older[record as usize] = record;
    }

    /// Moves all of list `from` to the oldest end of list `to`, in order.
    pub(super) fn merge_below(&mut self, from: u32, to: u32) {
        if self.is_empty(from) || from == to {
            return;
        }
        let (from, to) = (self.records + from, self.records + to);
        let (first, last) = (self.newer[from as usize], self.older[from as usize]);
        let next = self.newer[to as usize];
        self.newer[to as usize] = first;
        self.older[first as usize] = to;
        self.newer[last as usize] = next;
        self.older[next as usize] = last;
        self.newer[from as usize] = from;
        self.older[from as usize] = from;
    }

    fn newer_than(&self, node: u32) -> Option<u32> {
        Some(self.newer[node as usize]).filter(|&n| n < self.records)
    }

    fn link(&mut self, older: u32, record: u32, newer: u32) {
        debug_assert!(!self.contains(record), "record {record} is in a list already");
        self.newer[record as usize] = newer;
        self.older[record as usize] = older;
        self.newer[older as usize] = record;
        self.older[newer as usize] = record;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merging_keeps_the_order() {
        let mut lists = Lists::new(6, 3);
        [1, 2].iter().for_each(|&r| lists.push_newest(0, r));
        [3, 4].iter().for_each(|&r| lists.push_newest(1, r));
        lists.push_oldest(1, 5);
        lists.merge_below(0, 1);
        assert!(lists.is_empty(0));
        assert_eq!(lists.iter(1).collect::<Vec<_>>(), [1, 2, 5, 3, 4]);
        lists.merge_below(1, 2);
        lists.unlink(5);
        lists.unlink(5);
        assert_eq!(lists.iter(2).collect::<Vec<_>>(), [1, 2, 3, 4]);
        assert!(!lists.contains(5) && lists.contains(4));
    }
}
