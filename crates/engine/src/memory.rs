//! How a memory budget is divided before anything is loaded.

use spinetail_core::{ModelConfig, ModelSource, dense_specs};
use spinetail_cpu::{CpuOptions, PoolOptions};
use spinetail_store::slot_bytes;

use crate::engine::EngineOptions;
use crate::error::EngineError;
use crate::machine::Machine;
use crate::session::MAX_MARKS;

/// Bytes by what they are for. All but the slots follow from the model, the context and the precision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryPlan {
    /// Dense weights, resident.
    pub dense_bytes: u64,
    /// Keys and values of one session at the full context.
    pub kv_bytes: u64,
    /// DeltaNet states of one session, and its saved copies.
    pub state_bytes: u64,
    /// Activations of a batch of up to [`SHORT_ROWS`](Self::SHORT_ROWS) rows, what mixers hold of its rows, and logits.
    pub scratch_bytes: u64,
    /// Rows of a batch at most: of a prompt, so many tokens are run at a time. No output depends on it.
    pub chunk_rows: usize,
    /// What is lent to the activations of `chunk_rows` rows while a prompt is read, by the expert slots unless more is free.
    pub prompt_bytes: u64,
    /// What each row of a batch takes.
    row_bytes: u64,
    /// What all experts leave over.
    spare_bytes: u64,
    /// Rows of a batch that the context has room for.
    most_chunk_rows: usize,
    /// Code, tokenizer, threads with their stacks and buffers, allocator slack.
    pub process_bytes: u64,
    /// Expert slots.
    pub slots_bytes: u64,
    /// One expert slot.
    pub slot_bytes: u64,
    /// Every expert record of the decoder.
    pub records_bytes: u64,
    /// Experts that a token uses in each layer.
    pub top_k: u64,
}

/// Code, stacks, and the allocator's slack: the peak of a process, without what is reckoned beside it, was up to 14 MiB.
const PROCESS_BYTES: u64 = 16 << 20;

/// A thread that computes or reads: 10 to 15 KiB of stack, buffers and allocator were measured, and 28 KiB that the kernel
/// charges to its control group.
const THREAD_BYTES: u64 = 48 << 10;

/// Address space of a compute thread, and of one that reads.
const THREAD_RESERVE_BYTES: u64 = 3 << 20;
const READER_RESERVE_BYTES: u64 = 1 << 20;

/// With more rows than this, the time of a chunk is all arithmetic and its records are read seldom enough.
const MAX_CHUNK_ROWS: usize = 2048;

/// Part of the expert slots that a prompt may borrow. A chunk of it reads each record once, so that long chunks save more
/// reads than the slots they take; after it, the slots are had back.
const PROMPT_SHARE: u64 = 2;

impl MemoryPlan {
    /// Rows of a batch that there is always memory for; a prompt's chunks are multiples of so many.
    pub const SHORT_ROWS: usize = 64;

    /// Divides the budget of `options` (without one, most of what the machine has free) among what the model needs with
    /// their context, precision and threads; the rest is for expert slots.
    pub fn new(source: &dyn ModelSource, options: &EngineOptions) -> Result<Self, EngineError> {
        Self::on(&Machine::look(), source, options)
    }

    /// As [`new`](Self::new), on a machine that has been looked at: whoever looks again may find something else.
    pub(crate) fn on(
        machine: &Machine,
        source: &dyn ModelSource,
        options: &EngineOptions,
    ) -> Result<Self, EngineError> {
        let (c, context, precision) = (source.config(), options.context, options.precision);
        let cpu = CpuOptions { threads: options.threads, isa: options.isa, precision };
        let resident = dense_specs(c).into_iter().filter(|s| !s.is_prediction_head());
        let dense_bytes = resident.filter_map(|s| source.dense_spec(&s.name).map(|s| s.bytes() as u64)).sum();
        let layouts = (0..c.layers.len()).filter_map(|l| source.record_layout(l as u16));
        let slot_bytes = layouts.map(|l| slot_bytes(l.bytes)).max().unwrap_or_else(|| slot_bytes(1));
        let records_bytes = slot_bytes * (c.layers.len() * c.moe.experts) as u64;
        let plan = Self {
            dense_bytes,
            kv_bytes: (c.kv_elements_per_token() * precision.kv_element_bytes()) as u64 * u64::from(context),
            state_bytes: (1 + MAX_MARKS) as u64 * 4 * c.state_elements() as u64,
            scratch_bytes: 4 * (Self::SHORT_ROWS * row_elements(c) + 2 * c.vocab) as u64
                + cpu.mixer_scratch_bytes(c, context),
            chunk_rows: Self::SHORT_ROWS,
            prompt_bytes: 0,
            row_bytes: 4 * row_elements(c) as u64,
            spare_bytes: 0,
            most_chunk_rows: MAX_CHUNK_ROWS.min((context as usize).next_multiple_of(Self::SHORT_ROWS)),
            process_bytes: PROCESS_BYTES + tokenizer_bytes(c.vocab) + threads_bytes(options),
            slots_bytes: 0,
            slot_bytes,
            records_bytes,
            top_k: c.moe.top_k as u64,
        };
        let budget =
            options.memory_bytes.unwrap_or_else(|| default_budget(plan.minimum_bytes(), options, machine));
        plan.with_budget(budget)
    }

