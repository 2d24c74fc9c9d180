//! NEON, as every AArch64 processor has it.
#![allow(
    unsafe_op_in_unsafe_fn,
    reason = "functions of intrinsics: what makes one of them sound makes all of them so, and the traits say it"
)]

use std::arch::aarch64::*;
use std::arch::asm;

use super::activations::Order;
use super::bits::{places, shifts};
use super::table::{Table, fast, integer, table};
use super::vector::{Dot, Eight, Vector};

/// Sixteen f32 in four registers.
#[derive(Clone, Copy)]
pub(super) struct Quads(pub(super) [float32x4_t; 4]);

/// Applies an operation of four lanes to all quarters.
macro_rules! quads {
    ($op:ident, $($x:expr),+) => {
        Quads([$op($($x.0[0]),+), $op($($x.0[1]),+), $op($($x.0[2]),+), $op($($x.0[3]),+)])
    };
}

impl Vector for Quads {
    type Eight = Pair;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Self([vdupq_n_f32(x); 4])
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        Self([vld1q_f32(p), vld1q_f32(p.add(4)), vld1q_f32(p.add(8)), vld1q_f32(p.add(12))])
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> Self {
        Self([from_f16(p), from_f16(p.add(8)), from_f16(p.add(16)), from_f16(p.add(24))])
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> Self {
        Self([from_bf16(p), from_bf16(p.add(8)), from_bf16(p.add(16)), from_bf16(p.add(24))])
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        for (i, x) in self.0.into_iter().enumerate() {
            vst1q_f32(p.add(4 * i), x);
        }
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16) {
        for (i, x) in self.0.into_iter().enumerate() {
            let narrow: uint16x4_t;
            asm!("fcvtn {o:v}.4h, {i:v}.4s", o = lateout(vreg) narrow, i = in(vreg) x,
                options(pure, nomem, nostack, preserves_flags));
            vst1_u16(p.add(4 * i), narrow);
        }
    }
    #[inline(always)]
    unsafe fn add(self, o: Self) -> Self {
        quads!(vaddq_f32, self, o)
    }
    #[inline(always)]
    unsafe fn sub(self, o: Self) -> Self {
        quads!(vsubq_f32, self, o)
    }
    #[inline(always)]
    unsafe fn mul(self, o: Self) -> Self {
        quads!(vmulq_f32, self, o)
    }
    #[inline(always)]
    unsafe fn div(self, o: Self) -> Self {
        quads!(vdivq_f32, self, o)
    }
    #[inline(always)]
    unsafe fn fma(self, m: Self, a: Self) -> Self {
        quads!(vfmaq_f32, a, self, m)
    }
    #[inline(always)]
    unsafe fn max(self, o: Self) -> Self {
        quads!(vmaxq_f32, self, o)
    }
    #[inline(always)]
    unsafe fn min(self, o: Self) -> Self {
        quads!(vminq_f32, self, o)
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        quads!(vrndnq_f32, self)
    }
    #[inline(always)]
    unsafe fn pow2(self) -> Self {
        quads!(pow2, self)
    }
    #[inline(always)]
    unsafe fn max_magnitude(self, o: Self) -> Self {
        quads!(larger_magnitude, self, o)
    }
    #[inline(always)]
    unsafe fn magnitude(self) -> f32 {
        let [a, b, c, d] = self.0;
        let largest = larger_magnitude(larger_magnitude(a, b), larger_magnitude(c, d));
        f32::from_bits(vmaxvq_u32(vreinterpretq_u32_f32(largest)))
    }
    #[inline(always)]
    unsafe fn max_lane(self) -> f32 {
        let [a, b, c, d] = self.0;
        vmaxvq_f32(vmaxq_f32(vmaxq_f32(a, b), vmaxq_f32(c, d)))
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        let [a, b, c, d] = self.0;
        Pair([vaddq_f32(a, c), vaddq_f32(b, d)]).sum()
    }
    #[inline(always)]
    unsafe fn four_sums(of: [Self; 4]) -> [f32; 4] {
        let mut fours = [vdupq_n_f64(0.0); 4];
        for (four, Self([a, b, c, d])) in fours.iter_mut().zip(of) {
            *four = vreinterpretq_f64_f32(vaddq_f32(vaddq_f32(a, c), vaddq_f32(b, d)));
        }
        let two = |a, b| {
            let (low, high) = (vzip1q_f64(a, b), vzip2q_f64(a, b));
            vaddq_f32(vreinterpretq_f32_f64(low), vreinterpretq_f32_f64(high))
        };
        let mut out = [0.0; 4];
        vst1q_f32(out.as_mut_ptr(), vpaddq_f32(two(fours[0], fours[1]), two(fours[2], fours[3])));
        out
    }
    #[inline(always)]
    unsafe fn to_i8(self, p: *mut i8) {
        for (i, pair) in self.0.as_chunks::<2>().0.iter().enumerate() {
            let (a, b) = (vqmovn_s32(vcvtnq_s32_f32(pair[0])), vqmovn_s32(vcvtnq_s32_f32(pair[1])));
            vst1_s8(p.add(8 * i), vqmovn_s16(vcombine_s16(a, b)));
        }
    }
    #[inline(always)]
    unsafe fn codes<const BITS: usize>(unit: *const u8, half: usize) -> Self {
        if BITS == 8 {
            let bytes = vld1q_u8(unit.add(16 * half));
            let (low, high) = (vmovl_u8(vget_low_u8(bytes)), vmovl_high_u8(bytes));
            return Self([
                vcvtq_f32_u32(vmovl_u16(vget_low_u16(low))),
                vcvtq_f32_u32(vmovl_high_u16(low)),
                vcvtq_f32_u32(vmovl_u16(vget_low_u16(high))),
                vcvtq_f32_u32(vmovl_high_u16(high)),
            ]);
        }
        let ([a, b], [c, d]) = (codes::<BITS>(unit, 2 * half), codes::<BITS>(unit, 2 * half + 1));
        Self([a, b, c, d])
    }
}

/// Codes `8 · at..8 · at + 8` of the 32 that begin at `unit`.
///
/// # Safety
/// As [`Vector::codes`].
#[inline(always)]
unsafe fn codes<const BITS: usize>(unit: *const u8, at: usize) -> [float32x4_t; 2] {
    let (low, high, _) = places::<BITS>(at);
    let shifts = shifts::<BITS>(at);
    let mask = vdupq_n_u32((1 << BITS) - 1);
    let mut out = [vdupq_n_f32(0.0); 2];
    for (i, word) in [low, high].into_iter().enumerate() {
        let words = vdupq_n_u32(unit.add(word).cast::<u32>().read_unaligned());
        let right = vnegq_s32(vld1q_s32(shifts.as_ptr().add(4 * i)));
        out[i] = vcvtq_f32_u32(vandq_u32(vshlq_u32(words, right), mask));
    }
    out
}

/// # Safety
/// As [`Vector::pow2`].
#[inline(always)]
unsafe fn pow2(x: float32x4_t) -> float32x4_t {
    vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(vcvtnq_s32_f32(x), vdupq_n_s32(127))))
}

