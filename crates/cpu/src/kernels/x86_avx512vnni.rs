//! AVX-512 with VNNI and VBMI: codes of any width are cut out of the bit stream by two instructions.
#![allow(
    unsafe_op_in_unsafe_fn,
    reason = "functions of intrinsics: what makes one of them sound makes all of them so, and the traits say it"
)]

use std::arch::x86_64::*;

use super::activations::Order;
use super::table::{Table, fast, panel_integer, panels};
use super::vector::{Dot, Panel};
use super::x86_avx512::{self, Wide};

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

impl Panel for Dot512 {
    type Floats = Wide;

    #[inline(always)]
    unsafe fn bytes<const BITS: usize>(codes: *const u8, out: *mut u8) {
        _mm512_storeu_si512(out.cast(), bytes::<BITS>(codes));
    }
    #[inline(always)]
    unsafe fn transpose(from: *const f32, to: *mut f32) {
        transpose(from.cast(), to.cast());
    }
    #[inline(always)]
    unsafe fn dots<const BITS: usize, const N: usize>(
        codes: *const u8,
        halves: usize,
        x: [*const u8; N],
    ) -> [Wide; N] {
        let (mut even, mut odd) = ([_mm512_setzero_si512(); N], [_mm512_setzero_si512(); N]);
        for pair in 0..4 * halves {
            let w = codes.add(128 * pair);
            let (a, b) = (_mm512_load_si512(w.cast()), _mm512_load_si512(w.add(64).cast()));
            for n in 0..N {
                let x = x[n].add(8 * pair).cast::<i32>();
                even[n] = _mm512_dpbusd_epi32(even[n], a, _mm512_set1_epi32(x.read_unaligned()));
                // An instruction takes longer than those of one step: few inputs have even and odd steps apart.
                let sums = if N < APART { &mut odd } else { &mut even };
                sums[n] = _mm512_dpbusd_epi32(sums[n], b, _mm512_set1_epi32(x.add(1).read_unaligned()));
            }
        }
        let mut out = [Wide(_mm512_setzero_ps()); N];
        for n in 0..N {
            let sum = if N < APART { _mm512_add_epi32(even[n], odd[n]) } else { even[n] };
            out[n] = Wide(_mm512_cvtepi32_ps(sum));
        }
        out
    }
}

/// So many chains of products keep the processor busy.
const APART: usize = 12;

/// Transposes sixteen rows of sixteen words.
///
/// # Safety
/// As [`Panel::transpose`].
#[inline(always)]
unsafe fn transpose(from: *const i32, to: *mut i32) {
    // Quarter j of `fours[q][i]` has word 4j + i of rows 4q to 4q + 3.
    let mut fours = [[_mm512_setzero_si512(); 4]; 4];
    for (q, fours) in fours.iter_mut().enumerate() {
        let mut rows = [_mm512_setzero_si512(); 4];
        for (i, row) in rows.iter_mut().enumerate() {
            *row = _mm512_loadu_si512(from.add(16 * (4 * q + i)).cast());
        }
        let (ab, cd) = (_mm512_unpacklo_epi32(rows[0], rows[1]), _mm512_unpacklo_epi32(rows[2], rows[3]));
        fours[0] = _mm512_unpacklo_epi64(ab, cd);
        fours[1] = _mm512_unpackhi_epi64(ab, cd);
        let (ab, cd) = (_mm512_unpackhi_epi32(rows[0], rows[1]), _mm512_unpackhi_epi32(rows[2], rows[3]));
        fours[2] = _mm512_unpacklo_epi64(ab, cd);
        fours[3] = _mm512_unpackhi_epi64(ab, cd);
    }
    let [f0, f1, f2, f3] = fours;
    for (i, (((a, b), c), d)) in f0.into_iter().zip(f1).zip(f2).zip(f3).enumerate() {
        let low = [_mm512_shuffle_i64x2::<0b01_00_01_00>(a, b), _mm512_shuffle_i64x2::<0b01_00_01_00>(c, d)];
        let high = [_mm512_shuffle_i64x2::<0b11_10_11_10>(a, b), _mm512_shuffle_i64x2::<0b11_10_11_10>(c, d)];
        for (j, [ab, cd]) in [low, high].into_iter().enumerate() {
            let (even, odd) = (
                _mm512_shuffle_i64x2::<0b10_00_10_00>(ab, cd),
                _mm512_shuffle_i64x2::<0b11_01_11_01>(ab, cd),
            );
            _mm512_storeu_si512(to.add(16 * (8 * j + i)).cast(), even);
            _mm512_storeu_si512(to.add(16 * (8 * j + 4 + i)).cast(), odd);
        }
    }
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
    integer: panel_integer!(
        "avx512vnni,avx512vbmi,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c",
        Dot512,
        8
    ),
    panels: panels!(
        "avx512vnni,avx512vbmi,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c",
        Dot512,
        12,
        4,
        {all: 8},
        [all; 6]
    ),
    ..x86_avx512::TABLE
};
