//! AVX2 with FMA and F16C.
#![allow(
    unsafe_op_in_unsafe_fn,
    reason = "functions of intrinsics: what makes one of them sound makes all of them so, and the traits say it"
)]

use std::arch::x86_64::*;

use super::activations::Order;
use super::bits::{places, shifts};
use super::table::{Table, fast, panel_integer, panels, table};
use super::vector::{Dot, Eight, Vector};
use super::x86_panels::Panel256;

/// Sixteen f32 in two registers.
#[derive(Clone, Copy)]
pub(super) struct F32x16(pub(super) [__m256; 2]);

/// Applies an operation of eight lanes to both halves.
macro_rules! halves {
    ($op:ident, $($x:expr),+) => {
        F32x16([$op($($x.0[0]),+), $op($($x.0[1]),+)])
    };
}

impl Vector for F32x16 {
    type Eight = __m256;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Self([_mm256_set1_ps(x); 2])
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        Self([_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))])
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> Self {
        Self([Eight::load_f16(p), Eight::load_f16(p.add(16))])
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> Self {
        Self([Eight::load_bf16(p), Eight::load_bf16(p.add(16))])
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        _mm256_storeu_ps(p, self.0[0]);
        _mm256_storeu_ps(p.add(8), self.0[1]);
    }
    #[inline(always)]
    unsafe fn add(self, o: Self) -> Self {
        halves!(_mm256_add_ps, self, o)
    }
    #[inline(always)]
    unsafe fn sub(self, o: Self) -> Self {
        halves!(_mm256_sub_ps, self, o)
    }
    #[inline(always)]
    unsafe fn mul(self, o: Self) -> Self {
        halves!(_mm256_mul_ps, self, o)
    }
    #[inline(always)]
    unsafe fn div(self, o: Self) -> Self {
        halves!(_mm256_div_ps, self, o)
    }
    #[inline(always)]
    unsafe fn fma(self, m: Self, a: Self) -> Self {
        halves!(_mm256_fmadd_ps, self, m, a)
    }
    #[inline(always)]
    unsafe fn max(self, o: Self) -> Self {
        halves!(_mm256_max_ps, self, o)
    }
    #[inline(always)]
    unsafe fn min(self, o: Self) -> Self {
        halves!(_mm256_min_ps, self, o)
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        Self([_mm256_round_ps::<NEAREST>(self.0[0]), _mm256_round_ps::<NEAREST>(self.0[1])])
    }
    #[inline(always)]
    unsafe fn pow2(self) -> Self {
        let bias = _mm256_set1_epi32(127);
        let a = _mm256_add_epi32(_mm256_cvtps_epi32(self.0[0]), bias);
        let b = _mm256_add_epi32(_mm256_cvtps_epi32(self.0[1]), bias);
        Self([
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(a)),
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(b)),
        ])
    }
    #[inline(always)]
    unsafe fn max_magnitude(self, o: Self) -> Self {
        Self([larger_magnitude(self.0[0], o.0[0]), larger_magnitude(self.0[1], o.0[1])])
    }
    #[inline(always)]
    unsafe fn magnitude(self) -> f32 {
        let Self([a, b]) = self.max_magnitude(self);
        let both = _mm256_max_epi32(_mm256_castps_si256(a), _mm256_castps_si256(b));
        let four = _mm_max_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256::<1>(both));
        let two = _mm_max_epi32(four, _mm_shuffle_epi32::<0b01_00_11_10>(four));
        let one = _mm_max_epi32(two, _mm_shuffle_epi32::<0b10_11_00_01>(two));
        f32::from_bits(_mm_cvtsi128_si32(one) as u32)
    }
    #[inline(always)]
    unsafe fn max_lane(self) -> f32 {
        let eight = _mm256_max_ps(self.0[0], self.0[1]);
        let four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
        let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        Eight::sum(_mm256_add_ps(self.0[0], self.0[1]))
    }
    #[inline(always)]
    unsafe fn four_sums(of: [Self; 4]) -> [f32; 4] {
        let mut halves = [_mm256_setzero_ps(); 4];
        for (half, x) in halves.iter_mut().zip(of) {
            *half = _mm256_add_ps(x.0[0], x.0[1]);
        }
        four_sums(halves)
    }
    #[inline(always)]
    unsafe fn to_i8(self, p: *mut i8) {
        let (a, b) = (_mm256_cvtps_epi32(self.0[0]), _mm256_cvtps_epi32(self.0[1]));
        // In-lane packing takes a0–3 b0–3 | a4–7 b4–7: the middle quarters change places.
        let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(a, b));
        let (low, high) = (_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
        _mm_storeu_si128(p.cast(), _mm_packs_epi16(low, high));
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16) {
        for (i, x) in self.0.into_iter().enumerate() {
            _mm_storeu_si128(p.add(8 * i).cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x));
        }
    }
    #[inline(always)]
    unsafe fn codes<const BITS: usize>(unit: *const u8, half: usize) -> Self {
        let (low, high) = (codes::<BITS>(unit, 2 * half), codes::<BITS>(unit, 2 * half + 1));
        Self([_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high)])
    }
}