/// # Safety
/// As [`Vector::max_magnitude`].
#[inline(always)]
unsafe fn larger_magnitude(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    let (a, b) = (vreinterpretq_u32_f32(vabsq_f32(a)), vreinterpretq_u32_f32(vabsq_f32(b)));
    vreinterpretq_f32_u32(vmaxq_u32(a, b))
}

/// Four f16, whose intrinsics are not stable.
///
/// # Safety
/// As [`Vector::load_f16`].
#[inline(always)]
unsafe fn from_f16(p: *const u8) -> float32x4_t {
    let wide: float32x4_t;
    asm!("fcvtl {o:v}.4s, {i:v}.4h", o = lateout(vreg) wide, i = in(vreg) vld1_u8(p),
        options(pure, nomem, nostack, preserves_flags));
    wide
}

/// Four bf16.
///
/// # Safety
/// As [`Vector::load_bf16`].
#[inline(always)]
unsafe fn from_bf16(p: *const u8) -> float32x4_t {
    vreinterpretq_f32_u32(vshll_n_u16::<16>(vreinterpret_u16_u8(vld1_u8(p))))
}

/// Eight f32 in two registers.
#[derive(Clone, Copy)]
pub(super) struct Pair([float32x4_t; 2]);

impl Eight for Pair {
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Self([vdupq_n_f32(x); 2])
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        Self([vld1q_f32(p), vld1q_f32(p.add(4))])
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> Self {
        Self([from_f16(p), from_f16(p.add(8))])
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> Self {
        Self([from_bf16(p), from_bf16(p.add(8))])
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        vst1q_f32(p, self.0[0]);
        vst1q_f32(p.add(4), self.0[1]);
    }
    #[inline(always)]
    unsafe fn mul(self, o: Self) -> Self {
        Self([vmulq_f32(self.0[0], o.0[0]), vmulq_f32(self.0[1], o.0[1])])
    }
    #[inline(always)]
    unsafe fn fma(self, m: Self, a: Self) -> Self {
        Self([vfmaq_f32(a.0[0], self.0[0], m.0[0]), vfmaq_f32(a.0[1], self.0[1], m.0[1])])
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        let four = vaddq_f32(self.0[0], self.0[1]);
        vaddv_f32(vadd_f32(vget_low_f32(four), vget_high_f32(four)))
    }
}

/// Products of sixteen codes and activations: what the extensions of NEON differ in.
///
/// # Safety
/// As [`Vector`].
pub(super) trait Products {
    /// Adds the products to the lanes of `sum`, those of codes 4i to 4i + 3 to lane i.
    unsafe fn dot<const BITS: usize>(sum: int32x4_t, codes: uint8x16_t, x: int8x16_t) -> int32x4_t;
}

/// Widening multiplications.
pub(super) struct Widening;

impl Products for Widening {
    #[inline(always)]
    unsafe fn dot<const BITS: usize>(sum: int32x4_t, codes: uint8x16_t, x: int8x16_t) -> int32x4_t {
        // 8-bit codes as signed bytes are 128 too small; their products with x fit 16 bits, and 128·x is added after.
        let codes = if BITS == 8 { veorq_u8(codes, vdupq_n_u8(0x80)) } else { codes };
        let codes = vreinterpretq_s8_u8(codes);
        let (low, high) = (vmull_s8(vget_low_s8(codes), vget_low_s8(x)), vmull_high_s8(codes, x));
        let sum = vaddq_s32(sum, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
        if BITS == 8 {
            let x = vpaddq_s16(vmovl_s8(vget_low_s8(x)), vmovl_high_s8(x));
            return vaddq_s32(sum, vshlq_n_s32::<7>(vpaddlq_s16(x)));
        }
        sum
    }
}

/// Integer products of blocks by those of sixteen.
pub(super) struct DotNeon<P>(P);

impl<P: Products> Dot for DotNeon<P> {
    type Floats = Pair;
    /// The first 32 weights in lanes 0 and 1, the last in lanes 2 and 3.
    type Partial = int32x4_t;

