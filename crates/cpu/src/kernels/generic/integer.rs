//! The integer part of the products of a batch and nothing else: what it alone costs, for `probe`.

use std::hint::black_box;

use crate::kernels::activations::{BLOCK, Line};
use crate::kernels::vector::{Dot, Eight};

/// Inputs that share a block's codes: as many as a product of a batch takes together.
const INPUTS: usize = 4;

/// Blocks of 64 products each: a row of 2048 columns, which stays in the first cache with its inputs.
const BLOCKS: usize = 32;

/// Products that one repeat computes and adds up.
pub(in crate::kernels) const PRODUCTS: usize = BLOCKS * BLOCK * INPUTS;

/// A row of 4-bit codes and its inputs.
pub(in crate::kernels) struct Operands {
    codes: [Line; BLOCKS / 2],
    inputs: [[Line; BLOCKS]; INPUTS],
}

impl Operands {
    /// Numbers of ordinary size, in no order that a kernel wants: only the time counts.
    pub(in crate::kernels) fn new() -> Self {
        let line = |seed: usize| Line(std::array::from_fn(|i| ((seed * 64 + i) * 7919 % 251) as u8));
        Self {
            codes: std::array::from_fn(line),
            inputs: std::array::from_fn(|n| std::array::from_fn(|i| line(n * BLOCKS + i))),
        }
    }

    /// Every code with an activation of every input.
    pub(in crate::kernels) fn pairs(&self) -> impl Iterator<Item = (u8, i8)> {
        self.inputs.iter().flat_map(|input| {
            let codes = self.codes.iter().flat_map(|l| l.0).flat_map(|b| [b & 15, b >> 4]);
            codes.zip(input.iter().flat_map(|l| l.0)).map(|(code, x)| (code, x as i8))
        })
    }
}

/// The products of `operands`, `repeats` times, added up in integers that may wrap.
///
/// # Safety
/// The processor has the instruction set of `D`, which takes 4-bit codes with activations in bytes.
#[inline(always)]
pub(in crate::kernels) unsafe fn products<D: Dot>(operands: &Operands, repeats: usize) -> f32 {
    // SAFETY: as the caller promises; blocks of codes have 32 bytes and inputs 64, aligned.
    unsafe {
        let mut sums: Option<[D::Partial; INPUTS]> = None;
        for _ in 0..repeats {
            // Else the compiler might see that all repeats are the same.
            let operands = black_box(operands);
            let codes = operands.codes.as_ptr().cast::<u8>();
            for block in 0..BLOCKS {
                let mut lines = [std::ptr::null(); INPUTS];
                for n in 0..INPUTS {
                    lines[n] = operands.inputs[n].as_ptr().add(block).cast();
                }
                let found = D::block::<4, INPUTS>(codes.add(block * BLOCK / 2), lines);
                let mut next = found;
                if let Some(sums) = sums {
                    for n in 0..INPUTS {
                        next[n] = D::add(sums[n], found[n]);
                    }
                }
                sums = Some(next);
            }
        }
        let Some([a, b, c, d]) = sums else { return 0.0 };
        let four = D::join_joined(D::join(a, b), D::join(c, d));
        D::whole_sums(four, four).sum()
    }
}