/// # Safety
/// As [`Vector::max_magnitude`].
#[inline(always)]
unsafe fn larger_magnitude(a: __m256, b: __m256) -> __m256 {
    let mask = _mm256_set1_epi32(i32::MAX);
    let (a, b) = (_mm256_castps_si256(a), _mm256_castps_si256(b));
    _mm256_castsi256_ps(_mm256_max_epi32(_mm256_and_si256(a, mask), _mm256_and_si256(b, mask)))
}

/// The [`Eight::sum`] of each.
///
/// # Safety
/// As [`Vector::four_sums`].
#[inline(always)]
pub(super) unsafe fn four_sums([a, b, c, d]: [__m256; 4]) -> [f32; 4] {
    // Fours of a and b, of c and d; twos of a and c, then b and d.
    let ab = _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(a, b), _mm256_permute2f128_ps::<0x31>(a, b));
    let cd = _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(c, d), _mm256_permute2f128_ps::<0x31>(c, d));
    let (low, high) =
        (_mm256_shuffle_ps::<0b01_00_01_00>(ab, cd), _mm256_shuffle_ps::<0b11_10_11_10>(ab, cd));
    let two = _mm256_add_ps(low, high);
    let one = _mm256_add_ps(two, _mm256_movehdup_ps(two));
    let (ac, bd) = (_mm256_castps256_ps128(one), _mm256_extractf128_ps::<1>(one));
    let mut out = [0.0; 4];
    _mm_storeu_ps(out.as_mut_ptr(), _mm_blend_ps::<0b1010>(ac, _mm_moveldup_ps(bd)));
    out
}

/// Codes `8 · at..8 · at + 8` of the 32 that begin at `unit`.
///
/// # Safety
/// As [`Vector::codes`].
#[inline(always)]
unsafe fn codes<const BITS: usize>(unit: *const u8, at: usize) -> __m256i {
    if BITS == 8 {
        return _mm256_cvtepu8_epi32(_mm_loadl_epi64(unit.add(8 * at).cast()));
    }
    let shifts = _mm256_loadu_si256(shifts::<BITS>(at).as_ptr().cast());
    _mm256_and_si256(_mm256_srlv_epi32(words::<BITS>(unit, at), shifts), _mm256_set1_epi32((1 << BITS) - 1))
}

/// For each of codes `8 · at..8 · at + 8`, 32 bits that it lies in.
///
/// # Safety
/// As [`Vector::codes`].
#[inline(always)]
pub(super) unsafe fn words<const BITS: usize>(unit: *const u8, at: usize) -> __m256i {
    let (low, high, _) = places::<BITS>(at);
    if low == high {
        _mm256_set1_epi32(dword(unit, low))
    } else {
        _mm256_set_m128i(_mm_set1_epi32(dword(unit, high)), _mm_set1_epi32(dword(unit, low)))
    }
}

/// Four bytes at an offset.
///
/// # Safety
/// They are readable.
#[inline(always)]
unsafe fn dword(unit: *const u8, at: usize) -> i32 {
    unit.add(at).cast::<i32>().read_unaligned()
}

