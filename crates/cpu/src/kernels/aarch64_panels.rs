//! Panels for NEON with `dotprod` or `i8mm`: unpacking, and products by element of the activations.
#![allow(
    unsafe_op_in_unsafe_fn,
    reason = "functions of intrinsics: what makes one of them sound makes all of them so, and the traits say it"
)]

use std::arch::aarch64::*;

use super::aarch64_neon::{Quads, bytes};
use super::vector::Panel;

/// Products of sixteen codes with four activations: what the extensions differ in.
///
/// # Safety
/// As [`Panel`].
pub(super) trait Steps {
    /// Whether codes are taken for signed bytes.
    const SIGNED: bool;

    /// Adds to lane i of `sum` the products of codes 4i to 4i + 3 with the four activations of step `STEP`.
    unsafe fn step<const STEP: i32>(sum: int32x4_t, codes: uint8x16_t, x: int8x16_t) -> int32x4_t;
}

/// Panels by the products of `P`.
pub(super) struct PanelNeon<P>(P);

impl<P: Steps> Panel for PanelNeon<P> {
    type Floats = Quads;

    #[inline(always)]
    unsafe fn bytes<const BITS: usize>(codes: *const u8, out: *mut u8) {
        let [a, b, c, d] = bytes::<BITS>(codes);
        match BITS {
            2 => vst4q_u8(out, uint8x16x4_t(a, b, c, d)),
            4 => {
                vst2q_u8(out, uint8x16x2_t(a, b));
                vst2q_u8(out.add(32), uint8x16x2_t(c, d));
            }
            _ => {
                for (i, bytes) in [a, b, c, d].into_iter().enumerate() {
                    vst1q_u8(out.add(16 * i), bytes);
                }
            }
        }
    }
    #[inline(always)]
    unsafe fn transpose(from: *const f32, to: *mut f32) {
        for row in (0..16).step_by(4) {
            for column in (0..16).step_by(4) {
                transpose_4x4(from.add(row * 16 + column), to.add(column * 16 + row));
            }
        }
    }
    #[inline(always)]
    unsafe fn dots<const BITS: usize, const N: usize>(
        codes: *const u8,
        halves: usize,
        x: [*const u8; N],
    ) -> [Quads; N] {
        let mut sums = [[vdupq_n_s32(0); 4]; N];
        // As signed bytes, 8-bit codes are 128 too small: 128·x is added after.
        let shifted = BITS == 8 && P::SIGNED;
        let mut x_sums = [vdupq_n_s32(0); N];
        for four in 0..2 * halves {
            let codes = codes.add(four * 4 * 64);
            let mut x_four = [vdupq_n_s8(0); N];
            for n in 0..N {
                x_four[n] = vld1q_s8(x[n].add(16 * four).cast());
                if shifted {
                    x_sums[n] = vpadalq_s16(x_sums[n], vpaddlq_s8(x_four[n]));
                }
            }
            add_step::<P, 0, N>(codes, shifted, &x_four, &mut sums);
            add_step::<P, 1, N>(codes.add(64), shifted, &x_four, &mut sums);
            add_step::<P, 2, N>(codes.add(128), shifted, &x_four, &mut sums);
            add_step::<P, 3, N>(codes.add(192), shifted, &x_four, &mut sums);
        }
        let mut out = [Quads([vdupq_n_f32(0.0); 4]); N];
        for n in 0..N {
            let missing = vdupq_n_s32(if shifted { vaddvq_s32(x_sums[n]) << 7 } else { 0 });
            for i in 0..4 {
                out[n].0[i] = vcvtq_f32_s32(vaddq_s32(sums[n][i], missing));
            }
        }
        out
    }
}

/// Adds the products of four columns.
///
/// # Safety
/// As [`Panel::dots`].
#[inline(always)]
unsafe fn add_step<P: Steps, const STEP: i32, const N: usize>(
    codes: *const u8,
    shifted: bool,
    x: &[int8x16_t; N],
    sums: &mut [[int32x4_t; 4]; N],
) {
    for i in 0..4 {
        let codes = vld1q_u8(codes.add(16 * i));
        let codes = if shifted { veorq_u8(codes, vdupq_n_u8(0x80)) } else { codes };
        for n in 0..N {
            sums[n][i] = P::step::<STEP>(sums[n][i], codes, x[n]);
        }
    }
}

/// Transposes four by four out of rows of sixteen.
///
/// # Safety
/// As [`Panel::transpose`].
#[inline(always)]
unsafe fn transpose_4x4(from: *const f32, to: *mut f32) {
    let [a, b, c, d] = [0, 1, 2, 3].map(|row| vld1q_f32(from.add(16 * row)));
    let twos = [vtrn1q_f32(a, b), vtrn2q_f32(a, b), vtrn1q_f32(c, d), vtrn2q_f32(c, d)];
    let [ab, ab_odd, cd, cd_odd] = twos.map(|two| vreinterpretq_f64_f32(two));
    let rows =
        [vtrn1q_f64(ab, cd), vtrn1q_f64(ab_odd, cd_odd), vtrn2q_f64(ab, cd), vtrn2q_f64(ab_odd, cd_odd)];
    for (i, row) in rows.into_iter().enumerate() {
        vst1q_f32(to.add(16 * i), vreinterpretq_f32_f64(row));
    }
}
