//! The integer part of the products of a batch and nothing else: what it alone costs, for `probe`.

use std::hint::black_box;

use crate::kernels::activations::{BLOCK, Line};
#[cfg(target_arch = "aarch64")]
use crate::kernels::vector::{Dot, Eight};
use crate::kernels::vector::{LANES, Panel, Vector};

/// Inputs: as many as any panel meets together.
const INPUTS: usize = 8;

/// Inputs that a row's codes meet together.
#[cfg(target_arch = "aarch64")]
const ROW_INPUTS: usize = 4;

/// Columns of sixteen rows: unpacked codes and inputs stay in the first cache.
const COLUMNS: usize = 1024;

/// Products that one repeat computes and adds up.
pub(in crate::kernels) const PRODUCTS: usize = LANES * COLUMNS * INPUTS;

/// Codes and inputs: only the time counts, so that each kernel takes them for what it wants.
pub(in crate::kernels) struct Operands {
    /// A panel of codes below 16, a byte each.
    codes: [Line; LANES * COLUMNS / BLOCK],
    inputs: [[Line; COLUMNS / BLOCK]; INPUTS],
}

impl Operands {
    /// Numbers of ordinary size.
    pub(in crate::kernels) fn new() -> Self {
        let line = |seed: usize, most: u8| {
            Line(std::array::from_fn(|i| ((seed * 64 + i) * 7919 % 251) as u8 & most))
        };
        Self {
            codes: std::array::from_fn(|i| line(i, 15)),
            inputs: std::array::from_fn(|n| std::array::from_fn(|i| line(n * COLUMNS / BLOCK + i, 255))),
        }
    }

    /// Every code with an activation of every input.
    pub(in crate::kernels) fn pairs(&self) -> impl Iterator<Item = (u8, i8)> {
        self.inputs.iter().flat_map(|input| {
            let codes = self.codes.iter().flat_map(|l| l.0);
            codes.zip(input.iter().flat_map(|l| l.0).cycle()).map(|(code, x)| (code, x as i8))
        })
    }
}

/// The products of `operands` by a panel, `repeats` times, added up. Takes `N` inputs at a time.
///
/// # Safety
/// The processor has the instruction set of `P`.
#[inline(always)]
pub(in crate::kernels) unsafe fn panel_products<P: Panel, const N: usize>(
    operands: &Operands,
    repeats: usize,
) -> f32 {
    // SAFETY: as the caller promises; the panel and each input have the columns.
    unsafe {
        let mut sum = P::Floats::splat(0.0);
        for _ in 0..repeats {
            // Else the compiler might see that all repeats are the same.
            let operands = black_box(operands);
            for inputs in operands.inputs.as_chunks::<N>().0 {
                let mut x = [std::ptr::null(); N];
                for n in 0..N {
                    x[n] = inputs[n].as_ptr().cast();
                }
                for dots in P::dots::<4, N>(operands.codes.as_ptr().cast(), COLUMNS / (BLOCK / 2), x) {
                    sum = sum.add(dots);
                }
            }
        }
        sum.sum()
    }
}

/// As [`panel_products`], by rows of packed codes, added up in integers that may wrap: for instruction sets without
/// panels.
///
/// # Safety
/// The processor has the instruction set of `D`, which takes 4-bit codes with activations in bytes.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
pub(in crate::kernels) unsafe fn products<D: Dot>(operands: &Operands, repeats: usize) -> f32 {
    // SAFETY: as the caller promises; blocks of codes have 32 bytes and inputs 64, aligned.
    unsafe {
        let mut sums: Option<[D::Partial; ROW_INPUTS]> = None;
        for _ in 0..repeats {
            // As above.
            let operands = black_box(operands);
            let codes = operands.codes.as_ptr().cast::<u8>();
            for at in 0..LANES * COLUMNS / BLOCK {
                for inputs in operands.inputs.as_chunks::<ROW_INPUTS>().0 {
                    let mut lines = [std::ptr::null(); ROW_INPUTS];
                    for n in 0..ROW_INPUTS {
                        lines[n] = inputs[n].as_ptr().add(at % (COLUMNS / BLOCK)).cast();
                    }
                    let mut next = D::block::<4, ROW_INPUTS>(codes.add(at * BLOCK / 2), lines);
                    if let Some(sums) = sums {
                        for n in 0..ROW_INPUTS {
                            next[n] = D::add(sums[n], next[n]);
                        }
                    }
                    sums = Some(next);
                }
            }
        }
        let Some([a, b, c, d]) = sums else { return 0.0 };
        let four = D::join_joined(D::join(a, b), D::join(c, d));
        D::whole_sums(four, four).sum()
    }
}
