//! What a sequence carries from token to token: keys and values, DeltaNet states, the convolution's last inputs.

use spinetail_core::{LayerKind, ModelConfig};
use spinetail_model::{BackendError, SavedState};

/// Keys and values of one attention layer, `[positions, kv_heads · head_dim]` each.
#[derive(Default)]
pub(crate) struct Kv {
    pub(crate) keys: Vec<f32>,
    pub(crate) values: Vec<f32>,
}

/// The recurrent state of one DeltaNet layer.
pub(crate) struct DeltaState {
    /// `[value_heads, value_dim, key_dim]`
    pub(crate) s: Vec<f32>,
    /// The last `conv_kernel − 1` inputs of the convolution, oldest first: `[conv_kernel − 1, conv_channels]`.
    pub(crate) conv: Vec<f32>,
}

/// One sequence's state over all layers.
pub(crate) struct Sequence {
    pub(crate) capacity: u32,
    pub(crate) length: u32,
    /// By attention layer, in order.
    pub(crate) kv: Vec<Kv>,
    /// By DeltaNet layer, in order.
    pub(crate) delta: Vec<DeltaState>,
}

impl Sequence {
    pub(crate) fn new(capacity: u32, c: &ModelConfig) -> Self {
        let d = &c.delta;
        let delta = || DeltaState {
            s: vec![0.0; d.value_heads * d.value_dim * d.key_dim],
            conv: vec![0.0; (d.conv_kernel - 1) * d.conv_channels()],
        };
        Self {
            capacity,
            length: 0,
            kv: (0..c.count(LayerKind::Attention)).map(|_| Kv::default()).collect(),
            delta: (0..c.count(LayerKind::Delta)).map(|_| delta()).collect(),
        }
    }

    pub(crate) fn save(&self) -> SavedState {
        let parts = self.delta.iter().flat_map(|d| [&d.s, &d.conv]);
        SavedState { position: self.length, recurrent: parts.flatten().copied().collect() }
    }

    pub(crate) fn restore(&mut self, state: &SavedState, kv_width: usize) -> Result<(), BackendError> {
        let wrong = BackendError::State { position: state.position };
        let kept = state.position as usize * kv_width;
        let total: usize = self.delta.iter().map(|d| d.s.len() + d.conv.len()).sum();
        if state.position > self.length || state.recurrent.len() != total {
            return Err(wrong);
        }
        // A step that failed half-way may have left fewer keys in the later layers than in the first.
        if self.kv.iter().any(|kv| kv.keys.len() < kept || kv.values.len() < kept) {
            return Err(wrong);
        }
        let mut at = 0;
        for part in self.delta.iter_mut().flat_map(|d| [&mut d.s, &mut d.conv]) {
            let n = part.len();
            part.copy_from_slice(&state.recurrent[at..at + n]);
            at += n;
        }
        for kv in &mut self.kv {
            kv.keys.truncate(kept);
            kv.values.truncate(kept);
        }
        self.length = state.position;
        Ok(())
    }
}
