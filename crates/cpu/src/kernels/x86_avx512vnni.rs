//! AVX-512 with VNNI and VBMI: codes of any width are cut out of the bit stream by two instructions.
#![allow(
    unsafe_op_in_unsafe_fn,
    reason = "functions of intrinsics: what makes one of them sound makes all of them so, and the traits say it"
)]

use std::arch::x86_64::*;

use super::activations::Order;
use super::table::{Table, fast, integer};
use super::vector::Dot;
use super::x86_avx512;

/// Integer products by `vpdpbusd`, 64 at a time, with activations as they come.
struct Dot512;

impl Dot for Dot512 {
    type Floats = __m256;
    type Partial = __m512i;

    const ORDERS: [Order; 6] = [Order::NATURAL; 6];

    #[inline(always)]
    unsafe fn block<const BITS: usize, const N: usize>(codes: *const u8, x: [*const u8; N]) -> [__m512i; N] {
        let codes = bytes::<BITS>(codes);
        let mut out = [_mm512_setzero_si512(); N];
        for n in 0..N {
            out[n] = _mm512_dpbusd_epi32(out[n], codes, _mm512_load_si512(x[n].cast()));
        }
        out
    }
    #[inline(always)]
    unsafe fn add(a: __m512i, b: __m512i) -> __m512i {
        _mm512_add_epi32(a, b)
    }
    #[inline(always)]
    unsafe fn join(a: __m512i, b: __m512i) -> __m512i {
        _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b))
    }
    #[inline(always)]
    unsafe fn join_joined(a: __m512i, b: __m512i) -> __m512i {
        _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b))
    }
    #[inline(always)]
    unsafe fn whole_sums(a: __m512i, b: __m512i) -> __m256 {
        // Each quarter of a has a part of the sums of groups 0–3, each of b of groups 4–7.
        let even = _mm512_shuffle_i64x2::<0b10_00_10_00>(a, b);
        let halves = _mm512_add_epi32(even, _mm512_shuffle_i64x2::<0b11_01_11_01>(a, b));
        let sums = _mm512_add_epi32(halves, _mm512_shuffle_i64x2::<0b10_11_00_01>(halves, halves));
        _mm256_cvtepi32_ps(_mm512_castsi512_si256(_mm512_shuffle_i64x2::<0b10_00_10_00>(sums, sums)))
    }
    #[inline(always)]
    unsafe fn half_sums(a: __m512i, b: __m512i) -> __m256 {
        // The first two quarters have parts of the sums of groups 0 2 4 6, the last two of groups 1 3 5 7.
        let four = Self::join_joined(a, b);
        let sums = _mm512_add_epi32(four, _mm512_shuffle_i64x2::<0b10_11_00_01>(four, four));
        let order = _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 0, 0, 0, 0, 0, 0, 0, 0);
        _mm256_cvtepi32_ps(_mm512_castsi512_si256(_mm512_permutexvar_epi32(order, sums)))
    }
}

/// The 64 codes of a block as bytes.
///
/// # Safety
/// As [`Dot::block`].
#[inline(always)]
unsafe fn bytes<const BITS: usize>(codes: *const u8) -> __m512i {
    if BITS == 8 {
        return _mm512_loadu_si512(codes.cast());
    }
    let table = &const { Cut::new(BITS) };
    let stream = _mm512_maskz_loadu_epi8((1 << (8 * BITS)) - 1, codes.cast());
    let eights = _mm512_permutexvar_epi8(_mm512_loadu_si512(table.gather.as_ptr().cast()), stream);
    let cut = _mm512_multishift_epi64_epi8(_mm512_loadu_si512(table.shift.as_ptr().cast()), eights);
    _mm512_and_si512(cut, _mm512_set1_epi8((1 << BITS) - 1))
}

/// How codes are cut out: eight of them are `BITS` bytes, which go to one 64-bit lane, and start `BITS` bits apart.
struct Cut {
    gather: [u8; 64],
    shift: [u8; 64],
}

impl Cut {
    const fn new(bits: usize) -> Self {
        let mut t = Self { gather: [0; 64], shift: [0; 64] };
        let mut i = 0;
        while i < 64 {
            // Bytes past those of the eight codes are cut off by the mask.
            let byte = i / 8 * bits + i % 8;
            t.gather[i] = if byte < 64 { byte as u8 } else { 0 };
            t.shift[i] = (i % 8 * bits) as u8;
            i += 1;
        }
        t
    }
}

/// The kernels of AVX-512 with VNNI and VBMI.
pub(super) const TABLE: Table = Table {
    isa: super::Isa::Avx512Vnni,
    orders: &Dot512::ORDERS,
    fast: fast!("avx512vnni,avx512vbmi,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c", Dot512),
    integer: integer!("avx512vnni,avx512vbmi,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c", Dot512),
    ..x86_avx512::TABLE
};
