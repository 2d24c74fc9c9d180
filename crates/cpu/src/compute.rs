//! Who computes: threads, kernels and precision, and the one operation that takes nearly all of the time.

use spinetail_core::{Affine, Format, ModelConfig};
use spinetail_model::BackendError;

use crate::kernels::{Activations, Isa, Kernels, SharedOut, Weights};
use crate::moe::add;
use crate::pool::{Pool, PoolOptions};
use crate::{attention, delta};

/// How numbers are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Precision {
    /// f32 throughout: the reference path.
    Exact,
    /// Activations in 8 bits against quantized weights, keys and values in 16.
    #[default]
    Fast,
}

impl Precision {
    /// Bytes of one element of a key or a value.
    pub const fn kv_element_bytes(self) -> usize {
        match self {
            Self::Exact => 4,
            Self::Fast => 2,
        }
    }
}

/// What a backend is made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CpuOptions {
    /// Threads that compute; `None` is one per processor that this process may use.
    pub threads: Option<usize>,
    /// The instruction set; `None` is the best that this processor has.
    pub isa: Option<Isa>,
    /// How numbers are computed.
    pub precision: Precision,
}

impl CpuOptions {
    /// Bytes that a backend with these options takes to mix tokens in sequences of up to `context` positions, whatever the
    /// batch.
    pub fn mixer_scratch_bytes(&self, c: &ModelConfig, context: u32) -> u64 {
        let threads = self.threads.unwrap_or(PoolOptions::default().threads);
        let attention = attention::scratch_bytes(&c.attention, context as usize, threads);
        (attention + delta::scratch_bytes(&c.delta, threads)) as u64
    }
}

/// Bytes of weights that a thread takes at a time: some microseconds of work.
const CHUNK_BYTES: usize = 64 << 10;

/// Rows of weights that kernels take together: a panel.
const ROW_BLOCK: usize = 16;

/// Rows of activations that a thread takes at a time.
pub(crate) const ACTIVATION_ROWS: usize = 8;

pub(crate) struct Compute {
    pub(crate) pool: Pool,
    pub(crate) kernels: Kernels,
    pub(crate) precision: Precision,
}

/// A product: a stored matrix, whether its inputs may be rounded, and where the result goes, `[n, rows]`.
pub(crate) struct Product<'a> {
    weights: Weights<'a>,
    rounds: bool,
    out: SharedOut<'a>,
}

impl<'a> Product<'a> {
    /// A product in the precision that was asked for.
    pub(crate) fn new(weights: Weights<'a>, n: usize, out: &'a mut Vec<f32>) -> Self {
        out.resize(n * weights.rows(), 0.0);
        Self { rounds: true, out: SharedOut::new(out, weights.rows()), weights }
    }

    /// A product that is always in f32: small ones on which much depends, such as the router's.
    pub(crate) fn exact(weights: Weights<'a>, n: usize, out: &'a mut Vec<f32>) -> Self {
        Self { rounds: false, ..Self::new(weights, n, out) }
    }
}

impl Compute {
    pub(crate) fn new(options: &CpuOptions) -> Result<Self, BackendError> {
        let mut pool = PoolOptions::default();
        pool.threads = options.threads.unwrap_or(pool.threads);
        let refused = |reason: String| BackendError::Setup { reason };
        let kernels = match options.isa {
            None => Kernels::detect(),
            // Another set in its place would make a comparison of sets mean nothing.
            Some(isa) => Kernels::for_isa(isa).ok_or_else(|| {
                let best = Kernels::detect().isa();
                refused(format!(
                    "this processor has no {isa}; leave the instruction set out, or take {best} or scalar"
                ))
            })?,
        };
        let pool = Pool::new(pool).map_err(|e| refused(e.to_string()))?;
        Ok(Self { pool, kernels, precision: options.precision })
    }

    /// Makes the 8-bit form of `x` for weights of format `a`, unless it is there.
    pub(crate) fn code(&self, x: &mut Activations, a: Affine) {
        let Some((coding, lines)) = x.coding(&self.kernels, a) else { return };
        let len = coding.row_lines();
        self.pool.for_each_chunk(lines, len * ACTIVATION_ROWS, |i, lines| {
            for (j, to) in lines.chunks_exact_mut(len).enumerate() {
                coding.row(i * ACTIVATION_ROWS + j, to);
            }
        });
    }

    /// `up = silu(gate) · up` of rows of `width`.
    pub(crate) fn swiglu(&self, gate: &mut [f32], up: &mut [f32], width: usize) {
        let len = width * ACTIVATION_ROWS;
        self.pool.for_each_pair((gate, len), (up, len), |_, gate, up| self.kernels.swiglu(gate, up));
    }

    /// `y += x`, rows of `width`.
    pub(crate) fn add_rows(&self, y: &mut [f32], x: &[f32], width: usize) {
        let len = width * ACTIVATION_ROWS;
        self.pool.for_each_chunk(y, len, |i, y| add(y, &x[i * len..]));
    }

    /// `h = norm(x)`, row by row.
    pub(crate) fn norm_rows(&self, x: &[f32], w: &[f32], eps: f32, h: &mut Activations) {
        let len = w.len() * ACTIVATION_ROWS;
        self.pool.for_each_chunk(h.fill(x.len() / w.len(), w.len()), len, |i, h| {
            for (x, h) in x[i * len..].chunks_exact(w.len()).zip(h.chunks_exact_mut(w.len())) {
                self.kernels.rms_norm(x, w, eps, h);
            }
        });
    }

    /// All products of the same inputs, in one fork and join.
    pub(crate) fn products(&self, x: &mut Activations, products: &[Product<'_>]) {
        let fast = |p: &Product<'_>| p.rounds && self.precision == Precision::Fast;
        for p in products.iter().filter(|p| fast(p)) {
            if let Format::Affine(a) = p.weights.format() {
                self.code(x, a);
            }
        }
        let x = &*x;
        let mut chunks = Vec::new();
        for (i, p) in products.iter().enumerate() {
            let rows = p.weights.rows();
            let step =
                (CHUNK_BYTES / p.weights.row_bytes().max(1)).next_multiple_of(ROW_BLOCK).max(ROW_BLOCK);
            chunks.extend((0..rows).step_by(step).map(|at| (i, at..rows.min(at + step))));
        }
        self.pool.run(chunks.len(), &|c| {
            let (i, rows) = &chunks[c];
            let p = &products[*i];
            if fast(p) {
                self.kernels.fast(&p.weights, rows.clone(), x, &p.out);
            } else {
                self.kernels.exact(&p.weights, rows.clone(), x.x(), &p.out);
            }
        });
    }
}
