//! What a sequence carries from token to token: keys and values, DeltaNet states, the convolution's last inputs.

use std::sync::Arc;

use spinetail_core::{LayerKind, ModelConfig};
use spinetail_model::{BackendError, SavedState, SequenceId};

use crate::aligned::Aligned;
use crate::compute::Precision;
use crate::kernels::{Kernels, KeyValues};

/// Keys and values of one attention layer, `[positions, kv_heads · head_dim]` each.
///
/// Memory for the whole context is set aside at once and becomes resident as it is filled, so that growing neither
/// copies nor takes more than was reckoned.
pub(crate) enum Kv {
    F32 { keys: Vec<f32>, values: Vec<f32> },
    F16 { keys: Vec<u16>, values: Vec<u16> },
}

impl Kv {
    fn new(precision: Precision, elements: usize) -> Result<Self, BackendError> {
        Ok(match precision {
            Precision::Exact => Self::F32 { keys: reserved(elements)?, values: reserved(elements)? },
            Precision::Fast => Self::F16 { keys: reserved(elements)?, values: reserved(elements)? },
        })
    }

    /// Elements of the keys, which are as many as of the values.
    fn len(&self) -> usize {
        match self {
            Self::F32 { keys, .. } => keys.len(),
            Self::F16 { keys, .. } => keys.len(),
        }
    }

    /// Forgets what lies past the first `elements`.
    pub(crate) fn truncate(&mut self, elements: usize) {
        match self {
            Self::F32 { keys, values } => {
                keys.truncate(elements);
                values.truncate(elements);
            }
            Self::F16 { keys, values } => {
                keys.truncate(elements);
                values.truncate(elements);
            }
        }
    }

    /// Appends the key and value of one position.
    pub(crate) fn push(&mut self, kernels: &Kernels, k: &[f32], v: &[f32]) {
        match self {
            Self::F32 { keys, values } => {
                keys.extend_from_slice(k);
                values.extend_from_slice(v);
            }
            Self::F16 { keys, values } => {
                for (to, x) in [(keys, k), (values, v)] {
                    let at = to.len();
                    to.resize(at + x.len(), 0);
                    kernels.narrow(x, &mut to[at..]);
                }
            }
        }
    }

    /// The head whose first dimension is element `at` of every position.
    pub(crate) fn head(&self, at: usize, width: usize) -> KeyValues<'_> {
        match self {
            Self::F32 { keys, values } => KeyValues::f32(&keys[at..], &values[at..], width),
            Self::F16 { keys, values } => KeyValues::f16(&keys[at..], &values[at..], width),
        }
    }
}

/// The recurrent state of one DeltaNet layer.
pub(crate) struct DeltaState {
    /// `[value_heads, value_dim, key_dim]`
    pub(crate) s: Aligned,
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
    pub(crate) fn new(capacity: u32, c: &ModelConfig, precision: Precision) -> Result<Self, BackendError> {
        let d = &c.delta;
        let delta = |_| {
            Ok(DeltaState {
                s: Aligned::try_zeroed(d.value_heads * d.value_dim * d.key_dim)?,
                conv: zeroed((d.conv_kernel - 1) * d.conv_channels())?,
            })
        };
        let elements = capacity as usize * c.attention.kv_heads * c.attention.head_dim;
        Ok(Self {
            capacity,
            length: 0,
            kv: (0..c.count(LayerKind::Attention))
                .map(|_| Kv::new(precision, elements))
                .collect::<Result<_, _>>()?,
            delta: (0..c.count(LayerKind::Delta)).map(delta).collect::<Result<_, BackendError>>()?,
        })
    }

    /// Random keys, values and states for `length` positions; see [`Backend::fill_sequence`].
    ///
    /// [`Backend::fill_sequence`]: spinetail_model::Backend::fill_sequence
    pub(crate) fn fill(&mut self, kernels: &Kernels, length: u32, kv_width: usize, seed: u64) {
        let mut state = seed;
        for kv in &mut self.kv {
            kv.truncate(0);
            // A position is a window of one table at a random place: drawing each number would take minutes at long
            // contexts.
            let table: Vec<f32> = (0..4 * kv_width).map(|_| random(&mut state)).collect();
            for _ in 0..length {
                let at = |state: &mut u64| (random(state).abs() * (3 * kv_width) as f32) as usize;
                let (k, v) = (at(&mut state), at(&mut state));
                kv.push(kernels, &table[k..k + kv_width], &table[v..v + kv_width]);
            }
        }
        for part in self.delta.iter_mut().flat_map(|d| [&mut d.s[..], &mut d.conv[..]]) {
            // As small as a state is that decays.
            part.iter_mut().for_each(|x| *x = 0.1 * random(&mut state));
        }
        self.length = length;
    }

    pub(crate) fn save(&self, sequence: SequenceId) -> SavedState {
        let parts: Vec<&[f32]> = self.delta.iter().flat_map(|d| [&d.s[..], &d.conv[..]]).collect();
        // Made for its length: to grow would take more memory than it is reckoned with.
        let recurrent: Vec<f32> = parts.concat();
        SavedState { sequence, position: self.length, recurrent: Arc::new(recurrent) }
    }

    /// Whether every attention layer has exactly the keys of the tokens so far. A step that failed half-way leaves
    /// fewer in the later layers.
    pub(crate) fn is_whole(&self, kv_width: usize) -> bool {
        self.kv.iter().all(|kv| kv.len() == self.length as usize * kv_width)
    }

    pub(crate) fn restore(&mut self, state: &SavedState, kv_width: usize) -> Result<(), BackendError> {
        let wrong = BackendError::State { position: state.position };
        let kept = state.position as usize * kv_width;
        let total: usize = self.delta.iter().map(|d| d.s.len() + d.conv.len()).sum();
        let Some(recurrent) = state.recurrent.downcast_ref::<Vec<f32>>() else {
            return Err(wrong);
        };
        if state.position > self.length || recurrent.len() != total {
            return Err(wrong);
        }
        // A step that failed half-way may have left fewer keys in the later layers than in the first.
        if self.kv.iter().any(|kv| kv.len() < kept) {
            return Err(wrong);
        }
        let mut at = 0;
        for part in self.delta.iter_mut().flat_map(|d| [&mut d.s[..], &mut d.conv[..]]) {
            let n = part.len();
            part.copy_from_slice(&recurrent[at..at + n]);
            at += n;
        }
        self.kv.iter_mut().for_each(|kv| kv.truncate(kept));
        self.length = state.position;
        Ok(())
    }
}

/// The next of a sequence of numbers in −1..1 (splitmix64).
fn random(state: &mut u64) -> f32 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((z ^ (z >> 31)) >> 40) as f32 / (1 << 23) as f32 - 1.0
}

/// Room for `n` elements, or an error instead of the end of the process.
fn reserved<T>(n: usize) -> Result<Vec<T>, BackendError> {
    let mut v = Vec::new();
    v.try_reserve_exact(n).map_err(|_| BackendError::Memory { bytes: (n * size_of::<T>()) as u64 })?;
    Ok(v)
}

fn zeroed(n: usize) -> Result<Vec<f32>, BackendError> {
    let mut v = reserved(n)?;
    v.resize(n, 0.0);
    Ok(v)
}