impl Eight for __m256 {
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        _mm256_set1_ps(x)
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        _mm256_loadu_ps(p)
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> Self {
        _mm256_cvtph_ps(_mm_loadu_si128(p.cast()))
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> Self {
        let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        _mm256_storeu_ps(p, self);
    }
    #[inline(always)]
    unsafe fn mul(self, o: Self) -> Self {
        _mm256_mul_ps(self, o)
    }
    #[inline(always)]
    unsafe fn fma(self, m: Self, a: Self) -> Self {
        _mm256_fmadd_ps(self, m, a)
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        let four = _mm_add_ps(_mm256_castps256_ps128(self), _mm256_extractf128_ps::<1>(self));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
    }
}

/// Integer products by `maddubs` for 2 and 4 bits, by 16-bit windows and `madd` for the rest.
pub(super) struct Dot256;

/// The order of 2-bit activations that [`planes`] makes.
pub(super) const ORDER_2: Order = Order::narrow(&[0, 1, 32, 33, 2, 3, 34, 35], 4);

/// The order of 4-bit activations that [`planes`] makes.
pub(super) const ORDER_4: Order = Order::narrow(&[0, 32, 1, 33], 2);

impl Dot for Dot256 {
    type Floats = __m256;
    type Partial = __m256i;

    const ORDERS: [Order; 6] =
        [ORDER_2, Order::wide(3), ORDER_4, Order::wide(5), Order::wide(6), Order::wide(8)];

    #[inline(always)]
    unsafe fn add(a: __m256i, b: __m256i) -> __m256i {
        _mm256_add_epi32(a, b)
    }
    #[inline(always)]
    unsafe fn block<const BITS: usize, const N: usize>(codes: *const u8, x: [*const u8; N]) -> [__m256i; N] {
        let mut out = [_mm256_setzero_si256(); N];
        if BITS == 2 || BITS == 4 {
            let [a, b] = planes::<BITS>(codes);
            for n in 0..N {
                let (xa, xb) = (_mm256_load_si256(x[n].cast()), _mm256_load_si256(x[n].add(32).cast()));
                // At most 4 · 15 · 127: far from saturating.
                let pairs = _mm256_add_epi16(_mm256_maddubs_epi16(a, xa), _mm256_maddubs_epi16(b, xb));
                out[n] = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
            }
        } else {
            let w = windows::<BITS>(codes);
            for n in 0..N {
                let mut sum = _mm256_setzero_si256();
                for (i, &w) in w.iter().enumerate() {
                    let x = _mm256_load_si256(x[n].add(32 * i).cast());
                    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(w, x));
                }
                out[n] = sum;
            }
        }
        out
    }
    #[inline(always)]
    unsafe fn join(a: __m256i, b: __m256i) -> __m256i {
        _mm256_hadd_epi32(a, b)
    }
    #[inline(always)]
    unsafe fn join_joined(a: __m256i, b: __m256i) -> __m256i {
        _mm256_hadd_epi32(a, b)
    }
    #[inline(always)]
    unsafe fn whole_sums(a: __m256i, b: __m256i) -> __m256 {
        let low = _mm256_permute2x128_si256::<0x20>(a, b);
        let high = _mm256_permute2x128_si256::<0x31>(a, b);
        _mm256_cvtepi32_ps(_mm256_add_epi32(low, high))
    }
    #[inline(always)]
    unsafe fn half_sums(a: __m256i, b: __m256i) -> __m256 {
        // Groups 0 2 4 6 | 1 3 5 7.
        let sums = _mm256_hadd_epi32(a, b);
        _mm256_cvtepi32_ps(_mm256_permutevar8x32_epi32(sums, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)))
    }
}

/// The codes of a block as bytes, in the order of [`ORDER_2`] or [`ORDER_4`].
///
/// # Safety
/// As [`Dot::block`].
#[inline(always)]
pub(super) unsafe fn planes<const BITS: usize>(codes: *const u8) -> [__m256i; 2] {
    let mask = _mm256_set1_epi8((1 << BITS) - 1);
    let (a, b) = if BITS == 2 {
        let halves =
            _mm256_permute4x64_epi64::<0b01_01_00_00>(_mm256_castsi128_si256(_mm_loadu_si128(codes.cast())));
        let a = _mm256_srlv_epi64(halves, _mm256_setr_epi64x(0, 2, 0, 2));
        (a, _mm256_srli_epi16::<4>(a))
    } else {
        let a = _mm256_loadu_si256(codes.cast());
        (a, _mm256_srli_epi16::<4>(a))
    };
    [_mm256_and_si256(a, mask), _mm256_and_si256(b, mask)]
}

