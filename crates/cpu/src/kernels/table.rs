//! The dispatch table: one entry point per kernel and instruction set.

use std::ops::Range;

use spinetail_core::{Affine, BITS, DType};

use super::activations::{Coded, Order};
use super::attention::Attended;
use super::generic::attention::Query;
use super::generic::delta::DeltaStep;
use super::generic::integer::Operands;
use super::generic::panels::Panels;
use super::operands::{SharedOut, Weights};
use super::{Isa, scalar};

/// Products of affine weights with f32 activations.
pub(super) type Exact = unsafe fn(&Weights<'_>, Affine, Range<usize>, &[f32], &SharedOut<'_>);

/// Products of plain weights.
pub(super) type Plain = unsafe fn(&Weights<'_>, DType, Range<usize>, &[f32], &SharedOut<'_>);

/// Products of affine weights with 8-bit activations.
pub(super) type Fast = unsafe fn(&Weights<'_>, Affine, Range<usize>, &Coded, usize, &SharedOut<'_>);

/// Integer products alone, so many times.
pub(super) type Integer = unsafe fn(&Operands, usize) -> f32;

/// The entry points of an instruction set. Each must be called on a processor that has it, with operands that fit as
/// the safe methods of `Kernels` check.
#[derive(Clone, Copy)]
#[allow(clippy::type_complexity, reason = "a kernel's operands are what they are")]
pub(super) struct Table {
    pub(super) isa: Isa,
    /// The order of activations for `fast`, by width, as the two below.
    pub(super) orders: &'static [Order; BITS.len()],
    pub(super) fast: [Fast; BITS.len()],
    /// Products of many inputs, with the bytes of `fast`.
    pub(super) panels: Option<[Panels; BITS.len()]>,
    pub(super) exact: [Exact; BITS.len()],
    pub(super) plain: Plain,
    /// See [`Kernels::integer_products`](super::Kernels::integer_products).
    pub(super) integer: Integer,
    pub(super) quantize: unsafe fn(&[f32], usize, &mut [i8], &mut [f32], &mut [f32]),
    pub(super) dot: unsafe fn(&[f32], &[f32]) -> f32,
    pub(super) rms_norm: unsafe fn(&mut [f32], &[f32], f32),
    pub(super) l2_norm: unsafe fn(&mut [f32], f32, f32),
    pub(super) softmax: unsafe fn(&mut [f32]) -> bool,
    pub(super) exp: unsafe fn(&mut [f32]),
    pub(super) swiglu: unsafe fn(&[f32], &mut [f32]),
    pub(super) sigmoid_gate: unsafe fn(&[f32], &mut [f32]),
    pub(super) add_scaled: unsafe fn(&mut [f32], f32, &[f32]),
    pub(super) rotate: unsafe fn(&mut [f32], &[f32], &[f32]),
    pub(super) conv_silu: unsafe fn(&[f32], &[f32], &[f32], &mut [f32]),
    pub(super) narrow: unsafe fn(&[f32], &mut [u16]),
    pub(super) attend: unsafe fn(&Query<'_>, &mut Attended),
    pub(super) merge: unsafe fn(&[Attended], usize, &mut [f32]),
    pub(super) delta_step: unsafe fn(&mut [f32], &DeltaStep<'_>, &mut [f32]),
}

impl Table {
    /// The table of `isa`, if there is one for this architecture.
    pub(super) fn of(isa: Isa) -> Option<&'static Self> {
        match isa {
            Isa::Scalar => Some(&SCALAR),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => Some(&super::x86_avx2::TABLE),
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni => Some(&super::x86_avxvnni::TABLE),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => Some(&super::x86_avx512::TABLE),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni => Some(&super::x86_avx512vnni::TABLE),
            #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
            Isa::Neon => Some(&super::aarch64_neon::TABLE),
            #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
            Isa::NeonDotprod => Some(&super::aarch64_dot::DOTPROD),
            #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
            Isa::NeonI8mm => Some(&super::aarch64_dot::I8MM),
            _ => None,
        }
    }
}

/// The kernels as they are meant.
pub(super) static SCALAR: Table = Table {
    isa: Isa::Scalar,
    orders: &scalar::ORDERS,
    fast: [scalar::fast; 6],
    panels: None,
    exact: [scalar::exact; 6],
    plain: scalar::plain,
    integer: scalar::integer,
    quantize: scalar::quantize,
    dot: scalar::dot,
    rms_norm: scalar::rms_norm,
    l2_norm: scalar::l2_norm,
    softmax: scalar::softmax,
    exp: scalar::exp_in_place,
    swiglu: scalar::swiglu,
    sigmoid_gate: scalar::sigmoid_gate,
    add_scaled: scalar::add_scaled,
    rotate: scalar::rotate,
    conv_silu: scalar::conv_silu,
    narrow: scalar::narrow,
    attend: scalar::attend,
    merge: scalar::merge,
    delta_step: scalar::delta_step,
};

/// Defines entry points: each is a generic algorithm, inlined into a function in which the compiler may use
/// `$features`. Generics cannot carry target features, hence a macro.
macro_rules! entries {
    ($features:literal; $($name:ident = $algorithm:path, ($($arg:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        $(
            /// # Safety
            /// As the algorithm's.
            #[target_feature(enable = $features)]
            unsafe fn $name($($arg: $type),*) $(-> $result)? {
                // SAFETY: as the caller promises; the features are those of the vectors.
                unsafe { $algorithm($($arg),*) }
            }
        )*
    };
}
pub(super) use entries;

/// The entry points of [`Fast`], by width.
macro_rules! fast {
    ($features:literal, $dot:ty) => {{
        use std::ops::Range;

        use spinetail_core::Affine;

        use crate::kernels::activations::Coded;
        use crate::kernels::generic::fast::fast;
        use crate::kernels::operands::{SharedOut, Weights};
        use crate::kernels::table::{Fast, entries};

        entries! { $features;
            w2 = fast::<$dot, 2>, (w: &Weights<'_>, a: Affine, r: Range<usize>, x: &Coded, n: usize, out: &SharedOut<'_>);
            w3 = fast::<$dot, 3>, (w: &Weights<'_>, a: Affine, r: Range<usize>, x: &Coded, n: usize, out: &SharedOut<'_>);
            w4 = fast::<$dot, 4>, (w: &Weights<'_>, a: Affine, r: Range<usize>, x: &Coded, n: usize, out: &SharedOut<'_>);
            w5 = fast::<$dot, 5>, (w: &Weights<'_>, a: Affine, r: Range<usize>, x: &Coded, n: usize, out: &SharedOut<'_>);
            w6 = fast::<$dot, 6>, (w: &Weights<'_>, a: Affine, r: Range<usize>, x: &Coded, n: usize, out: &SharedOut<'_>);
            w8 = fast::<$dot, 8>, (w: &Weights<'_>, a: Affine, r: Range<usize>, x: &Coded, n: usize, out: &SharedOut<'_>);
        }
        let all: [Fast; 6] = [w2, w3, w4, w5, w6, w8];
        all
    }};
}
pub(super) use fast;

/// The entry point of [`Integer`] where there are no panels.
#[cfg(target_arch = "aarch64")]
macro_rules! integer {
    ($features:literal, $dot:ty) => {{
        use crate::kernels::generic::integer::{Operands, products};
        use crate::kernels::table::{Integer, entries};

        entries! { $features; integer = products::<$dot>, (operands: &Operands, repeats: usize) -> f32; }
        let integer: Integer = integer;
        integer
    }};
}
#[cfg(target_arch = "aarch64")]
pub(super) use integer;

/// The entry point of [`Integer`] where there are panels, which take `$many` inputs at a time.
macro_rules! panel_integer {
    ($features:literal, $panel:ty, $many:literal) => {{
        use crate::kernels::generic::integer::{Operands, panel_products};
        use crate::kernels::table::{Integer, entries};

        entries! { $features;
            integer = panel_products::<$panel, $many>, (operands: &Operands, repeats: usize) -> f32;
        }
        let integer: Integer = integer;
        integer
    }};
}
pub(super) use panel_integer;

/// The [`Panels`] of an instruction set, by width, that take `$many` inputs at a time, or `$few`: the products that
/// there are, each made for codes of so many bits, and which of them each width takes.
macro_rules! panels {
    ($features:literal, $panel:ty, $many:literal, $few:literal, {$($name:ident: $bits:literal),*}, $all:expr) => {{
        use std::ops::Range;

        use spinetail_core::Affine;

        use crate::kernels::activations::Coded;
        use crate::kernels::generic::panels::{Multiply, Panels, Unpacked, multiply, unpack};
        use crate::kernels::operands::{SharedOut, Weights};
        use crate::kernels::table::entries;

        entries! { $features;
            u2 = unpack::<$panel, 2>, (w: &Weights<'_>, a: Affine, row: usize, to: &mut Unpacked);
            u3 = unpack::<$panel, 3>, (w: &Weights<'_>, a: Affine, row: usize, to: &mut Unpacked);
            u4 = unpack::<$panel, 4>, (w: &Weights<'_>, a: Affine, row: usize, to: &mut Unpacked);
            u5 = unpack::<$panel, 5>, (w: &Weights<'_>, a: Affine, row: usize, to: &mut Unpacked);
            u6 = unpack::<$panel, 6>, (w: &Weights<'_>, a: Affine, row: usize, to: &mut Unpacked);
            u8 = unpack::<$panel, 8>, (w: &Weights<'_>, a: Affine, row: usize, to: &mut Unpacked);
        }
        entries! { $features; $(
            $name = multiply::<$panel, $bits, $many, $few>,
                (p: &Unpacked, x: &Coded, inputs: Range<usize>, rows: Range<usize>, out: &SharedOut<'_>);
        )* }
        let [m2, m3, m4, m5, m6, m8]: [Multiply; 6] = $all;
        Some([
            Panels { unpack: u2, multiply: m2 },
            Panels { unpack: u3, multiply: m3 },
            Panels { unpack: u4, multiply: m4 },
            Panels { unpack: u5, multiply: m5 },
            Panels { unpack: u6, multiply: m6 },
            Panels { unpack: u8, multiply: m8 },
        ])
    }};
}
pub(super) use panels;

/// The [`Table`] of an instruction set.
macro_rules! table {
    ($isa:expr, $features:literal, $vector:ty, $orders:expr, $fast:expr, $integer:expr, $panels:expr) => {{
        use std::ops::Range;

        use spinetail_core::{Affine, DType};

        use crate::kernels::attention::Attended;
        use crate::kernels::generic::{attention, delta, elementwise, exact, quantize, reduce};
        use crate::kernels::operands::{SharedOut, Weights};
        use crate::kernels::table::{Table, entries};

        entries! { $features;
            w2 = exact::affine::<$vector, 2>, (w: &Weights<'_>, a: Affine, r: Range<usize>, x: &[f32], out: &SharedOut<'_>);
            w3 = exact::affine::<$vector, 3>, (w: &Weights<'_>, a: Affine, r: Range<usize>, x: &[f32], out: &SharedOut<'_>);
            w4 = exact::affine::<$vector, 4>, (w: &Weights<'_>, a: Affine, r: Range<usize>, x: &[f32], out: &SharedOut<'_>);
            w5 = exact::affine::<$vector, 5>, (w: &Weights<'_>, a: Affine, r: Range<usize>, x: &[f32], out: &SharedOut<'_>);
            w6 = exact::affine::<$vector, 6>, (w: &Weights<'_>, a: Affine, r: Range<usize>, x: &[f32], out: &SharedOut<'_>);
            w8 = exact::affine::<$vector, 8>, (w: &Weights<'_>, a: Affine, r: Range<usize>, x: &[f32], out: &SharedOut<'_>);
            plain = exact::plain::<$vector>, (w: &Weights<'_>, t: DType, r: Range<usize>, x: &[f32], out: &SharedOut<'_>);
            quantize = quantize::quantize::<$vector>,
                (x: &[f32], group: usize, codes: &mut [i8], scales: &mut [f32], sums: &mut [f32]);
            dot = reduce::dot::<$vector>, (a: &[f32], b: &[f32]) -> f32;
            rms_norm = reduce::rms_norm::<$vector>, (x: &mut [f32], w: &[f32], eps: f32);
            l2_norm = reduce::l2_norm::<$vector>, (x: &mut [f32], scale: f32, eps: f32);
            softmax = reduce::softmax::<$vector>, (x: &mut [f32]) -> bool;
            exp = elementwise::exp_in_place::<$vector>, (x: &mut [f32]);
            swiglu = elementwise::swiglu::<$vector>, (gate: &[f32], up: &mut [f32]);
            sigmoid_gate = elementwise::sigmoid_gate::<$vector>, (gate: &[f32], x: &mut [f32]);
            add_scaled = elementwise::add_scaled::<$vector>, (y: &mut [f32], s: f32, x: &[f32]);
            rotate = elementwise::rotate::<$vector>, (x: &mut [f32], cos: &[f32], sin: &[f32]);
            conv_silu = elementwise::conv_silu::<$vector>, (taps: &[f32], past: &[f32], x: &[f32], out: &mut [f32]);
            narrow = elementwise::narrow::<$vector>, (x: &[f32], out: &mut [u16]);
            attend = attention::attend::<$vector>, (query: &attention::Query<'_>, part: &mut Attended);
            merge = attention::merge::<$vector>, (parts: &[Attended], query: usize, out: &mut [f32]);
            delta_step = delta::delta_step::<$vector>, (s: &mut [f32], o: &delta::DeltaStep<'_>, y: &mut [f32]);
        }

        Table {
            isa: $isa,
            orders: $orders,
            fast: $fast,
            panels: $panels,
            integer: $integer,
            exact: [w2, w3, w4, w5, w6, w8],
            plain,
            quantize,
            dot,
            rms_norm,
            l2_norm,
            softmax,
            exp,
            swiglu,
            sigmoid_gate,
            add_scaled,
            rotate,
            conv_silu,
            narrow,
            attend,
            merge,
            delta_step,
        }
    }};
}
pub(super) use table;
