//! The dot products of Armv8.2 (`sdot`) and Armv8.6 (`usdot`), whose intrinsics are not stable.
#![allow(
    unsafe_op_in_unsafe_fn,
    reason = "functions of intrinsics: what makes one of them sound makes all of them so, and the traits say it"
)]

use std::arch::aarch64::*;
use std::arch::asm;

use super::Isa;
use super::aarch64_neon::{self, DotNeon, Products};
use super::aarch64_panels::{PanelNeon, Steps};
use super::table::{Table, fast, panel_integer, panels};
use super::vector::Dot;

/// `sum + signed · signed`
///
/// # Safety
/// The processor has `dotprod`.
#[inline(always)]
unsafe fn sdot(mut sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    asm!(".arch_extension dotprod", "sdot {s:v}.4s, {a:v}.16b, {b:v}.16b",
        s = inlateout(vreg) sum, a = in(vreg) a, b = in(vreg) b, options(pure, nomem, nostack, preserves_flags));
    sum
}

/// `sum + unsigned · signed`
///
/// # Safety
/// The processor has `i8mm`.
#[inline(always)]
unsafe fn usdot(mut sum: int32x4_t, a: uint8x16_t, b: int8x16_t) -> int32x4_t {
    asm!(".arch_extension i8mm", "usdot {s:v}.4s, {a:v}.16b, {b:v}.16b",
        s = inlateout(vreg) sum, a = in(vreg) a, b = in(vreg) b, options(pure, nomem, nostack, preserves_flags));
    sum
}

/// As [`sdot`], with the four activations of step `STEP` for every lane.
///
/// # Safety
/// The processor has `dotprod`.
#[inline(always)]
unsafe fn sdot_by<const STEP: i32>(mut sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    asm!(".arch_extension dotprod", "sdot {s:v}.4s, {a:v}.16b, {b:v}.4b[{i}]",
        s = inlateout(vreg) sum, a = in(vreg) a, b = in(vreg) b, i = const STEP,
        options(pure, nomem, nostack, preserves_flags));
    sum
}

/// As [`usdot`], with the four activations of step `STEP` for every lane.
///
/// # Safety
/// The processor has `i8mm`.
#[inline(always)]
unsafe fn usdot_by<const STEP: i32>(mut sum: int32x4_t, a: uint8x16_t, b: int8x16_t) -> int32x4_t {
    asm!(".arch_extension i8mm", "usdot {s:v}.4s, {a:v}.16b, {b:v}.4b[{i}]",
        s = inlateout(vreg) sum, a = in(vreg) a, b = in(vreg) b, i = const STEP,
        options(pure, nomem, nostack, preserves_flags));
    sum
}

/// Products by `sdot`.
struct Dotprod;

impl Products for Dotprod {
    #[inline(always)]
    unsafe fn dot<const BITS: usize>(sum: int32x4_t, codes: uint8x16_t, x: int8x16_t) -> int32x4_t {
        if BITS == 8 {
            // As signed bytes, 128 too small: 64·x is added twice.
            let signed = vreinterpretq_s8_u8(veorq_u8(codes, vdupq_n_u8(0x80)));
            let half = vdupq_n_s8(64);
            return sdot(sdot(sdot(sum, signed, x), half, x), half, x);
        }
        sdot(sum, vreinterpretq_s8_u8(codes), x)
    }
}

impl Steps for Dotprod {
    const SIGNED: bool = true;

    #[inline(always)]
    unsafe fn step<const STEP: i32>(sum: int32x4_t, codes: uint8x16_t, x: int8x16_t) -> int32x4_t {
        sdot_by::<STEP>(sum, vreinterpretq_s8_u8(codes), x)
    }
}

/// Products by `usdot`. `smmla` would halve the instructions of a batch, whose time goes to unpacking.
struct I8mm;

impl Products for I8mm {
    #[inline(always)]
    unsafe fn dot<const BITS: usize>(sum: int32x4_t, codes: uint8x16_t, x: int8x16_t) -> int32x4_t {
        usdot(sum, codes, x)
    }
}

impl Steps for I8mm {
    const SIGNED: bool = false;

    #[inline(always)]
    unsafe fn step<const STEP: i32>(sum: int32x4_t, codes: uint8x16_t, x: int8x16_t) -> int32x4_t {
        usdot_by::<STEP>(sum, codes, x)
    }
}

/// The kernels of NEON with `dotprod`.
pub(super) const DOTPROD: Table = Table {
    isa: Isa::NeonDotprod,
    orders: &DotNeon::<Dotprod>::ORDERS,
    fast: fast!("neon,dotprod", DotNeon<Dotprod>),
    panels: panels!("neon,dotprod", PanelNeon<Dotprod>, 4, 2, {narrow: 6, wide: 8}, [narrow, narrow, narrow, narrow, narrow, wide]),
    integer: panel_integer!("neon,dotprod", PanelNeon<Dotprod>, 4),
    ..aarch64_neon::TABLE
};

/// The kernels of NEON with `i8mm`.
pub(super) const I8MM: Table = Table {
    isa: Isa::NeonI8mm,
    orders: &DotNeon::<I8mm>::ORDERS,
    fast: fast!("neon,dotprod,i8mm", DotNeon<I8mm>),
    panels: panels!("neon,dotprod,i8mm", PanelNeon<I8mm>, 4, 2, {all: 8}, [all; 6]),
    integer: panel_integer!("neon,dotprod,i8mm", PanelNeon<I8mm>, 4),
    ..aarch64_neon::TABLE
};
