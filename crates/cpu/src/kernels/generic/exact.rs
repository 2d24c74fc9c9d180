//! Products of stored weights with f32 activations.
//!
//! One element of the output is sixteen sums, lane i over the columns i, i + 16, … in ascending order, by fused
//! multiply–adds of weights widened to f32 as `dequantize_row` says (with one rounding instead of two, which differs
//! for f32 scales only), and then one sum of the lanes. Columns past the end count as zeros.

use std::marker::PhantomData;
use std::ops::Range;

use spinetail_core::{Affine, DType};

use super::scales::Scales;
use super::tiles::{AHEAD_BYTES, Tile, run};
use crate::kernels::activations::CHUNK;
use crate::kernels::operands::{SharedOut, Weights};
use crate::kernels::vector::{DTYPES, LANES, Vector, prefetch};

/// `out[n, rows] = x · Wᵀ` for a range of rows of affine weights.
///
/// # Safety
/// The processor has the instruction set of `V`; `rows` lie within `w`, which is of format `a` and of width `BITS`; `x`
/// is `[n, columns]`, `out` has room.
#[inline(always)]
pub(in crate::kernels) unsafe fn affine<V: Vector, const BITS: usize>(
    w: &Weights<'_>,
    a: Affine,
    rows: Range<usize>,
    x: &[f32],
    out: &SharedOut<'_>,
) {
    let tile = Coded::<V, BITS> { w, a, scales: Scales::new(w, a), x, v: PhantomData };
    // SAFETY: as the caller promises.
    unsafe { run::<_, 4, true>(&tile, rows, x.len() / w.columns, out) }
}

/// `out[n, rows] = x · Wᵀ` for a range of rows of plain weights.
///
/// # Safety
/// As [`affine`], for weights of type `dtype`.
#[inline(always)]
pub(in crate::kernels) unsafe fn plain<V: Vector>(
    w: &Weights<'_>,
    dtype: DType,
    rows: Range<usize>,
    x: &[f32],
    out: &SharedOut<'_>,
) {
    let n = x.len() / w.columns;
    // SAFETY: as the caller promises.
    unsafe {
        match dtype {
            DType::F32 => run::<_, 4, true>(&Plain::<V, 0> { w, x, v: PhantomData }, rows, n, out),
            DType::F16 => run::<_, 4, true>(&Plain::<V, 1> { w, x, v: PhantomData }, rows, n, out),
            DType::Bf16 => run::<_, 4, true>(&Plain::<V, 2> { w, x, v: PhantomData }, rows, n, out),
        }
    }
}

/// Plain weights, of type `DTYPES[DTYPE]`.
struct Plain<'a, V, const DTYPE: usize> {
    w: &'a Weights<'a>,
    x: &'a [f32],
    v: PhantomData<V>,
}

impl<V: Vector, const DTYPE: usize> Tile for Plain<'_, V, DTYPE> {
    type Input = *const f32;

    #[inline(always)]
    unsafe fn input(&self, i: usize) -> *const f32 {
        self.x[i * self.w.columns..].as_ptr()
    }

    #[inline(always)]
    unsafe fn tile<const R: usize, const N: usize>(&self, row: usize, x: [*const f32; N]) -> [[f32; N]; R] {
        let (dtype, columns) = (DTYPES[DTYPE], self.w.columns);
        let stride = columns * dtype.bytes();
        let w = self.w.weight[row * stride..(row + R) * stride].as_ptr();
        // The next rows of this tile are being read already.
        let ahead = AHEAD_BYTES.max(R * stride);
        // SAFETY: the rows were just checked to lie within the weights, and the caller has rows of x; the reads below
        // stay within a row.
        unsafe {
            let mut sums = [[V::splat(0.0); N]; R];
            let whole = columns / LANES * LANES;
            let mut at = 0;
            while at < whole {
                let mut xs = [V::splat(0.0); N];
                for n in 0..N {
                    xs[n] = V::load(x[n].add(at));
                }
                for r in 0..R {
                    let w = w.add(r * stride + at * dtype.bytes());
                    prefetch(w.wrapping_add(ahead));
                    let w = V::widen(dtype, w);
                    for n in 0..N {
                        sums[r][n] = w.fma(xs[n], sums[r][n]);
                    }
                }
                at += LANES;
            }
            if whole < columns {
                let rest = columns - whole;
                for r in 0..R {
                    let w = V::widen_part(dtype, w.add(r * stride + whole * dtype.bytes()), rest);
                    for n in 0..N {
                        sums[r][n] = w.fma(V::load_part(x[n].add(whole), rest, 0.0), sums[r][n]);
                    }
                }
            }
            lane_sums(sums)
        }
    }
}

struct Coded<'a, V, const BITS: usize> {
    w: &'a Weights<'a>,
    a: Affine,
    scales: Scales<'a>,
    x: &'a [f32],
    v: PhantomData<V>,
}

impl<V: Vector, const BITS: usize> Tile for Coded<'_, V, BITS> {
    type Input = *const f32;

    #[inline(always)]
    unsafe fn input(&self, i: usize) -> *const f32 {
        self.x[i * self.w.columns..].as_ptr()
    }

    #[inline(always)]
    unsafe fn tile<const R: usize, const N: usize>(&self, row: usize, x: [*const f32; N]) -> [[f32; N]; R] {
        let (group, columns) = (self.a.group_size, self.w.columns);
        let (groups, stride) = (columns / group, self.a.code_bytes(columns));
        let codes = self.w.weight[row * stride..(row + R) * stride].as_ptr();
        // About the next tile, as for plain weights; a constant, since this loop is short of registers.
        let ahead = AHEAD_BYTES / 4 * BITS;
        // SAFETY: the rows were just checked to lie within the weights, and the caller has rows of x; columns are a
        // multiple of the group size, and that of 32.
        unsafe {
            let mut sums = [[V::splat(0.0); N]; R];
            let mut first = 0;
            while first < groups {
                let count = CHUNK.min(groups - first);
                let mut scales = [[0.0; CHUNK]; R];
                let mut biases = [[0.0; CHUNK]; R];
                for r in 0..R {
                    (scales[r], biases[r]) = self.scales.floats::<V::Eight>(row + r, first, count);
                }
                for g in 0..count {
                    let mut at = (first + g) * group;
                    let end = at + group;
                    while at < end {
                        for half in 0..2 {
                            let mut xs = [V::splat(0.0); N];
                            for n in 0..N {
                                xs[n] = V::load(x[n].add(at + half * LANES));
                            }
                            for r in 0..R {
                                let unit = codes.add(r * stride + at / 8 * BITS);
                                if half == 0 {
                                    prefetch(unit.wrapping_add(ahead));
                                }
                                let q = V::codes::<BITS>(unit, half);
                                let w = q.fma(V::splat(scales[r][g]), V::splat(biases[r][g]));
                                for n in 0..N {
                                    sums[r][n] = w.fma(xs[n], sums[r][n]);
                                }
                            }
                        }
                        at += 2 * LANES;
                    }
                }
                first += CHUNK;
            }
            lane_sums(sums)
        }
    }
}

/// # Safety
/// As [`Vector::sum`].
#[inline(always)]
unsafe fn lane_sums<V: Vector, const R: usize, const N: usize>(sums: [[V; N]; R]) -> [[f32; N]; R] {
    let mut out = [[0.0; N]; R];
    for r in 0..R {
        for n in 0..N {
            // SAFETY: as the caller promises.
            out[r][n] = unsafe { sums[r][n].sum() };
        }
    }
    out
}
