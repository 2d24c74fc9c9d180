//! The kernels: products of stored weights with activations and the vector functions of a step.
//!
//! `scalar` says what each one means, `generic` holds each algorithm once over the traits of `vector`, and a thin file
//! per instruction set fills those traits in. [`Kernels`] is the one dispatch table, chosen at start. Every element of
//! every output is computed in one fixed order that depends on the shapes alone, so that bytes are the same in any
//! batch, split over rows or threads, **and on any instruction set**.
//!
//! Nothing here starts a thread or reads the environment. Nothing allocates but [`Activations`] and, once a thread, the
//! memory for a panel of weights; both keep what they have.
#![allow(unsafe_code)]

#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
mod aarch64_dot;
#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
mod aarch64_neon;
#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
mod aarch64_panels;
mod activations;
mod attention;
mod bits;
mod functions;
mod generic;
mod isa;
mod operands;
mod scalar;
mod table;
#[cfg(test)]
mod tests;
mod vector;
#[cfg(target_arch = "x86_64")]
mod x86_avx2;
#[cfg(target_arch = "x86_64")]
mod x86_avx512;
#[cfg(target_arch = "x86_64")]
mod x86_avx512vnni;
#[cfg(target_arch = "x86_64")]
mod x86_avxvnni;
#[cfg(target_arch = "x86_64")]
mod x86_panels;

use std::cell::RefCell;
use std::ops::Range;

use spinetail_core::Format;

pub use activations::Activations;
use activations::{Form, width_index};
pub use attention::{Attended, KeyValues, Queries};
use generic::integer::{Operands, PRODUCTS};
use generic::panels::Unpacked;
pub use isa::{Isa, UnknownIsa};
pub use operands::{SharedOut, Weights};
use table::Table;

thread_local! {
    /// The panel that this thread unpacks weights into.
    static PANEL: RefCell<Unpacked> = RefCell::default();
}

/// The kernels of one instruction set.
#[derive(Clone, Copy)]
pub struct Kernels(&'static Table);

impl Kernels {
    /// Those of the fastest instruction set that this processor has.
    pub fn detect() -> Self {
        Isa::BEST_FIRST.into_iter().find_map(Self::for_isa).unwrap_or(Self(&table::SCALAR))
    }

    /// Those of `isa`; `None` if this processor lacks it.
    pub fn for_isa(isa: Isa) -> Option<Self> {
        if isa.is_available() { Table::of(isa).map(Self) } else { None }
    }

    /// The instruction set.
    pub fn isa(&self) -> Isa {
        self.0.isa
    }

    /// `out[n, rows] = x · Wᵀ` in f32, for a range of rows; `x` is `[n, columns]`. The `exact` precision, and `fast`'s
    /// for plain weights.
    ///
    /// # Panics
    /// If the range, `x` and `out` do not fit `w`.
    pub fn exact(&self, w: &Weights<'_>, rows: Range<usize>, x: &[f32], out: &SharedOut<'_>) {
        assert!(x.len().is_multiple_of(w.columns()), "{} is no multiple of {}", x.len(), w.columns());
        check(w, &rows, x.len() / w.columns(), out);
        // SAFETY: the table is that of an available instruction set, and the operands were checked.
        unsafe {
            match w.format() {
                Format::Plain(dtype) => (self.0.plain)(w, dtype, rows, x, out),
                Format::Affine(a) => (self.0.exact[width_index(a.bits.into())])(w, a, rows, x, out),
            }
        }
    }

    /// `out[n, rows] ≈ x · Wᵀ` for a range of rows, with activations in 8 bits against affine weights and as
    /// [`Kernels::exact`] against plain ones.
    ///
    /// # Panics
    /// If the range, `x` and `out` do not fit `w`, or [`Activations::prepare`] was not called for these kernels and
    /// the format of `w`.
    pub fn fast(&self, w: &Weights<'_>, rows: Range<usize>, x: &Activations, out: &SharedOut<'_>) {
        assert_eq!(x.columns(), w.columns(), "inputs and weights differ in columns");
        let Format::Affine(a) = w.format() else {
            return self.exact(w, rows, x.x(), out);
        };
        check(w, &rows, x.rows(), out);
        let (width, coded, n) = (width_index(a.bits.into()), x.coded(self, a), x.rows());
        if let (Form::Panels, Some(panels)) = (coded.form(), &self.0.panels) {
            // SAFETY: as in `exact`; `coded` has checked that the codes are in these kernels' order.
            let products = |panel: &mut Unpacked| unsafe {
                panels[width].products(w, a, rows, coded, n, out, panel);
            };
            return PANEL.with_borrow_mut(products);
        }
        // SAFETY: as above.
        unsafe { (self.0.fast[width])(w, a, rows, coded, n, out) }
    }

    /// Whether there are kernels for many inputs.
    fn has_panels(&self) -> bool {
        self.0.panels.is_some()
    }

    /// Computes [`Kernels::INTEGER_PRODUCTS`] products of 4-bit codes and 8-bit activations, and adds them up, `repeats`
    /// times; the result means nothing. Shows what the integer part of a batch's products costs.
    pub fn integer_products(&self, repeats: usize) -> f32 {
        // SAFETY: as in `exact`.
        unsafe { (self.0.integer)(&Operands::new(), repeats) }
    }

    /// See [`Kernels::integer_products`].
    pub const INTEGER_PRODUCTS: usize = PRODUCTS;

    fn order(&self, bits: u8) -> &'static activations::Order {
        &self.0.orders[width_index(bits.into())]
    }

    fn quantize(&self, x: &[f32], group: usize, codes: &mut [i8], scales: &mut [f32], sums: &mut [f32]) {
        assert!(group.is_multiple_of(vector::LANES) && codes.len() == x.len());
        assert!(scales.len() == x.len() / group && sums.len() == scales.len());
        // SAFETY: as in `exact`.
        unsafe { (self.0.quantize)(x, group, codes, scales, sums) }
    }
}

impl std::fmt::Debug for Kernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Kernels").field(&self.isa()).finish()
    }
}

fn check(w: &Weights<'_>, rows: &Range<usize>, n: usize, out: &SharedOut<'_>) {
    assert!(
        rows.start <= rows.end && rows.end <= w.rows() && rows.end <= out.stride() && n <= out.rows(),
        "rows {rows:?} of {n} products do not fit {} rows of weights and an output of {} by {}",
        w.rows(),
        out.rows(),
        out.stride()
    );
}
