//! AVX-512 with F, BW, DQ and VL. Integer products are those of AVX2: without VNNI they gain nothing from the width.
#![allow(
    unsafe_op_in_unsafe_fn,
    reason = "functions of intrinsics: what makes one of them sound makes all of them so, and the traits say it"
)]

use std::arch::x86_64::*;

use super::bits::shifts;
use super::table::{Table, table};
use super::vector::{Eight, Vector};
use super::x86_avx2::{self, four_sums, words};

/// Sixteen f32 in one register.
#[derive(Clone, Copy)]
pub(super) struct Wide(pub(super) __m512);

impl Vector for Wide {
    type Eight = __m256;

    const MANY: bool = true;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Self(_mm512_set1_ps(x))
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        Self(_mm512_loadu_ps(p))
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> Self {
        Self(_mm512_cvtph_ps(_mm256_loadu_si256(p.cast())))
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> Self {
        let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
        Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide)))
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        _mm512_storeu_ps(p, self.0);
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16) {
        _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0));
    }
    #[inline(always)]
    unsafe fn add(self, o: Self) -> Self {
        Self(_mm512_add_ps(self.0, o.0))
    }
    #[inline(always)]
    unsafe fn sub(self, o: Self) -> Self {
        Self(_mm512_sub_ps(self.0, o.0))
    }
    #[inline(always)]
    unsafe fn mul(self, o: Self) -> Self {
        Self(_mm512_mul_ps(self.0, o.0))
    }
    #[inline(always)]
    unsafe fn div(self, o: Self) -> Self {
        Self(_mm512_div_ps(self.0, o.0))
    }
    #[inline(always)]
    unsafe fn fma(self, m: Self, a: Self) -> Self {
        Self(_mm512_fmadd_ps(self.0, m.0, a.0))
    }
    #[inline(always)]
    unsafe fn max(self, o: Self) -> Self {
        Self(_mm512_max_ps(self.0, o.0))
    }
    #[inline(always)]
    unsafe fn min(self, o: Self) -> Self {
        Self(_mm512_min_ps(self.0, o.0))
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        Self(_mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0))
    }
    #[inline(always)]
    unsafe fn pow2(self) -> Self {
        let biased = _mm512_add_epi32(_mm512_cvtps_epi32(self.0), _mm512_set1_epi32(127));
        Self(_mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased)))
    }
    #[inline(always)]
    unsafe fn max_magnitude(self, o: Self) -> Self {
        let (a, b) = (_mm512_castps_si512(_mm512_abs_ps(self.0)), _mm512_castps_si512(_mm512_abs_ps(o.0)));
        Self(_mm512_castsi512_ps(_mm512_max_epi32(a, b)))
    }
    #[inline(always)]
    unsafe fn magnitude(self) -> f32 {
        f32::from_bits(_mm512_reduce_max_epi32(_mm512_castps_si512(_mm512_abs_ps(self.0))) as u32)
    }
    #[inline(always)]
    unsafe fn max_lane(self) -> f32 {
        _mm512_reduce_max_ps(self.0)
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        Eight::sum(half_sums(self.0))
    }
    #[inline(always)]
    unsafe fn four_sums([a, b, c, d]: [Self; 4]) -> [f32; 4] {
        four_sums([half_sums(a.0), half_sums(b.0), half_sums(c.0), half_sums(d.0)])
    }
    #[inline(always)]
    unsafe fn to_i8(self, p: *mut i8) {
        _mm_storeu_si128(p.cast(), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(self.0)));
    }
    #[inline(always)]
    unsafe fn codes<const BITS: usize>(unit: *const u8, half: usize) -> Self {
        if BITS == 8 {
            let bytes = _mm_loadu_si128(unit.add(16 * half).cast());
            return Self(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes)));
        }
        let (low, high) = (words::<BITS>(unit, 2 * half), words::<BITS>(unit, 2 * half + 1));
        let words = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
        let shifts = [shifts::<BITS>(2 * half), shifts::<BITS>(2 * half + 1)];
        let shifts = _mm512_loadu_si512(shifts.as_ptr().cast());
        let codes = _mm512_and_si512(_mm512_srlv_epi32(words, shifts), _mm512_set1_epi32((1 << BITS) - 1));
        Self(_mm512_cvtepi32_ps(codes))
    }
}

/// The halves, added.
///
/// # Safety
/// As [`Vector::sum`].
#[inline(always)]
unsafe fn half_sums(x: __m512) -> __m256 {
    _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps::<1>(x))
}

/// The kernels of AVX-512.
pub(super) const TABLE: Table = table!(
    super::Isa::Avx512,
    "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c",
    Wide,
    x86_avx2::TABLE.orders,
    x86_avx2::TABLE.fast,
    x86_avx2::TABLE.integer,
    x86_avx2::TABLE.panels
);
