//! Panels for the instruction sets of x86 with registers of 256 bits: unpacking, and AVX2's own products.
#![allow(
    unsafe_op_in_unsafe_fn,
    reason = "functions of intrinsics: what makes one of them sound makes all of them so, and the traits say it"
)]

use std::arch::x86_64::*;

use super::vector::Panel;
use super::x86_avx2::{F32x16, windows};

/// Products by `maddubs`, whose sums stay in 16 bits for as many steps as the width allows.
pub(super) struct Panel256;

impl Panel for Panel256 {
    type Floats = F32x16;

    #[inline(always)]
    unsafe fn bytes<const BITS: usize>(codes: *const u8, out: *mut u8) {
        let [a, b] = bytes::<BITS>(codes);
        _mm256_storeu_si256(out.cast(), a);
        _mm256_storeu_si256(out.add(32).cast(), b);
    }
    #[inline(always)]
    unsafe fn transpose(from: *const f32, to: *mut f32) {
        for (row, column) in [(0, 0), (0, 8), (8, 0), (8, 8)] {
            transpose_8x8(from.add(row * 16 + column), to.add(column * 16 + row));
        }
    }
    #[inline(always)]
    unsafe fn dots<const BITS: usize, const N: usize>(
        codes: *const u8,
        halves: usize,
        x: [*const u8; N],
    ) -> [F32x16; N] {
        let mut sums = [[_mm256_setzero_si256(); N]; 2];
        for half in 0..halves {
            let codes = codes.add(half * 8 * 64);
            let mut at = x;
            for at in &mut at {
                *at = at.add(half * 32);
            }
            if BITS == 8 {
                add_half_8(codes, at, &mut sums[0]);
                add_half_8(codes.add(32), at, &mut sums[1]);
            } else {
                add_half::<BITS, N>(codes, at, &mut sums);
            }
        }
        floats(sums)
    }
}

/// Adds the products of 32 columns of up to 6 bits.
///
/// # Safety
/// As [`Panel::dots`].
#[inline(always)]
unsafe fn add_half<const BITS: usize, const N: usize>(
    codes: *const u8,
    x: [*const u8; N],
    sums: &mut [[__m256i; N]; 2],
) {
    // Steps whose pairs of products fit 16 bits together: 2 · (2^BITS − 1) · 127 each.
    let depth = match BITS {
        6 => 2,
        5 => 4,
        _ => 8,
    };
    for first in (0..8).step_by(depth) {
        let mut pairs = [[_mm256_setzero_si256(); N]; 2];
        for step in first..first + depth {
            let w = [step_codes(codes, step, 0), step_codes(codes, step, 1)];
            for n in 0..N {
                let x = four(x[n], step);
                for v in 0..2 {
                    pairs[v][n] = _mm256_add_epi16(pairs[v][n], _mm256_maddubs_epi16(w[v], x));
                }
            }
        }
        for v in 0..2 {
            for n in 0..N {
                let wide = _mm256_madd_epi16(pairs[v][n], _mm256_set1_epi16(1));
                sums[v][n] = _mm256_add_epi32(sums[v][n], wide);
            }
        }
    }
}

/// Adds the products of 32 columns of 8 bits for half of the rows, by the halves of each code.
///
/// # Safety
/// As [`Panel::dots`].
#[inline(always)]
unsafe fn add_half_8<const N: usize>(codes: *const u8, x: [*const u8; N], sums: &mut [__m256i; N]) {
    let mask = _mm256_set1_epi8(0xf);
    let (mut low, mut high) = ([_mm256_setzero_si256(); N], [_mm256_setzero_si256(); N]);
    for step in 0..8 {
        let w = step_codes(codes, step, 0);
        let (w_low, w_high) = (_mm256_and_si256(w, mask), _mm256_and_si256(_mm256_srli_epi16::<4>(w), mask));
        for n in 0..N {
            let x = four(x[n], step);
            low[n] = _mm256_add_epi16(low[n], _mm256_maddubs_epi16(w_low, x));
            high[n] = _mm256_add_epi16(high[n], _mm256_maddubs_epi16(w_high, x));
        }
    }
    for n in 0..N {
        let low = _mm256_madd_epi16(low[n], _mm256_set1_epi16(1));
        let high = _mm256_madd_epi16(high[n], _mm256_set1_epi16(16));
        sums[n] = _mm256_add_epi32(sums[n], _mm256_add_epi32(low, high));
    }
}

/// Four codes of each of eight rows, the first of the panel or the last.
///
/// # Safety
/// As [`Panel::dots`].
#[inline(always)]
pub(super) unsafe fn step_codes(codes: *const u8, step: usize, half: usize) -> __m256i {
    _mm256_load_si256(codes.add(64 * step + 32 * half).cast())
}

