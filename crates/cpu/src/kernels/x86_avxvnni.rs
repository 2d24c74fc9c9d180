//! AVX-VNNI: AVX2 with products and sums of four bytes, or two words, in one instruction.
#![allow(
    unsafe_op_in_unsafe_fn,
    reason = "functions of intrinsics: what makes one of them sound makes all of them so, and the traits say it"
)]

use std::arch::x86_64::*;

use super::activations::Order;
use super::table::{Table, fast, panel_integer, panels};
use super::vector::{Dot, Panel};
use super::x86_avx2::{self, Dot256, F32x16, ORDER_2, ORDER_4, load_pair, planes, windows};
use super::x86_panels::{Panel256, floats, four, step_codes};

/// Integer products by `vpdpbusd` for 2, 4 and 8 bits, by 16-bit windows and `vpdpwssd` for the rest.
struct DotVnni;

impl Dot for DotVnni {
    type Floats = __m256;
    type Partial = __m256i;

    const ORDERS: [Order; 6] = [
        ORDER_2,
        Order::wide(3),
        ORDER_4,
        Order::wide(5),
        Order::wide(6),
        Order::narrow(&[0, 32, 16, 48], 1),
    ];

    #[inline(always)]
    unsafe fn block<const BITS: usize, const N: usize>(codes: *const u8, x: [*const u8; N]) -> [__m256i; N] {
        let mut out = [_mm256_setzero_si256(); N];
        if BITS == 2 || BITS == 4 || BITS == 8 {
            let [a, b] = if BITS == 8 {
                [load_pair(codes, [0, 32]), load_pair(codes, [16, 48])]
            } else {
                planes::<BITS>(codes)
            };
            for n in 0..N {
                let sum = _mm256_dpbusd_avx_epi32(out[n], a, _mm256_load_si256(x[n].cast()));
                out[n] = _mm256_dpbusd_avx_epi32(sum, b, _mm256_load_si256(x[n].add(32).cast()));
            }
        } else {
            let w = windows::<BITS>(codes);
            for n in 0..N {
                for (i, &w) in w.iter().enumerate() {
                    out[n] = _mm256_dpwssd_avx_epi32(out[n], w, _mm256_load_si256(x[n].add(32 * i).cast()));
                }
            }
        }
        out
    }
    #[inline(always)]
    unsafe fn add(a: __m256i, b: __m256i) -> __m256i {
        Dot256::add(a, b)
    }
    #[inline(always)]
    unsafe fn join(a: __m256i, b: __m256i) -> __m256i {
        Dot256::join(a, b)
    }
    #[inline(always)]
    unsafe fn join_joined(a: __m256i, b: __m256i) -> __m256i {
        Dot256::join_joined(a, b)
    }
    #[inline(always)]
    unsafe fn whole_sums(a: __m256i, b: __m256i) -> __m256 {
        Dot256::whole_sums(a, b)
    }
    #[inline(always)]
    unsafe fn half_sums(a: __m256i, b: __m256i) -> __m256 {
        Dot256::half_sums(a, b)
    }
}

impl Panel for DotVnni {
    type Floats = F32x16;

    #[inline(always)]
    unsafe fn bytes<const BITS: usize>(codes: *const u8, out: *mut u8) {
        Panel256::bytes::<BITS>(codes, out);
    }
    #[inline(always)]
    unsafe fn transpose(from: *const f32, to: *mut f32) {
        Panel256::transpose(from, to);
    }
    #[inline(always)]
    unsafe fn dots<const BITS: usize, const N: usize>(
        codes: *const u8,
        halves: usize,
        x: [*const u8; N],
    ) -> [F32x16; N] {
        let mut sums = [[_mm256_setzero_si256(); N]; 2];
        for step in 0..8 * halves {
            let w = [step_codes(codes, step, 0), step_codes(codes, step, 1)];
            for n in 0..N {
                let x = four(x[n], step);
                for v in 0..2 {
                    sums[v][n] = _mm256_dpbusd_avx_epi32(sums[v][n], w[v], x);
                }
            }
        }
        floats(sums)
    }
}

/// The kernels of AVX-VNNI.
pub(super) const TABLE: Table = Table {
    isa: super::Isa::AvxVnni,
    orders: &DotVnni::ORDERS,
    fast: fast!("avxvnni,avx2,fma,f16c", DotVnni),
    panels: panels!("avxvnni,avx2,fma,f16c", DotVnni, 4, 2, {all: 8}, [all; 6]),
    integer: panel_integer!("avxvnni,avx2,fma,f16c", DotVnni, 4),
    ..x86_avx2::TABLE
};