    /// The same model with another budget.
    pub fn with_budget(&self, budget: u64) -> Result<Self, EngineError> {
        let mut plan = *self;
        (plan.slots_bytes, plan.spare_bytes) = (0, 0);
        let minimum = plan.minimum_bytes();
        if budget < minimum {
            return Err(EngineError::Budget { budget, minimum, plan: Box::new(plan) });
        }
        let left = budget - plan.fixed_bytes();
        plan.slots_bytes = left.min(self.records_bytes);
        let spare = left - plan.slots_bytes;
        // The slots of one token and layer stay.
        let borrowed = (plan.slots_bytes / PROMPT_SHARE).min(budget - minimum);
        let more = spare.max(borrowed) / (Self::SHORT_ROWS as u64 * self.row_bytes).max(1);
        let more = usize::try_from(more).unwrap_or(0).min(MAX_CHUNK_ROWS / Self::SHORT_ROWS);
        plan.chunk_rows = (Self::SHORT_ROWS * (1 + more)).min(self.most_chunk_rows.max(Self::SHORT_ROWS));
        plan.prompt_bytes = plan.longer_bytes(plan.chunk_rows);
        plan.spare_bytes = spare.min(plan.prompt_bytes);
        Ok(plan)
    }

    /// What a batch of `rows` rows takes beyond `scratch_bytes`.
    fn longer_bytes(&self, rows: usize) -> u64 {
        rows.saturating_sub(Self::SHORT_ROWS) as u64 * self.row_bytes
    }

    /// What expert slots have to lend a batch of `rows` rows.
    pub fn lent_bytes(&self, rows: usize) -> u64 {
        self.longer_bytes(rows).saturating_sub(self.spare_bytes)
    }

    /// The smallest budget: everything but the experts, and those of one token and layer.
    pub fn minimum_bytes(&self) -> u64 {
        self.fixed_bytes() + self.slot_bytes * self.top_k
    }

    /// The budget past which more memory makes nothing faster: every expert, and the longest batches.
    pub fn useful_bytes(&self) -> u64 {
        self.fixed_bytes() + self.records_bytes + self.longer_bytes(self.most_chunk_rows)
    }

    /// Everything but the expert slots and what a prompt borrows.
    pub fn fixed_bytes(&self) -> u64 {
        self.dense_bytes + self.kv_bytes + self.state_bytes + self.scratch_bytes + self.process_bytes
    }

    /// Refuses a budget that takes more address space than a limit leaves: allocations would fail one by one later on, and
    /// not all of them where that can be said.
    pub(crate) fn check_address_space(
        &self,
        options: &EngineOptions,
        m: &Machine,
    ) -> Result<(), EngineError> {
        let (Some(limit), Some(left)) = (m.address_limit_bytes, m.address_free_bytes) else { return Ok(()) };
        let (budget, needed) = (self.total_bytes(), self.total_bytes() + reserved_bytes(options));
        if needed <= left { Ok(()) } else { Err(EngineError::AddressSpace { budget, needed, limit, left }) }
    }

    /// The whole budget.
    pub fn total_bytes(&self) -> u64 {
        self.fixed_bytes() + self.slots_bytes + self.spare_bytes
    }
}

/// The budget of a process that was given none: most of what the machine has free, so that others find some as well, or
/// all of it if the model would not run otherwise. Without knowledge of the machine, four gigabytes more than the least.
pub(crate) fn default_budget(minimum: u64, options: &EngineOptions, machine: &Machine) -> u64 {
    let Some(mut free) = machine.free_bytes() else { return minimum + (4 << 30) };
    if let Some(address_space) = machine.address_free_bytes {
        let room = address_space.saturating_sub(reserved_bytes(options));
        // Refused later on, with that for the reason.
        if room < minimum {
            return minimum;
        }
        free = free.min(room);
    }
    // Never less than where a little less is free.
    most_of(free).max(free.min(minimum + minimum / 3))
}

