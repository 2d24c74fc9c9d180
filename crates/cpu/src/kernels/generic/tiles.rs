//! The order in which a product is computed: tiles of rows and inputs, so that a loaded weight serves several inputs
//! and a loaded input several rows. Elements never share a sum, so the order has no say in their bytes.

use std::ops::Range;

use crate::kernels::operands::SharedOut;

/// Rows whose weights stay in the first-level cache while a batch passes by.
const PANEL: usize = 16;

/// Bytes ahead of the weights at hand that a product asks for.
pub(super) const AHEAD_BYTES: usize = 4096;

/// A product of which tiles can be computed.
pub(super) trait Tile {
    /// One input row.
    type Input: Copy;

    /// Input row `i`.
    unsafe fn input(&self, i: usize) -> Self::Input;

    /// The products of rows `row..row + R` with each of `x`.
    unsafe fn tile<const R: usize, const N: usize>(&self, row: usize, x: [Self::Input; N]) -> [[f32; N]; R];
}

/// All products of `rows` with `n` input rows, in tiles of `R` rows by one input, and one by two or four if `BATCH`.
///
/// # Safety
/// As [`Tile::tile`], for all of `rows` and inputs below `n`.
#[inline(always)]
pub(super) unsafe fn run<T: Tile, const R: usize, const BATCH: bool>(
    t: &T,
    rows: Range<usize>,
    n: usize,
    out: &SharedOut<'_>,
) {
    let mut start = rows.start;
    while start < rows.end {
        let end = if n > 1 { rows.end.min(start + PANEL) } else { rows.end };
        let mut i = 0;
        // SAFETY: as the caller promises.
        unsafe {
            while BATCH && n - i >= 4 {
                panel::<T, 1, 4>(t, start..end, i, out);
                i += 4;
            }
            if BATCH && n - i >= 2 {
                panel::<T, 1, 2>(t, start..end, i, out);
                i += 2;
            }
            while n > i {
                panel::<T, R, 1>(t, start..end, i, out);
                i += 1;
            }
        }
        start = end;
    }
}

/// # Safety
/// As [`run`], for inputs `i..i + N`.
#[inline(always)]
unsafe fn panel<T: Tile, const R: usize, const N: usize>(
    t: &T,
    rows: Range<usize>,
    i: usize,
    out: &SharedOut<'_>,
) {
    // SAFETY: as the caller promises.
    unsafe {
        let mut x = [t.input(i); N];
        for (j, x) in x.iter_mut().enumerate() {
            *x = t.input(i + j);
        }
        let mut row = rows.start;
        while row + R <= rows.end {
            put(t.tile::<R, N>(row, x), row, i, out);
            row += R;
        }
        while R > 1 && row < rows.end {
            put(t.tile::<1, N>(row, x), row, i, out);
            row += 1;
        }
    }
}

#[inline(always)]
fn put<const R: usize, const N: usize>(values: [[f32; N]; R], row: usize, i: usize, out: &SharedOut<'_>) {
    for (r, values) in values.iter().enumerate() {
        for (n, &value) in values.iter().enumerate() {
            out.set(i + n, row + r, value);
        }
    }
}