    const ORDERS: [Order; 6] = [
        Order::narrow(&[0, 32, 1, 33, 2, 34, 3, 35], 4),
        Order::NATURAL,
        Order::narrow(&[0, 1, 32, 33], 2),
        Order::NATURAL,
        Order::NATURAL,
        Order::NATURAL,
    ];

    #[inline(always)]
    unsafe fn block<const BITS: usize, const N: usize>(
        codes: *const u8,
        x: [*const u8; N],
    ) -> [int32x4_t; N] {
        let bytes = bytes::<BITS>(codes);
        let mut out = [vdupq_n_s32(0); N];
        for n in 0..N {
            let mut sums = [vdupq_n_s32(0); 2];
            for (i, &codes) in bytes.iter().enumerate() {
                let x = vld1q_s8(x[n].add(16 * i).cast());
                sums[i / 2] = P::dot::<BITS>(sums[i / 2], codes, x);
            }
            // Vectors of 2-bit codes hold both halves already.
            out[n] = if BITS == 2 { vaddq_s32(sums[0], sums[1]) } else { vpaddq_s32(sums[0], sums[1]) };
        }
        out
    }
    #[inline(always)]
    unsafe fn add(a: int32x4_t, b: int32x4_t) -> int32x4_t {
        vaddq_s32(a, b)
    }
    #[inline(always)]
    unsafe fn join(a: int32x4_t, b: int32x4_t) -> int32x4_t {
        vpaddq_s32(a, b)
    }
    #[inline(always)]
    unsafe fn join_joined(a: int32x4_t, b: int32x4_t) -> int32x4_t {
        vpaddq_s32(a, b)
    }
    #[inline(always)]
    unsafe fn whole_sums(a: int32x4_t, b: int32x4_t) -> Pair {
        Pair([vcvtq_f32_s32(a), vcvtq_f32_s32(b)])
    }
    #[inline(always)]
    unsafe fn half_sums(a: int32x4_t, b: int32x4_t) -> Pair {
        Pair([vcvtq_f32_s32(a), vcvtq_f32_s32(b)])
    }
}

/// The codes of a block as bytes, in the order of [`DotNeon`].
///
/// # Safety
/// As [`Dot::block`].
#[inline(always)]
pub(super) unsafe fn bytes<const BITS: usize>(codes: *const u8) -> [uint8x16_t; 4] {
    let mask = vdupq_n_u8((0xff >> (8 - BITS)) as u8);
    match BITS {
        2 => {
            let v = vld1q_u8(codes);
            [
                vandq_u8(v, mask),
                vandq_u8(vshrq_n_u8::<2>(v), mask),
                vandq_u8(vshrq_n_u8::<4>(v), mask),
                vshrq_n_u8::<6>(v),
            ]
        }
        4 => {
            let (a, b) = (vld1q_u8(codes), vld1q_u8(codes.add(16)));
            [vandq_u8(a, mask), vshrq_n_u8::<4>(a), vandq_u8(b, mask), vshrq_n_u8::<4>(b)]
        }
        8 => [vld1q_u8(codes), vld1q_u8(codes.add(16)), vld1q_u8(codes.add(32)), vld1q_u8(codes.add(48))],
        _ => {
            let table = &const { Windows::new(BITS) };
            let right = vld1q_s16(table.right.as_ptr());
            let mut out = [mask; 4];
            for (i, out) in out.iter_mut().enumerate() {
                let stream = vld1q_u8(codes.add(table.loads[i]));
                let low = vqtbl1q_u8(stream, vld1q_u8(table.gather[2 * i].as_ptr()));
                let high = vqtbl1q_u8(stream, vld1q_u8(table.gather[2 * i + 1].as_ptr()));
                let low = vshlq_u16(vreinterpretq_u16_u8(low), right);
                let high = vshlq_u16(vreinterpretq_u16_u8(high), right);
                *out = vandq_u8(vuzp1q_u8(vreinterpretq_u8_u16(low), vreinterpretq_u8_u16(high)), mask);
            }
            out
        }
    }
}

/// How codes of 3, 5 and 6 bits are gathered, eight at a time, each into 16 bits that it lies in.
struct Windows {
    gather: [[u8; 16]; 8],
    /// Shifts left that bring each code to bit 0: negative.
    right: [i16; 8],
    /// Where the sixteen bytes that hold each sixteen codes are loaded from, always within the block.
    loads: [usize; 4],
}

impl Windows {
    const fn new(bits: usize) -> Self {
        // Past the table's end, a gathered byte is 0.
        let mut t = Self { gather: [[0xff; 16]; 8], right: [0; 8], loads: [0; 4] };
        let mut i = 0;
        while i < 64 {
            let (eight, j) = (i / 8, i % 8);
            let first = i / 16 * 2 * bits;
            let load = if first + 16 > 8 * bits { 8 * bits - 16 } else { first };
            t.loads[i / 16] = load;
            let bit = i * bits - 8 * load;
            t.gather[eight][2 * j] = (bit / 8) as u8;
            if bit % 8 + bits > 8 {
                t.gather[eight][2 * j + 1] = (bit / 8 + 1) as u8;
            }
            t.right[j] = -((bit % 8) as i16);
            i += 1;
        }
        t
    }
}

/// The kernels of NEON.
pub(super) const TABLE: Table = table!(
    super::Isa::Neon,
    "neon",
    Quads,
    &DotNeon::<Widening>::ORDERS,
    fast!("neon", DotNeon<Widening>),
    integer!("neon", DotNeon<Widening>),
    None
);