/// The codes of a block of 3, 5, 6 or 8 bits, each within 16 bits at the place that `Order::wide` counts on.
///
/// # Safety
/// As [`Dot::block`].
#[inline(always)]
pub(super) unsafe fn windows<const BITS: usize>(codes: *const u8) -> [__m256i; 4] {
    if BITS == 8 {
        let (a, b, zero) = (load_pair(codes, [0, 32]), load_pair(codes, [16, 48]), _mm256_setzero_si256());
        return [
            _mm256_unpacklo_epi8(a, zero),
            _mm256_unpackhi_epi8(a, zero),
            _mm256_unpacklo_epi8(b, zero),
            _mm256_unpackhi_epi8(b, zero),
        ];
    }
    let table = &const { Windows::new(BITS) };
    let mask = _mm256_broadcastsi128_si256(_mm_load_si128(table.mask.as_ptr().cast()));
    let mut out = [mask; 4];
    for (i, out) in out.iter_mut().enumerate() {
        let shuffle = _mm256_load_si256(table.shuffle[i].as_ptr().cast());
        let bytes = load_pair(codes, table.loads[i]);
        *out = _mm256_and_si256(_mm256_shuffle_epi8(bytes, shuffle), mask);
    }
    out
}

/// Sixteen bytes at each of two offsets.
///
/// # Safety
/// As [`Dot::block`]; the bytes lie within the block.
#[inline(always)]
pub(super) unsafe fn load_pair(codes: *const u8, [low, high]: [usize; 2]) -> __m256i {
    let low = _mm_loadu_si128(codes.add(low).cast());
    _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(low), _mm_loadu_si128(codes.add(high).cast()))
}

/// How the 16-bit windows of a width are cut out of a block: window i holds codes `8i..8i + 8` of the block's first
/// half in its lower 128 bits and those of the last half in its upper.
#[repr(align(32))]
struct Windows {
    shuffle: [[u8; 32]; 4],
    mask: [u16; 8],
    /// Where the lower and upper 16 bytes of each window are loaded from, always within the block.
    loads: [[usize; 2]; 4],
}

impl Windows {
    const fn new(bits: usize) -> Self {
        let mut t = Self { shuffle: [[0x80; 32]; 4], mask: [0; 8], loads: [[0; 2]; 4] };
        // Two windows of 5- or 6-bit codes share a load, all four of 3-bit ones.
        let shared = if bits == 3 { 4 } else { 2 };
        let mut i = 0;
        while i < 8 {
            let (window, half) = (i / 2, i % 2);
            let first = half * 4 * bits + window / shared * shared * bits;
            let load = if first + 16 > 8 * bits { 8 * bits - 16 } else { first };
            t.loads[window][half] = load;
            let mut j = 0;
            while j < 8 {
                let bit = 8 * (half * 4 * bits + window * bits - load) + j * bits;
                t.shuffle[window][half * 16 + 2 * j] = (bit / 8) as u8;
                if bit % 8 + bits > 8 {
                    t.shuffle[window][half * 16 + 2 * j + 1] = (bit / 8 + 1) as u8;
                }
                t.mask[j] = ((1 << bits) - 1) << (bit % 8);
                j += 1;
            }
            i += 1;
        }
        t
    }
}

/// The kernels of AVX2.
pub(super) const TABLE: Table = table!(
    super::Isa::Avx2,
    "avx2,fma,f16c",
    F32x16,
    &Dot256::ORDERS,
    fast!("avx2,fma,f16c", Dot256),
    panel_integer!("avx2,fma,f16c", Panel256, 4),
    panels!("avx2,fma,f16c", Panel256, 4, 2, {m4: 4, m5: 5, m6: 6, m8: 8}, [m4, m4, m4, m5, m6, m8])
);
