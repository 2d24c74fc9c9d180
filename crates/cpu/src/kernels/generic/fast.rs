//! Products of affine weights with 8-bit activations.
//!
//! One element of the output is eight sums, lane i over the groups i, i + 8, … in ascending order: first
//! `Σ(code · q)`, an exact integer, times `scale · scale_x`, then the bias times `scale_x · Σq`, both by fused
//! multiply–add; and then one sum of the lanes. Groups past the end count as zeros.

use std::marker::PhantomData;
use std::ops::Range;

use spinetail_core::Affine;

use super::scales::Scales;
use super::tiles::{AHEAD_BYTES, Tile, run};
use crate::kernels::activations::{BLOCK, CHUNK, Coded, WIDE_SHIFT, width_index};
use crate::kernels::operands::{SharedOut, Weights};
use crate::kernels::vector::{Dot, Eight, prefetch};

/// `out[n, rows] ≈ x · Wᵀ` for a range of rows.
///
/// Group 64 is what models are published with: only its kernels take several inputs at a time.
///
/// # Safety
/// The processor has the instruction set of `D`; `rows` lie within `w`, which is of format `a` and of width `BITS`; `x`
/// are codes made for `n` rows of `w`'s columns in the order of `D`; `out` has room.
#[inline(always)]
pub(in crate::kernels) unsafe fn fast<D: Dot, const BITS: usize>(
    w: &Weights<'_>,
    a: Affine,
    rows: Range<usize>,
    x: &Coded,
    n: usize,
    out: &SharedOut<'_>,
) {
    let scales = Scales::new(w, a);
    // SAFETY: as the caller promises.
    unsafe {
        match a.group_size {
            32 => run::<_, 1, false>(&Product::<D, BITS, 32> { w, scales, x, d: PhantomData }, rows, n, out),
            64 => run::<_, 1, true>(&Product::<D, BITS, 64> { w, scales, x, d: PhantomData }, rows, n, out),
            _ => run::<_, 1, false>(&Product::<D, BITS, 128> { w, scales, x, d: PhantomData }, rows, n, out),
        }
    }
}

struct Product<'a, D, const BITS: usize, const GROUP: usize> {
    w: &'a Weights<'a>,
    scales: Scales<'a>,
    x: &'a Coded,
    d: PhantomData<D>,
}

/// One input row: its blocks of codes, and its scales and sums.
#[derive(Clone, Copy)]
struct Input {
    codes: *const u8,
    scales: *const f32,
    sums: *const f32,
}

impl<D: Dot, const BITS: usize, const GROUP: usize> Tile for Product<'_, D, BITS, GROUP> {
    type Input = Input;

    #[inline(always)]
    unsafe fn input(&self, i: usize) -> Input {
        let row = self.x.row(i);
        Input { codes: row.codes.as_ptr().cast(), scales: row.scales.as_ptr(), sums: row.sums.as_ptr() }
    }

    #[inline(always)]
    unsafe fn tile<const R: usize, const N: usize>(&self, row: usize, x: [Input; N]) -> [[f32; N]; R] {
        let (groups, group_bytes) = (self.w.columns / GROUP, GROUP / 8 * BITS);
        let line_bytes = if D::ORDERS[width_index(BITS)].wide { 2 * BLOCK } else { BLOCK };
        let mut out = [[0.0; N]; R];
        for (r, out) in out.iter_mut().enumerate() {
            let row = row + r;
            let row_codes = &self.w.weight[row * groups * group_bytes..(row + 1) * groups * group_bytes];
            let mut copy = [0u8; CHUNK * 128];
            // SAFETY: a chunk of codes is read from a slice that has it, or from the copy that does; the inputs have
            // activations, scales and sums for whole chunks.
            unsafe {
                let mut sums = [D::Floats::splat(0.0); N];
                for first in (0..groups).step_by(CHUNK) {
                    let count = CHUNK.min(groups - first);
                    let rest = &row_codes[first * group_bytes..];
                    let codes = if count == CHUNK {
                        rest.as_ptr()
                    } else {
                        copy[..rest.len()].copy_from_slice(rest);
                        copy.as_ptr()
                    };
                    let mut lines = [std::ptr::null(); N];
                    for n in 0..N {
                        lines[n] = x[n].codes.add(first * GROUP / BLOCK * line_bytes);
                    }
                    // Before the sums: the compiler would move those past the branches in here, a spilled product each.
                    let (scales, biases) = self.scales.eight::<D::Floats>(row, first, count);
                    let dots = Chunk::<D, BITS, GROUP, N> { codes, lines, d: PhantomData }.sums();
                    for n in 0..N {
                        let scales = scales.mul(D::Floats::load(x[n].scales.add(first)));
                        let sum = dots[n].fma(scales, sums[n]);
                        sums[n] = biases.fma(D::Floats::load(x[n].sums.add(first)), sum);
                    }
                }
                for n in 0..N {
                    out[n] = sums[n].sum();
                }
            }
        }
        out
    }
}

