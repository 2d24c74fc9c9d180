//! One step of a Gated DeltaNet head.

use crate::kernels::vector::{LANES, Vector};

/// Rows of the state taken together: enough independent sums to hide the latency of one.
const ROWS: usize = 4;

/// The operands of a step; see `Kernels::delta_step`.
pub(in crate::kernels) struct DeltaStep<'a> {
    pub(in crate::kernels) k: &'a [f32],
    pub(in crate::kernels) q: &'a [f32],
    pub(in crate::kernels) v: &'a [f32],
    pub(in crate::kernels) decay: f32,
    pub(in crate::kernels) beta: f32,
}

/// Moves the state `s [dv, dk]` on and writes `y [dv]`.
///
/// # Safety
/// The processor has the instruction set of `V`; `k` and `q` have dk elements, `v` and `y` dv, `s` dv · dk.
#[inline(always)]
pub(in crate::kernels) unsafe fn delta_step<V: Vector>(s: &mut [f32], o: &DeltaStep<'_>, y: &mut [f32]) {
    let (rows, dk) = (y.len(), o.k.len());
    let mut row = 0;
    // SAFETY: as the caller promises; rows stay below dv.
    unsafe {
        while row + ROWS <= rows {
            step_rows::<V, ROWS>(s.as_mut_ptr().add(row * dk), o, row, y);
            row += ROWS;
        }
        while row < rows {
            step_rows::<V, 1>(s.as_mut_ptr().add(row * dk), o, row, y);
            row += 1;
        }
    }
}

/// Rows `row..row + R`, which begin at `s`. They are read from memory once: the second pass finds them in the cache.
///
/// # Safety
/// As [`delta_step`].
#[inline(always)]
unsafe fn step_rows<V: Vector, const R: usize>(s: *mut f32, o: &DeltaStep<'_>, row: usize, y: &mut [f32]) {
    let dk = o.k.len();
    // SAFETY: as the caller promises.
    unsafe {
        let decay = V::splat(o.decay);
        let mut found = [V::splat(0.0); R];
        for at in (0..dk).step_by(LANES) {
            let n = LANES.min(dk - at);
            let k = V::load_part(o.k.as_ptr().add(at), n, 0.0);
            for r in 0..R {
                let s = V::load_part(s.add(r * dk + at), n, 0.0).mul(decay);
                found[r] = s.fma(k, found[r]);
            }
        }
        let mut change = [V::splat(0.0); R];
        for r in 0..R {
            change[r] = V::splat(o.beta * (o.v[row + r] - found[r].sum()));
        }
        let mut read = [V::splat(0.0); R];
        for at in (0..dk).step_by(LANES) {
            let n = LANES.min(dk - at);
            let k = V::load_part(o.k.as_ptr().add(at), n, 0.0);
            let q = V::load_part(o.q.as_ptr().add(at), n, 0.0);
            for r in 0..R {
                let p = s.add(r * dk + at);
                let s = change[r].fma(k, V::load_part(p, n, 0.0).mul(decay));
                s.store_part(p, n);
                read[r] = s.fma(q, read[r]);
            }
        }
        for r in 0..R {
            y[row + r] = read[r].sum();
        }
    }
}
