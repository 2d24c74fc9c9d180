//! The private traits between the algorithms (`generic`) and the instruction sets: sixteen floats, eight floats, and
//! the integer products of a block.
//!
//! Sixteen lanes whatever the registers are (two of AVX2, one of AVX-512, four of NEON): lane i of every sum takes the
//! elements i, i + 16, i + 32, …, so that all instruction sets give the same bytes. Every operation is the one of IEEE
//! 754, with one rounding; `fma` is fused.

use spinetail_core::{BITS, DType};

use super::activations::Order;

/// Lanes of a [`Vector`].
pub(super) const LANES: usize = 16;

/// Element types by number, for algorithms that take theirs as a constant.
pub(super) const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];

/// Sixteen f32.
///
/// # Safety
/// Of every method: the processor has the instruction set of the type; pointers are valid for what the method says
/// it reads or writes, at any alignment.
pub(super) trait Vector: Copy {
    /// Eight f32 of the same instruction set.
    type Eight: Eight;

    /// Whether registers hold some twenty of them, not some six.
    const MANY: bool = false;

    /// All lanes `x`.
    unsafe fn splat(x: f32) -> Self;
    /// Reads 16 f32.
    unsafe fn load(p: *const f32) -> Self;
    /// Reads 16 f16 (32 bytes).
    unsafe fn load_f16(p: *const u8) -> Self;
    /// Reads 16 bf16 (32 bytes).
    unsafe fn load_bf16(p: *const u8) -> Self;
    /// Writes 16 f32.
    unsafe fn store(self, p: *mut f32);
    /// `self + o`
    unsafe fn add(self, o: Self) -> Self;
    /// `self − o`
    unsafe fn sub(self, o: Self) -> Self;
    /// `self · o`
    unsafe fn mul(self, o: Self) -> Self;
    /// `self / o`
    unsafe fn div(self, o: Self) -> Self;
    /// `self · m + a`
    unsafe fn fma(self, m: Self, a: Self) -> Self;
    /// The larger of each lane; NaN where `o` is NaN.
    unsafe fn max(self, o: Self) -> Self;
    /// The smaller of each lane; NaN where `o` is NaN.
    unsafe fn min(self, o: Self) -> Self;
    /// Each lane rounded to an integer, ties to even.
    unsafe fn round(self) -> Self;
    /// `2^self` of integers from −126 to 127.
    unsafe fn pow2(self) -> Self;
    /// The larger magnitude of each lane, compared as bit patterns: infinity above all numbers, NaN above infinity.
    unsafe fn max_magnitude(self, o: Self) -> Self;
    /// The largest magnitude of all lanes, compared as [`Vector::max_magnitude`] does.
    unsafe fn magnitude(self) -> f32;
    /// The largest lane, if none is NaN.
    unsafe fn max_lane(self) -> f32;
    /// The sum of all lanes: halves added, lane by lane, until one is left.
    unsafe fn sum(self) -> f32;
    /// The [`Vector::sum`] of each.
    unsafe fn four_sums(of: [Self; 4]) -> [f32; 4];
    /// Writes 16 integers from −128 to 127 as i8.
    unsafe fn to_i8(self, p: *mut i8);
    /// Codes 0–15 (`half` 0) or 16–31 (`half` 1) of the 32 that begin at `unit`, as floats. Reads within the unit's
    /// `4 · BITS` bytes.
    unsafe fn codes<const BITS: usize>(unit: *const u8, half: usize) -> Self;

    /// Writes 16 f16, rounded to nearest, ties to even.
    unsafe fn store_f16(self, p: *mut u16);

    /// Reads 16 elements of `dtype`.
    #[inline(always)]
    unsafe fn widen(dtype: DType, p: *const u8) -> Self {
        // SAFETY: as the caller promises.
        unsafe {
            match dtype {
                DType::F32 => Self::load(p.cast()),
                DType::F16 => Self::load_f16(p),
                DType::Bf16 => Self::load_bf16(p),
            }
        }
    }

    /// Reads `count` elements of `dtype`, at most 16; the other lanes are 0.
    #[inline(always)]
    unsafe fn widen_part(dtype: DType, p: *const u8, count: usize) -> Self {
        debug_assert!(count <= LANES);
        // SAFETY: as the caller promises; elements have at most 4 bytes.
        unsafe {
            if count == LANES {
                return Self::widen(dtype, p);
            }
            let mut copy = [0u8; LANES * 4];
            std::ptr::copy_nonoverlapping(p, copy.as_mut_ptr(), count * dtype.bytes());
            Self::widen(dtype, copy.as_ptr())
        }
    }

    /// Reads `count` f32, at most 16; the other lanes are `rest`.
    #[inline(always)]
    unsafe fn load_part(p: *const f32, count: usize, rest: f32) -> Self {
        debug_assert!(count <= LANES);
        // SAFETY: as the caller promises.
        unsafe {
            if count == LANES {
                return Self::load(p);
            }
            let mut copy = [rest; LANES];
            std::ptr::copy_nonoverlapping(p, copy.as_mut_ptr(), count);
            Self::load(copy.as_ptr())
        }
    }

