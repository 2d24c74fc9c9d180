//! How a memory budget is divided before anything is loaded.

use spinetail_core::{ModelConfig, ModelSource, dense_specs};
use spinetail_cpu::Precision;
use spinetail_store::slot_bytes;

use crate::error::EngineError;
use crate::machine::Machine;

/// Bytes by what they are for. All but the slots follow from the model, the context and the precision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryPlan {
    /// Dense weights, resident.
    pub dense_bytes: u64,
    /// Keys and values of one session at the full context.
    pub kv_bytes: u64,
    /// DeltaNet states of one session, and one saved copy.
    pub state_bytes: u64,
    /// Activations of a batch and logits.
    pub scratch_bytes: u64,
    /// Rows of a batch: of a prompt, so many tokens are run at a time. No output depends on it.
    pub chunk_rows: usize,
    /// Of `scratch_bytes`, what each row of a batch takes, and logits.
    row_bytes: u64,
    logits_bytes: u64,
    /// Rows of a batch that the context has room for.
    most_chunk_rows: usize,
    /// Code, tokenizer, stacks, allocator slack.
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

/// Rows of a prefill chunk: always a multiple of this.
const CHUNK_ROWS: usize = 64;

/// With more rows than this, the time of a chunk is all arithmetic and its records are read seldom enough.
const MAX_CHUNK_ROWS: usize = 2048;

/// Part of what is left for expert slots that a longer chunk may take: each record is read once a chunk, so that a long
/// prompt gains more by a longer chunk than it loses by fewer slots.
const CHUNK_SHARE: u64 = 8;

impl MemoryPlan {
    /// Divides `budget_bytes` (without one, most of what the machine has free) among what the model needs at `context` positions in
    /// `precision`; the rest is for expert slots.
    pub fn new(
        source: &dyn ModelSource,
        context: u32,
        precision: Precision,
        budget_bytes: Option<u64>,
    ) -> Result<Self, EngineError> {
        let c = source.config();
        let resident = dense_specs(c).into_iter().filter(|s| !s.is_prediction_head());
        let dense_bytes = resident.filter_map(|s| source.dense_spec(&s.name).map(|s| s.bytes() as u64)).sum();
        let layouts = (0..c.layers.len()).filter_map(|l| source.record_layout(l as u16));
        let slot_bytes = layouts.map(|l| slot_bytes(l.bytes)).max().unwrap_or_else(|| slot_bytes(1));
        let records_bytes = slot_bytes * (c.layers.len() * c.moe.experts) as u64;
        let mut plan = Self {
            dense_bytes,
            kv_bytes: (c.kv_elements_per_token() * precision.kv_element_bytes()) as u64 * u64::from(context),
            state_bytes: 2 * 4 * c.state_elements() as u64,
            scratch_bytes: 0,
            row_bytes: 4 * row_elements(c) as u64,
            logits_bytes: 4 * 2 * c.vocab as u64,
            most_chunk_rows: MAX_CHUNK_ROWS.min((context as usize).next_multiple_of(CHUNK_ROWS)),
            chunk_rows: 0,
            process_bytes: PROCESS_BYTES + tokenizer_bytes(c.vocab),
            slots_bytes: 0,
            slot_bytes,
            records_bytes,
            top_k: c.moe.top_k as u64,
        };
        plan.set_chunk_rows(CHUNK_ROWS);
        let budget = budget_bytes.unwrap_or_else(|| default_budget(plan.minimum_bytes()));
        plan.with_budget(budget)
    }

    /// The same model with another budget.
    pub fn with_budget(&self, budget: u64) -> Result<Self, EngineError> {
        let mut plan = *self;
        plan.slots_bytes = 0;
        plan.set_chunk_rows(CHUNK_ROWS);
        let minimum = plan.minimum_bytes();
        if budget < minimum {
            return Err(EngineError::Budget { budget, minimum, plan: Box::new(plan) });
        }
        let left = budget - minimum;
        // What the slots of all experts leave over is free to be taken.
        let spare = left.saturating_sub(self.records_bytes);
        let longer = (left / CHUNK_SHARE).max(spare) / (CHUNK_ROWS as u64 * self.row_bytes).max(1);
        let more = usize::try_from(longer).unwrap_or(0).min(MAX_CHUNK_ROWS / CHUNK_ROWS);
        let rows = CHUNK_ROWS * (1 + more);
        plan.set_chunk_rows(rows.min(self.most_chunk_rows.max(CHUNK_ROWS)));
        plan.slots_bytes = (budget - plan.fixed_bytes()).min(self.records_bytes);
        Ok(plan)
    }

    fn set_chunk_rows(&mut self, rows: usize) {
        self.chunk_rows = rows;
        self.scratch_bytes = rows as u64 * self.row_bytes + self.logits_bytes;
    }

    /// The smallest budget: everything but the experts, and those of one token and layer.
    pub fn minimum_bytes(&self) -> u64 {
        self.least_fixed_bytes() + self.slot_bytes * self.top_k
    }

    /// Everything but the expert slots, with batches as short as they can be.
    pub fn least_fixed_bytes(&self) -> u64 {
        self.fixed_bytes() - (self.chunk_rows - CHUNK_ROWS) as u64 * self.row_bytes
    }

    /// Everything but the expert slots.
    pub fn fixed_bytes(&self) -> u64 {
        self.dense_bytes + self.kv_bytes + self.state_bytes + self.scratch_bytes + self.process_bytes
    }

    /// The whole budget.
    pub fn total_bytes(&self) -> u64 {
        self.fixed_bytes() + self.slots_bytes
    }
}

/// The budget of a process that was given none: most of what the machine has free, so that others find some as well, or
/// all of it if the model would not run otherwise. Without knowledge of the machine, four gigabytes more than the least.
fn default_budget(minimum: u64) -> u64 {
    let machine = Machine::look();
    let free = match (machine.available_bytes, machine.limit_bytes) {
        (Some(free), Some(limit)) => free.min(limit),
        (Some(free), None) | (None, Some(free)) => free,
        (None, None) => return minimum + (4 << 30),
    };
    let most = free - free / 4;
    if most < minimum { free } else { most }
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

/// About what the tokenizer takes: 13 MB were measured at 248,077 entries, 30 MB while it is loaded.
fn tokenizer_bytes(vocab: usize) -> u64 {
    vocab as u64 * 128
}
