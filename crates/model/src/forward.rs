//! One pass of a batch through the layers: the backend computes, the store fetches, this decides the order.

use spinetail_core::{ExpertId, LayerKind, ModelConfig};
use spinetail_store::{ExpertStore, StoreError};

use crate::{Backend, BackendError, RoutedRow, Routing, Row};

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

/// Memory that steps reuse.
#[derive(Debug, Default)]
pub struct Scratch {
    routing: Routing,
    /// Distinct experts of the batch, ascending, and the rows of each: `rows[starts[i]..starts[i + 1]]`.
    ids: Vec<ExpertId>,
    starts: Vec<usize>,
    rows: Vec<RoutedRow>,
    /// (expert, row) pairs to sort.
    pairs: Vec<(u16, RoutedRow)>,
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
    backend.embed(rows)?;
    for (layer, &kind) in config.layers.iter().enumerate() {
        run_layer(backend, store, layer, kind, scratch)?;
        after_layer(layer, backend)?;
    }
    Ok(())
}

fn run_layer(
    backend: &mut dyn Backend,
    store: &mut ExpertStore,
    layer: usize,
    kind: LayerKind,
    scratch: &mut Scratch,
) -> Result<(), StepError> {
    match kind {
        LayerKind::Attention => backend.attention(layer)?,
        LayerKind::Delta => backend.delta_net(layer)?,
    }
    // The one place where the host has to wait for the backend: which records are needed is known only now.
    backend.route(layer, &mut scratch.routing)?;
    scratch.group(layer);
    let mut fetch = store.fetch(&scratch.ids);
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