    /// Writes the first `count` lanes, at most 16.
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, count: usize) {
        debug_assert!(count <= LANES);
        // SAFETY: as the caller promises.
        unsafe {
            if count == LANES {
                return self.store(p);
            }
            let copy = self.to_array();
            std::ptr::copy_nonoverlapping(copy.as_ptr(), p, count);
        }
    }

    /// The lanes in memory.
    #[inline(always)]
    unsafe fn to_array(self) -> [f32; LANES] {
        let mut out = [0.0; LANES];
        // SAFETY: the array has 16 elements.
        unsafe { self.store(out.as_mut_ptr()) };
        out
    }
}

/// Eight f32.
///
/// # Safety
/// As [`Vector`].
pub(super) trait Eight: Copy {
    /// All lanes `x`.
    unsafe fn splat(x: f32) -> Self;
    /// Reads 8 f32.
    unsafe fn load(p: *const f32) -> Self;
    /// Reads 8 f16 (16 bytes).
    unsafe fn load_f16(p: *const u8) -> Self;
    /// Reads 8 bf16 (16 bytes).
    unsafe fn load_bf16(p: *const u8) -> Self;
    /// Writes 8 f32.
    unsafe fn store(self, p: *mut f32);
    /// `self · o`
    unsafe fn mul(self, o: Self) -> Self;
    /// `self · m + a`
    unsafe fn fma(self, m: Self, a: Self) -> Self;
    /// The sum of all lanes, as [`Vector::sum`].
    unsafe fn sum(self) -> f32;

    /// Reads 8 elements of `dtype`.
    #[inline(always)]
    unsafe fn widen(dtype: DType, p: *const u8) -> Self {
        // SAFETY: as the caller promises.
        unsafe {
            match dtype {
                DType::F32 => Self::load(p.cast()),
                DType::F16 => Self::load_f16(p),
                DType::Bf16 => Self::load_bf16(p),
            }
        }
    }
}

/// Products of unsigned codes and 8-bit activations, a block of 64 at a time.
///
/// The products of a block are spread over the lanes of [`Dot::Partial`], those of its first 32 weights over the
/// lower half and those of its last 32 over the upper: where groups are 32, each half is a group. Sums of eight
/// groups come out as eight floats, exactly: no sum of a group has more than 24 significant bits.
///
/// # Safety
/// As [`Vector`].
pub(super) trait Dot {
    /// What sums of eight groups come out as.
    type Floats: Eight;
    /// Integer sums on their way.
    type Partial: Copy;

    /// How [`Dot::block`] wants the activations, by width.
    const ORDERS: [Order; BITS.len()];

    /// Lane by lane.
    unsafe fn add(a: Self::Partial, b: Self::Partial) -> Self::Partial;
    /// The products of the block whose `8 · BITS` bytes of codes begin at `codes` with each of `x`, whose activations
    /// (64 bytes, or 128 where the order is wide) are aligned to 64.
    unsafe fn block<const BITS: usize, const N: usize>(
        codes: *const u8,
        x: [*const u8; N],
    ) -> [Self::Partial; N];
    /// First step of a sum: the lanes of two blocks, half as many of each.
    unsafe fn join(a: Self::Partial, b: Self::Partial) -> Self::Partial;
    /// Second step: of two results of [`Dot::join`].
    unsafe fn join_joined(a: Self::Partial, b: Self::Partial) -> Self::Partial;
    /// The sums of eight groups of whole blocks, from two results of [`Dot::join_joined`].
    unsafe fn whole_sums(a: Self::Partial, b: Self::Partial) -> Self::Floats;
    /// The sums of eight groups of half blocks, from two results of [`Dot::join`].
    unsafe fn half_sums(a: Self::Partial, b: Self::Partial) -> Self::Floats;
}

/// Products of a panel, which is sixteen rows of unsigned codes, a row to a lane, with 8-bit activations.
///
/// # Safety
/// As [`Vector`].
pub(super) trait Panel {
    /// What sums come out as, exactly: no sum of a group has more than 24 significant bits.
    type Floats: Vector;

    /// Writes the 64 codes of the block that begins at `codes` as bytes, in order. Reads `8 · BITS` bytes.
    unsafe fn bytes<const BITS: usize>(codes: *const u8, out: *mut u8);
    /// Transposes sixteen rows of sixteen words, whatever they hold.
    unsafe fn transpose(from: *const f32, to: *mut f32);
    /// The products of `32 · halves` columns with each of `x`. At `codes`, aligned to 64, are four codes of each row,
    /// then the next four.
    unsafe fn dots<const BITS: usize, const N: usize>(
        codes: *const u8,
        halves: usize,
        x: [*const u8; N],
    ) -> [Self::Floats; N];
}

/// Asks for the cache line of `p`, which may lie anywhere.
#[inline(always)]
pub(super) fn prefetch(p: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of x86-64, and a prefetch reads nothing that a program could see: any address will do.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(p.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) p, options(nostack, preserves_flags, readonly));
    }
    let _ = p;
}
