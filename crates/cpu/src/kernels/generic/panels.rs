//! Products of affine weights with many rows of 8-bit activations: sixteen rows of weights, a panel, are unpacked once
//! and meet all inputs with a row to a lane, so that nothing is added across lanes.
//!
//! An element of the output is computed as in `fast`, to the byte: eight sums, over the groups i, i + 8, … in ascending
//! order, and then one sum of the eight. Only where they lie differs: there they are the lanes of one vector, here one
//! lane of eight vectors.

use std::mem::MaybeUninit;
use std::ops::Range;

use spinetail_core::Affine;

use crate::kernels::activations::{BLOCK, CHUNK, Coded, Line};
use crate::kernels::operands::{SharedOut, Weights};
use crate::kernels::vector::{LANES, Panel, Vector};

/// Inputs that a panel meets before the next one is unpacked: their activations stay in the second-level cache.
const INPUTS: usize = 256;

/// A panel, unpacked: memory that a thread uses again.
#[derive(Default)]
pub(in crate::kernels) struct Unpacked {
    group: usize,
    groups: usize,
    /// `[columns / 4, 16, 4]`: each line has four codes of every row.
    codes: Vec<Line>,
    /// `[groups, 16]`
    scales: Vec<f32>,
    /// As `scales`.
    biases: Vec<f32>,
}