/// The four activations of a step, over and over.
///
/// # Safety
/// As [`Panel::dots`].
#[inline(always)]
pub(super) unsafe fn four(x: *const u8, step: usize) -> __m256i {
    _mm256_set1_epi32(x.add(4 * step).cast::<i32>().read_unaligned())
}

/// # Safety
/// As [`Panel::dots`].
#[inline(always)]
pub(super) unsafe fn floats<const N: usize>(sums: [[__m256i; N]; 2]) -> [F32x16; N] {
    let mut out = [F32x16([_mm256_setzero_ps(); 2]); N];
    for n in 0..N {
        out[n] = F32x16([_mm256_cvtepi32_ps(sums[0][n]), _mm256_cvtepi32_ps(sums[1][n])]);
    }
    out
}

/// The codes of a block as bytes, as they come.
///
/// # Safety
/// As [`Panel::bytes`].
#[inline(always)]
unsafe fn bytes<const BITS: usize>(codes: *const u8) -> [__m256i; 2] {
    let mut out = [_mm256_setzero_si256(); 2];
    match BITS {
        2 => {
            for (i, out) in out.iter_mut().enumerate() {
                let bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(codes.add(8 * i).cast()));
                let two = _mm256_or_si256(bytes, _mm256_slli_epi32::<12>(bytes));
                let four = _mm256_or_si256(two, _mm256_slli_epi32::<6>(two));
                *out = _mm256_and_si256(four, _mm256_set1_epi8(3));
            }
        }
        4 => {
            for (i, out) in out.iter_mut().enumerate() {
                let bytes = _mm256_cvtepu8_epi16(_mm_loadu_si128(codes.add(16 * i).cast()));
                let two = _mm256_or_si256(bytes, _mm256_slli_epi16::<4>(bytes));
                *out = _mm256_and_si256(two, _mm256_set1_epi8(0xf));
            }
        }
        8 => out = [_mm256_loadu_si256(codes.cast()), _mm256_loadu_si256(codes.add(32).cast())],
        _ => {
            // Brings each code of its window to bit 8.
            let up = &const { up(BITS) };
            let up = _mm256_broadcastsi128_si256(_mm_loadu_si128(up.as_ptr().cast()));
            let mut w = windows::<BITS>(codes);
            for w in &mut w {
                *w = _mm256_srli_epi16::<8>(_mm256_mullo_epi16(*w, up));
            }
            // The first half of the block lies in the lower lanes, the last in the upper.
            let (a, b) = (_mm256_packus_epi16(w[0], w[1]), _mm256_packus_epi16(w[2], w[3]));
            out = [_mm256_permute2x128_si256::<0x20>(a, b), _mm256_permute2x128_si256::<0x31>(a, b)];
        }
    }
    out
}

/// `2^(8 − bit)` of the bit at which each of eight codes begins in its window.
const fn up(bits: usize) -> [u16; 8] {
    let mut out = [0; 8];
    let mut i = 0;
    while i < 8 {
        out[i] = 1 << (8 - i * bits % 8);
        i += 1;
    }
    out
}

/// Transposes eight by eight out of rows of sixteen.
///
/// # Safety
/// As [`Panel::transpose`].
#[inline(always)]
unsafe fn transpose_8x8(from: *const f32, to: *mut f32) {
    let mut rows = [_mm256_setzero_ps(); 8];
    for (i, row) in rows.iter_mut().enumerate() {
        *row = _mm256_loadu_ps(from.add(16 * i));
    }
    let mut fours = [_mm256_setzero_ps(); 8];
    for i in 0..2 {
        let [a, b, c, d] = [rows[4 * i], rows[4 * i + 1], rows[4 * i + 2], rows[4 * i + 3]];
        let (ab, cd) = (_mm256_unpacklo_ps(a, b), _mm256_unpacklo_ps(c, d));
        fours[4 * i] = _mm256_shuffle_ps::<0b01_00_01_00>(ab, cd);
        fours[4 * i + 1] = _mm256_shuffle_ps::<0b11_10_11_10>(ab, cd);
        let (ab, cd) = (_mm256_unpackhi_ps(a, b), _mm256_unpackhi_ps(c, d));
        fours[4 * i + 2] = _mm256_shuffle_ps::<0b01_00_01_00>(ab, cd);
        fours[4 * i + 3] = _mm256_shuffle_ps::<0b11_10_11_10>(ab, cd);
    }
    for i in 0..4 {
        let (a, b) = (fours[i], fours[4 + i]);
        _mm256_storeu_ps(to.add(16 * i), _mm256_permute2f128_ps::<0x20>(a, b));
        _mm256_storeu_ps(to.add(16 * (4 + i)), _mm256_permute2f128_ps::<0x31>(a, b));
    }
}
