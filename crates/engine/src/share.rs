//! One budget for two models that are in memory together, as when their predictions are compared.
//!
//! Must not open a model: it divides what their plans say that they need.

use crate::divergence::rows_bytes;
use crate::engine::EngineOptions;
use crate::error::EngineError;
use crate::machine::Machine;
use crate::memory::{MemoryPlan, default_budget};

/// How a budget is divided between two models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SharedBudget {
    /// Bytes for each.
    pub parts_bytes: [u64; 2],
    /// Bytes for comparing them.
    pub comparing_bytes: u64,
}

impl SharedBudget {
    /// All of it.
    pub fn total_bytes(&self) -> u64 {
        self.parts_bytes.iter().sum::<u64>() + self.comparing_bytes
    }
}

/// Divides the budget of `options` (without one, most of what the machine has free) between two models of `vocab` entries: each gets
/// what it needs at least, and of the rest half, or all that the other has no use for.
pub fn share_budget(
    plans: [&MemoryPlan; 2],
    vocab: usize,
    options: &EngineOptions,
) -> Result<SharedBudget, EngineError> {
    let least = plans.map(MemoryPlan::minimum_bytes);
    let useful = plans.map(MemoryPlan::useful_bytes);
    let comparing_bytes = rows_bytes(vocab);
    let minimum = least[0] + least[1] + comparing_bytes;
    let default = || default_budget(minimum, options, &Machine::look());
    let budget = options.memory_bytes.unwrap_or_else(default);
    let Some(rest) = budget.checked_sub(minimum) else {
        return Err(EngineError::SharedBudget { budget, least, comparing: comparing_bytes });
    };
    let wish = [useful[0] - least[0], useful[1] - least[1]];
    let first = wish[0].min((rest / 2).max(rest.saturating_sub(wish[1])));
    let second = wish[1].min(rest - first);
    Ok(SharedBudget { parts_bytes: [least[0] + first, least[1] + second], comparing_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Precision, inspect};

    fn options(context: u32, bytes: u64) -> EngineOptions {
        let precision = Precision::Exact;
        EngineOptions { context, precision, memory_bytes: Some(bytes), ..EngineOptions::default() }
    }

    fn plan(context: u32) -> (MemoryPlan, usize) {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/pip.qpack");
        let summary = inspect(&path, &options(context, 1 << 40)).unwrap();
        (summary.plan, summary.config.vocab)
    }

    /// Each part is enough for its model, nothing is given twice, and nothing is left over while it is of use.
    #[test]
    fn a_budget_is_divided_and_no_more_than_that() {
        let ((small, vocab), (large, _)) = (plan(64), plan(4096));
        let least = small.minimum_bytes() + large.minimum_bytes() + rows_bytes(vocab);
        let all = small.useful_bytes() + large.useful_bytes() + rows_bytes(vocab);
        for budget in [least, least + 1, (least + all) / 2, all - 1, all, 1 << 40] {
            for plans in [[&small, &large], [&large, &small]] {
                let shared = share_budget(plans, vocab, &options(64, budget)).unwrap();
                assert_eq!(shared.total_bytes(), budget.min(all), "{budget} {shared:?}");
                for (plan, bytes) in plans.into_iter().zip(shared.parts_bytes) {
                    assert!(plan.with_budget(bytes).unwrap().total_bytes() <= bytes, "{budget} {shared:?}");
                }
            }
        }
        let refused = share_budget([&small, &large], vocab, &options(64, least - 1)).unwrap_err().to_string();
        assert!(refused.contains(&format!("at least {} MiB together", least.div_ceil(1 << 20))), "{refused}");
    }

    #[test]
    fn what_is_of_use_holds_every_expert() {
        let (plan, _) = plan(4096);
        let divided = plan.with_budget(plan.useful_bytes()).unwrap();
        let more = plan.with_budget(1 << 40).unwrap();
        assert_eq!((divided.slots_bytes, divided.chunk_rows), (more.slots_bytes, more.chunk_rows));
    }
}
