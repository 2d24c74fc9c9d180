//! How slots are cut from slabs: sizes only.

use spinetail_core::SLAB_ALIGN;

/// Bytes of a slot for a record of `record_bytes`: the stride that records have in a container, so that a direct read of
/// whole blocks fits.
pub const fn slot_bytes(record_bytes: u64) -> u64 {
    record_bytes.next_multiple_of(SLAB_ALIGN as u64)
}

/// Slabs are whole pages of this size where they are not smaller.
const PAGE: usize = 2 << 20;

/// Slabs are no larger than this, unless one slot is: the unit of growing and shrinking.
const MAX_SLAB_BYTES: usize = 64 << 20;

/// Sizes of slots and slabs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SlabPlan {
    pub(crate) slot_bytes: usize,
    /// Slots of a whole slab.
    pub(crate) slots: usize,
    /// Slots of all slabs together.
    pub(crate) max_slots: usize,
}

impl SlabPlan {
    /// Slots for records of at most `record_bytes`, in `budget_bytes`, no more than `records`.
    pub(crate) fn new(record_bytes: usize, budget_bytes: usize, records: usize) -> Self {
        let slot_bytes = slot_bytes(record_bytes.max(1) as u64) as usize;
        let most = (MAX_SLAB_BYTES / slot_bytes).clamp(1, records.max(1));
        // The largest number of slots that fills whole pages, or else all that fit.
        let whole = (1..=most).rev().find(|n| (n * slot_bytes).is_multiple_of(PAGE));
        let mut plan = Self { slot_bytes, slots: whole.unwrap_or(most), max_slots: 0 };
        let slabs = budget_bytes / plan.bytes(plan.slots);
        let rest = budget_bytes - slabs * plan.bytes(plan.slots);
        let partial = (0..plan.slots).rev().find(|&n| plan.bytes(n) <= rest).unwrap_or(0);
        plan.max_slots = (slabs * plan.slots + partial).min(records);
        plan
    }

    /// Bytes of a slab of `n` slots.
    pub(crate) fn bytes(&self, n: usize) -> usize {
        let bytes = n * self.slot_bytes;
        bytes.next_multiple_of(if bytes < PAGE { SLAB_ALIGN } else { PAGE })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_the_35b_fill_27_huge_pages() {
        let plan = SlabPlan::new(1_769_472, 4 << 30, 10_240);
        assert_eq!((plan.slots, plan.bytes(32)), (32, 27 * PAGE));
        // 75 whole slabs of 54 MiB, and 46 MiB.
        assert_eq!(plan.max_slots, 75 * 32 + 27);
    }

    #[test]
    fn slabs_never_exceed_the_budget() {
        for record in [1, 5000, 12288, 1_769_472, 70 << 20] {
            for budget in [0, 4096, 1 << 20, (3 << 20) + 1, 100 << 20, 1 << 30] {
                let plan = SlabPlan::new(record, budget, 1 << 20);
                let (whole, rest) = (plan.max_slots / plan.slots, plan.max_slots % plan.slots);
                let bytes = whole * plan.bytes(plan.slots) + if rest > 0 { plan.bytes(rest) } else { 0 };
                assert!(bytes <= budget, "{record} {budget}: {bytes}");
                assert!(
                    bytes + plan.slot_bytes + PAGE > budget || plan.max_slots == 1 << 20,
                    "{record} {budget}"
                );
            }
        }
    }
}
