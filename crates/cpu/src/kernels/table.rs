//! The dispatch table: one entry point per kernel and instruction set.

use std::ops::Range;

use spinetail_core::Affine;

use super::activations::{Coded, Order};
use super::operands::{SharedOut, Weights};
use super::{Isa, scalar};

/// The entry points of an instruction set. Each must be called on a processor that has it, with operands that fit as
/// the safe methods of `Kernels` check.
#[allow(clippy::type_complexity, reason = "a kernel's operands are what they are")]
pub(super) struct Table {
    pub(super) isa: Isa,
    pub(super) orders: &'static [Order; 6],
    pub(super) exact: unsafe fn(&Weights<'_>, Range<usize>, &[f32], &SharedOut<'_>),
    pub(super) fast: unsafe fn(&Weights<'_>, Affine, Range<usize>, &Coded, usize, &SharedOut<'_>),
    pub(super) quantize: unsafe fn(&[f32], usize, &mut [i8], &mut [f32], &mut [f32]),
}

impl Table {
    /// The table of `isa`, if there is one for this architecture.
    pub(super) fn of(isa: Isa) -> Option<&'static Self> {
        match isa {
            Isa::Scalar => Some(&SCALAR),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => Some(&super::x86_avx2::TABLE),
            _ => None,
        }
    }
}

/// The kernels as they are meant.
pub(super) static SCALAR: Table = Table {
    isa: Isa::Scalar,
    orders: &scalar::ORDERS,
    exact: scalar::exact,
    fast: scalar::fast,
    quantize: scalar::quantize,
};

/// Defines `TABLE`, the entry points of an instruction set: each is a generic algorithm inlined into a function that
/// the compiler may use `$features` in. Generics cannot carry target features, hence a macro.
macro_rules! table {
    ($isa:expr, $features:literal, $vector:ty, $dot:ty) => {
        /// The entry points of this instruction set.
        pub(super) static TABLE: crate::kernels::table::Table = {
            use std::ops::Range;

            use spinetail_core::Affine;

            use crate::kernels::activations::Coded;
            use crate::kernels::generic;
            use crate::kernels::operands::{SharedOut, Weights};

            /// # Safety
            /// As `generic::exact::exact`.
            #[target_feature(enable = $features)]
            unsafe fn exact(w: &Weights<'_>, rows: Range<usize>, x: &[f32], out: &SharedOut<'_>) {
                generic::exact::exact::<$vector>(w, rows, x, out)
            }
            /// # Safety
            /// As `generic::fast::fast`.
            #[target_feature(enable = $features)]
            unsafe fn fast(
                w: &Weights<'_>,
                a: Affine,
                rows: Range<usize>,
                x: &Coded,
                n: usize,
                out: &SharedOut<'_>,
            ) {
                generic::fast::fast::<$dot>(w, a, rows, x, n, out)
            }
            /// # Safety
            /// As `generic::quantize::quantize`.
            #[target_feature(enable = $features)]
            unsafe fn quantize(
                x: &[f32],
                group: usize,
                codes: &mut [i8],
                scales: &mut [f32],
                sums: &mut [f32],
            ) {
                generic::quantize::quantize::<$vector>(x, group, codes, scales, sums)
            }

            crate::kernels::table::Table {
                isa: $isa,
                orders: &<$dot as crate::kernels::vector::Dot>::ORDERS,
                exact,
                fast,
                quantize,
            }
        };
    };
}
pub(super) use table;
