//! Who computes: threads, kernels and precision, and the one operation that takes nearly all of the time.

use spinetail_core::Format;
use spinetail_model::BackendError;

use crate::kernels::{Activations, Isa, Kernels, SharedOut, Weights};
use crate::pool::{Pool, PoolOptions};

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

/// Bytes of weights that a thread takes at a time: some microseconds of work.
const CHUNK_BYTES: usize = 64 << 10;

/// Rows of weights that kernels like to take together.
const ROW_BLOCK: usize = 8;

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

    /// All products of the same inputs, in one fork and join.
    pub(crate) fn products(&self, x: &mut Activations, products: &[Product<'_>]) {
        let fast = |p: &Product<'_>| p.rounds && self.precision == Precision::Fast;
        for p in products.iter().filter(|p| fast(p)) {
            if let Format::Affine(a) = p.weights.format() {
                x.prepare(&self.kernels, a);
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