/// The codes of eight groups of a row, and the activations they meet.
struct Chunk<D, const BITS: usize, const GROUP: usize, const N: usize> {
    codes: *const u8,
    lines: [*const u8; N],
    d: PhantomData<D>,
}

impl<D: Dot, const BITS: usize, const GROUP: usize, const N: usize> Chunk<D, BITS, GROUP, N> {
    /// `Σ(code · q)` of eight groups.
    ///
    /// # Safety
    /// The pointers are valid for eight groups.
    #[inline(always)]
    unsafe fn sums(&self) -> [D::Floats; N] {
        // SAFETY: as the caller promises.
        unsafe {
            let mut out = [D::Floats::splat(0.0); N];
            if GROUP == BLOCK / 2 {
                let (a, b) = (self.joined(0), self.joined(2));
                for n in 0..N {
                    out[n] = D::half_sums(a[n], b[n]);
                }
            } else {
                let (a, b) = (self.four(0), self.four(4));
                for n in 0..N {
                    out[n] = D::whole_sums(a[n], b[n]);
                }
            }
            if D::ORDERS[width_index(BITS)].wide {
                for out in &mut out {
                    *out = out.mul(D::Floats::splat(1.0 / (1 << WIDE_SHIFT) as f32));
                }
            }
            out
        }
    }

    /// # Safety
    /// As [`Chunk::sums`].
    #[inline(always)]
    unsafe fn four(&self, i: usize) -> [D::Partial; N] {
        // SAFETY: as the caller promises.
        unsafe {
            let (mut a, b) = (self.joined(i), self.joined(i + 2));
            for n in 0..N {
                a[n] = D::join_joined(a[n], b[n]);
            }
            a
        }
    }

    /// # Safety
    /// As [`Chunk::sums`].
    #[inline(always)]
    unsafe fn joined(&self, i: usize) -> [D::Partial; N] {
        // SAFETY: as the caller promises.
        unsafe {
            let (mut a, b) = (self.part(i), self.part(i + 1));
            for n in 0..N {
                a[n] = D::join(a[n], b[n]);
            }
            a
        }
    }

    /// The products of group `i`, or of groups `2i` and `2i + 1` where they are half blocks.
    ///
    /// # Safety
    /// As [`Chunk::sums`].
    #[inline(always)]
    unsafe fn part(&self, i: usize) -> [D::Partial; N] {
        // SAFETY: as the caller promises.
        unsafe {
            if GROUP <= BLOCK {
                return self.block(i);
            }
            let (mut a, b) = (self.block(2 * i), self.block(2 * i + 1));
            for n in 0..N {
                a[n] = D::add(a[n], b[n]);
            }
            a
        }
    }

    /// # Safety
    /// As [`Chunk::sums`].
    #[inline(always)]
    unsafe fn block(&self, i: usize) -> [D::Partial; N] {
        let bytes = BLOCK / 8 * BITS;
        let line_bytes = if D::ORDERS[width_index(BITS)].wide { 2 * BLOCK } else { BLOCK };
        let codes = self.codes.wrapping_add(i * bytes);
        if i == 0 || i * bytes / 64 != (i - 1) * bytes / 64 {
            prefetch(codes.wrapping_add(AHEAD_BYTES));
        }
        let mut lines = self.lines;
        for line in &mut lines {
            *line = line.wrapping_add(i * line_bytes);
        }
        // SAFETY: as the caller promises.
        unsafe { D::block::<BITS, N>(codes, lines) }
    }
}