/// Three quarters of what is free: the rest is for others, and for what is not reckoned.
pub(crate) fn most_of(free_bytes: u64) -> u64 {
    free_bytes - free_bytes / 4
}

/// Elements of f32 that a row of a batch takes in a backend.
fn row_elements(c: &ModelConfig) -> usize {
    let (a, d, m) = (&c.attention, &c.delta, &c.moe);
    let (queries, keys, values) = (2 * a.heads * a.head_dim, a.kv_heads * a.head_dim, d.value_channels());
    // The residual stream, its norm in f32 and in 8 bits, the mixer's output, the experts' sum, the shared expert, and
    // one expert's rows and output.
    let stream = 9 * c.hidden;
    let projected = queries.max(d.conv_channels()) + keys.max(values) + keys + d.value_heads;
    let mixed = d.conv_channels() + values + 2 * values.max(a.heads * a.head_dim);
    stream + projected + mixed + m.experts + 4 * m.intermediate.max(m.shared_intermediate)
}

/// Address space that threads have reserved and never use: stacks, and what the allocator keeps for each.
fn reserved_bytes(options: &EngineOptions) -> u64 {
    let threads = options.threads.unwrap_or(PoolOptions::default().threads);
    threads as u64 * THREAD_RESERVE_BYTES + options.experts.readers as u64 * READER_RESERVE_BYTES
}

/// What compute threads and readers take.
fn threads_bytes(options: &EngineOptions) -> u64 {
    let threads = options.threads.unwrap_or(PoolOptions::default().threads);
    (threads + options.experts.readers) as u64 * THREAD_BYTES
}

/// About what the tokenizer takes: 13 MB were measured at 248,077 entries, 30 MB while it is loaded.
fn tokenizer_bytes(vocab: usize) -> u64 {
    vocab as u64 * 128
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> MemoryPlan {
        MemoryPlan {
            dense_bytes: 1000 << 20,
            kv_bytes: 100 << 20,
            state_bytes: 10 << 20,
            scratch_bytes: 20 << 20,
            chunk_rows: MemoryPlan::SHORT_ROWS,
            prompt_bytes: 0,
            row_bytes: 200 << 10,
            spare_bytes: 0,
            most_chunk_rows: MAX_CHUNK_ROWS,
            process_bytes: 40 << 20,
            slots_bytes: 0,
            slot_bytes: 2 << 20,
            records_bytes: 10_000 << 20,
            top_k: 8,
        }
    }

    #[test]
    fn whatever_is_lent_leaves_a_token_its_experts_and_stays_in_the_budget() {
        let plan = plan();
        let minimum = plan.minimum_bytes();
        for more in [0, 1, 5 << 20, 13 << 20, 14 << 20, 100 << 20, 1 << 30, 9 << 30, 11 << 30, 20 << 30] {
            let budget = minimum + more;
            let p = plan.with_budget(budget).unwrap();
            assert!(p.total_bytes() <= budget, "{p:?}");
            for rows in [1, 64, 65, p.chunk_rows].into_iter().filter(|&r| r <= p.chunk_rows) {
                let lent = p.lent_bytes(rows);
                assert!(p.slots_bytes - lent >= p.slot_bytes * p.top_k, "{rows} rows: {p:?}");
                assert!(
                    p.total_bytes() - lent + p.longer_bytes(rows) - p.spare_bytes <= budget,
                    "{rows} rows: {p:?}"
                );
                assert!(rows > MemoryPlan::SHORT_ROWS || lent == 0);
            }
        }
        // Half of the slots' gigabyte is more than 2048 rows take; what all experts leave over is taken first.
        let p = plan.with_budget(minimum + (1 << 30)).unwrap();
        assert_eq!((p.chunk_rows, p.lent_bytes(2048)), (2048, 1984 * (200 << 10)));
        let p = plan.with_budget(minimum + (11 << 30)).unwrap();
        assert_eq!((p.chunk_rows, p.lent_bytes(2048)), (2048, 0));
    }

    #[test]
    fn less_than_the_least_is_refused() {
        let plan = plan();
        assert!(plan.with_budget(plan.minimum_bytes()).is_ok());
        assert!(matches!(plan.with_budget(plan.minimum_bytes() - 1), Err(EngineError::Budget { .. })));
    }
}