/// Unpacks the rows from the given one on; where there are fewer than sixteen, the last is repeated.
pub(in crate::kernels) type Unpack = unsafe fn(&Weights<'_>, Affine, usize, &mut Unpacked);

/// Multiplies a panel with a range of inputs. The second range says which rows it stands for.
pub(in crate::kernels) type Multiply =
    unsafe fn(&Unpacked, &Coded, Range<usize>, Range<usize>, &SharedOut<'_>);

/// What an instruction set does with panels of a width.
#[derive(Clone, Copy)]
pub(in crate::kernels) struct Panels {
    pub(in crate::kernels) unpack: Unpack,
    pub(in crate::kernels) multiply: Multiply,
}

impl Panels {
    /// `out[n, rows] ≈ x · Wᵀ` for a range of rows.
    ///
    /// # Safety
    /// The processor has the instruction set of `self`, whose width is that of `a`; `rows` lie within `w`, which is of
    /// format `a`; `x` are codes in natural order, made for `n` rows of `w`'s columns; `out` has room.
    pub(in crate::kernels) unsafe fn products(
        &self,
        w: &Weights<'_>,
        a: Affine,
        rows: Range<usize>,
        x: &Coded,
        n: usize,
        out: &SharedOut<'_>,
        memory: &mut Unpacked,
    ) {
        for first in (0..n).step_by(INPUTS) {
            let inputs = first..n.min(first + INPUTS);
            for row in rows.clone().step_by(LANES) {
                let these = row..rows.end.min(row + LANES);
                // SAFETY: as the caller promises.
                unsafe {
                    (self.unpack)(w, a, row, memory);
                    fetch_ahead(w, a, these.end..rows.end.min(these.end + LANES));
                    (self.multiply)(memory, x, inputs.clone(), these, out);
                }
            }
        }
    }
}

/// Asks for the rows of the next panel while this one is multiplied: each is read from its own place, a little at a time,
/// which no processor foresees.
fn fetch_ahead(w: &Weights<'_>, a: Affine, rows: Range<usize>) {
    let (stride, part) = (a.code_bytes(w.columns), w.columns / a.group_size * a.scales.bytes());
    for (bytes, stride) in [(w.weight, stride), (w.scales, part), (w.biases, part)] {
        bytes[rows.start * stride..rows.end * stride].chunks(64).for_each(fetch);
    }
}

/// Asks for a cache line; stable Rust can on x86 only.
fn fetch(_line: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: it is a hint, and the line is there.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(_line.as_ptr().cast());
    }
}

/// Sixteen vectors of sixteen.
#[repr(align(64))]
struct Square([f32; LANES * LANES]);

/// See [`Unpack`].
///
/// # Safety
/// The processor has the instruction set of `P`; `row` lies within `w`, which is of format `a` and of width `BITS`.
#[inline(always)]
pub(in crate::kernels) unsafe fn unpack<P: Panel, const BITS: usize>(
    w: &Weights<'_>,
    a: Affine,
    row: usize,
    to: &mut Unpacked,
) {
    let (groups, stride, bytes) = (w.columns / a.group_size, a.code_bytes(w.columns), BLOCK / 8 * BITS);
    (to.group, to.groups) = (a.group_size, groups);
    to.codes.resize(w.columns.div_ceil(BLOCK) * LANES, Line([0; 64]));
    to.scales.resize(groups.next_multiple_of(LANES) * LANES, 0.0);
    to.biases.resize(groups.next_multiple_of(LANES) * LANES, 0.0);
    let last = w.rows - 1;
    let mut square = Square([0.0; LANES * LANES]);
    // SAFETY: blocks of codes and sixteen elements are read from slices that have them, or from copies that do; the
    // square has room for sixteen vectors, and so have sixteen lines and sixteen groups of a panel.
    unsafe {
        for (block, lines) in to.codes.chunks_exact_mut(LANES).enumerate() {
            for i in 0..LANES {
                // The block may go on into the next row: what is beyond the columns meets no activation.
                let codes = &w.weight[(row + i).min(last) * stride + block * bytes..];
                let mut copy = [0u8; BLOCK];
                let codes = if codes.len() >= bytes {
                    codes.as_ptr()
                } else {
                    copy[..codes.len()].copy_from_slice(codes);
                    copy.as_ptr()
                };
                P::bytes::<BITS>(codes, square.0.as_mut_ptr().add(i * LANES).cast());
            }
            P::transpose(square.0.as_ptr(), lines.as_mut_ptr().cast());
        }
        for (stored, out) in [(w.scales, &mut to.scales), (w.biases, &mut to.biases)] {
            for (first, out) in (0..groups).step_by(LANES).zip(out.chunks_exact_mut(LANES * LANES)) {
                let (count, size) = (LANES.min(groups - first), a.scales.bytes());
                for i in 0..LANES {
                    let at = ((row + i).min(last) * groups + first) * size;
                    let stored = &stored[at..at + count * size];
                    let wide = P::Floats::widen_part(a.scales, stored.as_ptr(), count);
                    wide.store(square.0.as_mut_ptr().add(i * LANES));
                }
                P::transpose(square.0.as_ptr(), out.as_mut_ptr());
            }
        }
    }
}

/// See [`Multiply`]. Takes `MANY` inputs at a time, and `FEW` for the last ones.
///
/// # Safety
/// As [`Panels::products`], for a panel that was unpacked.
#[inline(always)]
pub(in crate::kernels) unsafe fn multiply<
    P: Panel,
    const BITS: usize,
    const MANY: usize,
    const FEW: usize,
>(
    p: &Unpacked,
    x: &Coded,
    inputs: Range<usize>,
    rows: Range<usize>,
    out: &SharedOut<'_>,
) {
    let mut first = inputs.start;
    // SAFETY: as the caller promises.
    unsafe {
        while first < inputs.end {
            if inputs.end - first > FEW {
                tile::<P, BITS, MANY>(p, x, first..inputs.end, rows.clone(), out);
                first += MANY;
            } else {
                tile::<P, BITS, FEW>(p, x, first..inputs.end, rows.clone(), out);
                first += FEW;
            }
        }
    }
}

/// The first `N` of `inputs`; where there are fewer, the last is repeated and its results are dropped.
///
/// # Safety
/// As [`multiply`].
#[inline(always)]
unsafe fn tile<P: Panel, const BITS: usize, const N: usize>(
    p: &Unpacked,
    x: &Coded,
    inputs: Range<usize>,
    rows: Range<usize>,
    out: &SharedOut<'_>,
) {
    let mut x_rows = [x.row(inputs.start); N];
    for n in 1..N {
        x_rows[n] = x.row((inputs.start + n).min(inputs.end - 1));
    }
    // SAFETY: as the caller promises: inputs and panel have codes, scales and sums for every group; all lanes are written
    // before they are read.
    unsafe {
        // Zeros would cost as much as some groups.
        let mut lanes = [[MaybeUninit::<P::Floats>::uninit(); N]; CHUNK];
        for lane in 0..CHUNK {
            let mut sums = [P::Floats::splat(0.0); N];
            for g in (lane..p.groups).step_by(CHUNK) {
                let mut codes = [std::ptr::null(); N];
                for n in 0..N {
                    codes[n] = x_rows[n].codes.as_ptr().cast::<u8>().add(g * p.group);
                }
                let panel = p.codes.as_ptr().cast::<u8>().add(g * p.group * LANES);
                let dots = P::dots::<BITS, N>(panel, p.group / (BLOCK / 2), codes);
                let scales = P::Floats::load(p.scales.as_ptr().add(g * LANES));
                let biases = P::Floats::load(p.biases.as_ptr().add(g * LANES));
                for n in 0..N {
                    let x_scale = P::Floats::splat(*x_rows[n].scales.as_ptr().add(g));
                    let x_sum = P::Floats::splat(*x_rows[n].sums.as_ptr().add(g));
                    sums[n] = biases.fma(x_sum, dots[n].fma(scales.mul(x_scale), sums[n]));
                }
            }
            // What groups past the end add: nothing, but to a zero its sign.
            let past = !p.groups.is_multiple_of(CHUNK) && lane >= p.groups % CHUNK;
            for n in 0..N {
                lanes[lane][n].write(if past { sums[n].add(P::Floats::splat(0.0)) } else { sums[n] });
            }
        }
        for n in 0..N.min(inputs.len()) {
            let lane = |i: usize| lanes[i][n].assume_init();
            let four = |i: usize| lane(i).add(lane(i + 4));
            let sum = four(0).add(four(2)).add(four(1).add(four(3)));
            for (row, value) in rows.clone().zip(sum.to_array()) {
                out.set(inputs.start + n, row, value);
            }
        }
    }
}
