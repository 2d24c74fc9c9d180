//! How a memory budget is divided before anything is loaded.

use spinetail_core::{ModelSource, dense_specs, mtp_prefix};
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

/// Rows of a prefill chunk.
pub(crate) const CHUNK_ROWS: usize = 64;

impl MemoryPlan {
    /// Slots used when no budget is given and the model has more.
    pub const DEFAULT_SLOTS_BYTES: u64 = 4 << 30;

    /// Divides `budget_bytes` (without one, what the machine has) among what the model needs at `context` positions in
    /// `precision`; the rest is for expert slots.
    pub fn new(
        source: &dyn ModelSource,
        context: u32,
        precision: Precision,
        budget_bytes: Option<u64>,
    ) -> Result<Self, EngineError> {
        let c = source.config();
        let mtp = mtp_prefix(0);
        let mtp = mtp.split('.').next().unwrap_or("mtp");
        // Prediction heads stay on the drive until something drafts with them.
        let resident = dense_specs(c).into_iter().filter(|s| !s.name.starts_with(mtp));
        let dense_bytes = resident.filter_map(|s| source.dense_spec(&s.name).map(|s| s.bytes() as u64)).sum();
        let layouts = (0..c.layers.len()).filter_map(|l| source.record_layout(l as u16));
        let slot_bytes = layouts.map(|l| slot_bytes(l.bytes)).max().unwrap_or_else(|| slot_bytes(1));
        let records_bytes = slot_bytes * (c.layers.len() * c.moe.experts) as u64;
        let widest =
            [c.delta.conv_channels(), 2 * c.attention.heads * c.attention.head_dim, c.hidden, c.moe.experts];
        let per_row = 8 * c.hidden + c.moe.top_k * c.hidden + 4 * widest.iter().max().unwrap_or(&0);
        let mut plan = Self {
            dense_bytes,
            kv_bytes: (c.kv_elements_per_token() * precision.kv_element_bytes()) as u64 * u64::from(context),
            state_bytes: 2 * 4 * c.state_elements() as u64,
            scratch_bytes: 4 * (CHUNK_ROWS * per_row + 2 * c.vocab) as u64,
            process_bytes: (16 << 20) + tokenizer_bytes(c.vocab),
            slots_bytes: 0,
            slot_bytes,
            records_bytes,
            top_k: c.moe.top_k as u64,
        };
        let minimum = plan.minimum_bytes();
        // Without a budget the machine is one: an allocation that cannot be met would end the process.
        let (budget, most) = match budget_bytes {
            Some(budget) => (budget, records_bytes),
            None => (
                Machine::look().usable_bytes().unwrap_or(u64::MAX),
                records_bytes.min(Self::DEFAULT_SLOTS_BYTES),
            ),
        };
        if budget < minimum {
            return Err(EngineError::Budget { budget, minimum, plan: Box::new(plan) });
        }
        plan.slots_bytes = (budget - plan.fixed_bytes()).min(most);
        Ok(plan)
    }

    /// The same model with another budget.
    pub fn with_budget(&self, budget: u64) -> Result<Self, EngineError> {
        let minimum = self.minimum_bytes();
        if budget < minimum {
            return Err(EngineError::Budget { budget, minimum, plan: Box::new(*self) });
        }
        Ok(Self { slots_bytes: (budget - self.fixed_bytes()).min(self.records_bytes), ..*self })
    }

    /// The smallest budget: everything but the experts, and those of one token and layer.
    pub fn minimum_bytes(&self) -> u64 {
        self.fixed_bytes() + self.slot_bytes * self.top_k
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

/// About what the tokenizer takes: 13 MB were measured at 248,077 entries, 30 MB while it is loaded.
fn tokenizer_bytes(vocab: usize) -> u64 {
    vocab as u64 * 128
}
