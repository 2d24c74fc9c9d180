//! One pass of a batch through the layers: the backend computes, the store fetches, this decides the order.

use spinetail_core::{ExpertId, LayerKind, ModelConfig};
use spinetail_store::policy::{MAX_DECODE_ROWS, SWEEP_WEIGHT};
use spinetail_store::trace::TraceWriter;
use spinetail_store::{ExpertStore, StoreError, Use};

use crate::{Backend, BackendError, Lookahead, RoutedRow, Routing, Row};

/// Why a step failed. The sequences of the batch are then in an undefined state and have to be dropped or restored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// The backend refused.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// An expert could not be had.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Memory that steps reuse, and what they learn from each other.
#[derive(Debug, Default)]
pub struct Scratch {
    /// Whether the next layer's experts are read ahead.
    pub lookahead: Lookahead,
    routing: Routing,
    /// What the next layer may need.
    guess: Vec<ExpertId>,
    /// Distinct experts of the batch, ascending, and the rows of each: `rows[starts[i]..starts[i + 1]]`.
    ids: Vec<ExpertId>,
    starts: Vec<usize>,
    rows: Vec<RoutedRow>,
    /// (expert, row) pairs to sort.
    pairs: Vec<(u16, RoutedRow)>,
    /// Where routing is recorded, if it is; steps are begun and ended by whoever put it here.
    pub trace: Option<TraceWriter>,
}

impl Scratch {
    /// Groups the rows of `self.routing` by expert.
    fn group(&mut self, layer: usize) {
        let k = self.routing.top_k;
        self.pairs.clear();
        for (i, (&expert, &weight)) in self.routing.ids.iter().zip(&self.routing.weights).enumerate() {
            let row = RoutedRow { row: (i / k) as u32, rank: (i % k) as u32, weight };
            self.pairs.push((expert, row));
        }
        self.pairs.sort_unstable_by_key(|&(expert, row)| (expert, row.row));
        self.ids.clear();
        self.starts.clear();
        self.rows.clear();
        for &(expert, row) in &self.pairs {
            let id = ExpertId { layer: layer as u16, expert };
            if self.ids.last() != Some(&id) {
                self.ids.push(id);
                self.starts.push(self.rows.len());
            }
            self.rows.push(row);
        }
        self.starts.push(self.rows.len());
    }
}

/// Runs `rows` through all layers, leaving the last layer's output in the backend for [`Backend::head`].
///
/// `after_layer` sees the backend after each layer, as in dumping a layer's output.
pub fn step(
    backend: &mut dyn Backend,
    store: &mut ExpertStore,
    config: &ModelConfig,
    rows: &[Row],
    scratch: &mut Scratch,
    after_layer: &mut dyn FnMut(usize, &mut dyn Backend) -> Result<(), BackendError>,
) -> Result<(), StepError> {
    let how = match rows.len() {
        ..=MAX_DECODE_ROWS => Use::DECODE,
        _ => Use { weight: SWEEP_WEIGHT, sweep: true, in_order: true },
    };
    // While slots are free, neither way is as it will be.
    let looks_ahead = !how.sweep && store.is_full() && !store.holds_everything();
    let ahead = looks_ahead && scratch.lookahead.begin();
    backend.embed(rows)?;
    for (layer, &kind) in config.layers.iter().enumerate() {
        let next = Some(layer + 1).filter(|&l| ahead && l < config.layers.len());
        run_layer(backend, store, layer, kind, how, next, scratch)?;
        after_layer(layer, backend)?;
    }
    store.tick();
    if looks_ahead {
        scratch.lookahead.end();
    }
    Ok(())
}

fn run_layer(
    backend: &mut dyn Backend,
    store: &mut ExpertStore,
    layer: usize,
    kind: LayerKind,
    how: Use,
    next: Option<usize>,
    scratch: &mut Scratch,
) -> Result<(), StepError> {
    match kind {
        LayerKind::Attention => backend.attention(layer)?,
        LayerKind::Delta => backend.delta_net(layer)?,
    }
    // Here the host has to wait for the backend: which records are needed is known only now.
    backend.route(layer, &mut scratch.routing)?;
    scratch.group(layer);
    if let Some(trace) = &mut scratch.trace {
        trace.layer(&scratch.ids);
    }
    let mut fetch = store.fetch(&scratch.ids, how)?;
    if let Some(next) = next {
        // On the residual as it is now: this layer's experts are yet to be added, and most of the next one's are seen.
        backend.predict(next, &mut scratch.routing)?;
        scratch.guess.clear();
        for &expert in &scratch.routing.ids {
            let id = ExpertId { layer: next as u16, expert };
            if !scratch.guess.contains(&id) {
                scratch.guess.push(id);
            }
        }
        fetch.guess(&scratch.guess)?;
    }
    // What follows, and the records that are in memory, are computed while the others are read.
    backend.shared_expert(layer)?;
    while let Some((i, lease)) = fetch.next()? {
        let rows = &scratch.rows[scratch.starts[i]..scratch.starts[i + 1]];
        backend.expert(layer, &lease, rows)?;
    }
    backend.combine(layer)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_grouped_by_expert_and_keep_their_rank() {
        let mut s = Scratch {
            routing: Routing {
                top_k: 2,
                ids: vec![1, 4, 0, 4, 1, 3],
                weights: vec![0.1, 0.2, 0.3, 0.4, 0.5, 0.6],
            },
            ..Scratch::default()
        };
        s.group(7);
        let ids: Vec<_> = s.ids.iter().map(|id| (id.layer, id.expert)).collect();
        assert_eq!(ids, [(7, 0), (7, 1), (7, 3), (7, 4)]);
        assert_eq!(s.starts, [0, 1, 3, 4, 6]);
        let rows: Vec<_> = s.rows.iter().map(|r| (r.row, r.rank, r.weight)).collect();
        assert_eq!(rows, [(1, 0, 0.3), (0, 0, 0.1), (2, 0, 0.5), (2, 1, 0.6), (0, 1, 0.2), (1, 1, 0.4)]);
    }
}
