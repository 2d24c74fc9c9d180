//! Belady's policy, which knows the future: the most that any policy can reach.

use std::collections::BinaryHeap;

use crate::policy::{Arrival, Policy};
use crate::trace::Trace;

use super::record_count;

/// A use that never comes.
const NEVER: u32 = u32::MAX;

/// For each use of a record in `trace`, in order, the index of its next use.
pub(super) fn next_uses(trace: &Trace) -> Vec<u32> {
    let mut uses = Vec::new();
    for step in trace.steps() {
        let mut first = 0;
        for ids in step.layers() {
            uses.extend(ids.iter().map(|&id| first + u32::from(id)));
            first += u32::from(trace.header().experts);
        }
    }
    let mut next = vec![NEVER; record_count(trace) as usize];
    for (at, used) in uses.iter_mut().enumerate().rev() {
        let record = *used as usize;
        // Traces of 2^32 uses do not fit in memory here; past them nothing would be known.
        *used = std::mem::replace(&mut next[record], u32::try_from(at).unwrap_or(NEVER));
    }
    uses
}

/// The record whose next use is furthest away gives way. It has to be told of every use of the trace in order.
pub(super) struct Belady<'t> {
    next: &'t [u32],
    at: usize,
    /// When each record is used next.
    due: Vec<u32>,
    resident: Vec<bool>,
    /// Records by next use; entries that are no longer so are dropped when they come up.
    heap: BinaryHeap<(u32, u32)>,
}

impl<'t> Belady<'t> {
    pub(super) fn new(records: u32, next: &'t [u32]) -> Self {
        let n = records as usize;
        Self { next, at: 0, due: vec![NEVER; n], resident: vec![false; n], heap: BinaryHeap::new() }
    }
}

impl Policy for Belady<'_> {
    fn used(&mut self, record: u32, _weight: f32) {
        self.due[record as usize] = self.next.get(self.at).copied().unwrap_or(NEVER);
        self.at += 1;
        if self.resident[record as usize] {
            self.heap.push((self.due[record as usize], record));
        }
    }

    fn inserted(&mut self, record: u32, _arrival: Arrival) {
        self.resident[record as usize] = true;
        self.heap.push((self.due[record as usize], record));
    }

    fn removed(&mut self, record: u32) {
        self.resident[record as usize] = false;
    }

    fn victim(&mut self, may_go: &mut dyn FnMut(u32) -> bool) -> Option<u32> {
        let mut refused = Vec::new();
        let mut victim = None;
        while let Some((due, record)) = self.heap.pop() {
            if !self.resident[record as usize] || self.due[record as usize] != due {
                continue;
            }
            refused.push((due, record));
            if may_go(record) {
                victim = Some(record);
                break;
            }
        }
        self.heap.extend(refused);
        victim
    }

    fn tick(&mut self) {}

    fn hottest(&self, n: usize) -> Vec<u32> {
        let mut order: Vec<u32> =
            (0..self.due.len() as u32).filter(|&r| self.due[r as usize] != NEVER).collect();
        order.sort_by_key(|&r| self.due[r as usize]);
        order.truncate(n);
        order
    }
}
