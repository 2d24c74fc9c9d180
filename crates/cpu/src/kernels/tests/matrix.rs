//! Products of stored weights.

use spinetail_core::{Affine, DType, Format, dequantize_row};

use super::random::{Random, Stored, affines};
use super::{all, assert_same, fast_ones};
use crate::kernels::{Activations, Isa, Kernels, SharedOut};

fn exact(k: Kernels, w: &Stored, x: &[f32]) -> Vec<f32> {
    let w = w.weights();
    let mut out = vec![f32::NAN; x.len() / w.columns() * w.rows()];
    k.exact(&w, 0..w.rows(), x, &SharedOut::new(&mut out, w.rows()));
    out
}

fn fast(k: Kernels, w: &Stored, x: &[f32]) -> Vec<f32> {
    let w = w.weights();
    let mut out = vec![f32::NAN; x.len() / w.columns() * w.rows()];
    let mut acts = Activations::new();
    acts.set(x, w.columns());
    if let Format::Affine(a) = w.format() {
        acts.prepare(&k, a);
    }
    k.fast(&w, 0..w.rows(), &acts, &SharedOut::new(&mut out, w.rows()));
    out
}

fn scalar() -> Kernels {
    Kernels::for_isa(Isa::Scalar).unwrap()
}

/// Column counts with whole and partial blocks, chunks and vectors; rows and inputs with whole and partial panels.
fn shapes(a: Affine, r: &mut Random) -> Vec<(usize, usize, usize)> {
    let groups = [1, 2, 3, 7, 8, 9, 16 + r.below(8)];
    groups.into_iter().map(|g| (1 + r.below(20), g * a.group_size, 1 + r.below(21))).collect()
}

#[test]
fn affine_products_have_the_bytes_of_the_scalar_meaning() {
    let mut r = Random(1);
    for a in affines() {
        for (rows, columns, n) in shapes(a, &mut r) {
            let w = Stored::new(rows, columns, Format::Affine(a), &mut r, Random::unit);
            let x = r.units(n * columns);
            let (e, f) = (exact(scalar(), &w, &x), fast(scalar(), &w, &x));
            for k in fast_ones() {
                let what = format!("{} {a:?} [{rows}, {columns}] x {n}", k.isa());
                assert_same(&exact(k, &w, &x), &e, &format!("exact {what}"));
                assert_same(&fast(k, &w, &x), &f, &format!("fast {what}"));
            }
        }
    }
}

#[test]
fn plain_products_have_the_bytes_of_the_scalar_meaning() {
    let mut r = Random(2);
    for dtype in [DType::F32, DType::F16, DType::Bf16] {
        for columns in [1, 3, 15, 16, 17, 31, 32, 33, 100, 127, 256, 511] {
            let (rows, n) = (1 + r.below(6), 1 + r.below(7));
            let w = Stored::new(rows, columns, Format::Plain(dtype), &mut r, Random::extreme);
            let x = r.extremes(n * columns);
            let e = exact(scalar(), &w, &x);
            for k in fast_ones() {
                let what = format!("{} {dtype} [{rows}, {columns}] x {n}", k.isa());
                assert_same(&exact(k, &w, &x), &e, &what);
                assert_same(&fast(k, &w, &x), &e, &what);
            }
        }
    }
}

#[test]
fn extremes_have_the_bytes_of_the_scalar_meaning() {
    let mut r = Random(3);
    for a in affines() {
        let (columns, n) = (9 * a.group_size, 5);
        let w = Stored::new(3, columns, Format::Affine(a), &mut r, Random::extreme);
        let mut x = r.extremes(n * columns);
        // Rows of zeros, of denormals, of one huge element, of one infinity, and an ordinary one with a NaN.
        x[..columns].fill(0.0);
        x[columns..2 * columns].iter_mut().for_each(|x| *x *= 1e-40);
        x[2 * columns + 5] = f32::MAX;
        x[3 * columns + 40] = f32::NEG_INFINITY;
        x[4 * columns + 3] = f32::NAN;
        let (e, f) = (exact(scalar(), &w, &x), fast(scalar(), &w, &x));
        assert!(f[9..].iter().all(|f| !f.is_finite()), "{f:?}");
        for k in fast_ones() {
            assert_same(&exact(k, &w, &x), &e, &format!("exact {} {a:?}", k.isa()));
            assert_same(&fast(k, &w, &x), &f, &format!("fast {} {a:?}", k.isa()));
        }
    }
}

#[test]
fn the_largest_codes_and_activations_do_not_overflow() {
    for a in affines() {
        let mut r = Random(4);
        let mut w = Stored::new(2, 8 * a.group_size, Format::Affine(a), &mut r, |_| 1.0);
        w.fill_codes(0xff);
        for sign in [1.0, -1.0] {
            // One row, and as many as make a panel's products.
            for n in [1, 9] {
                let x = vec![sign; n * 8 * a.group_size];
                let expected = f32::from(1u16 << a.bits) * sign * (8 * a.group_size) as f32;
                for k in all() {
                    let found = fast(k, &w, &x);
                    assert!(
                        found.iter().all(|f| (f / expected - 1.0).abs() < 1e-5),
                        "{} {a:?}: {found:?}",
                        k.isa()
                    );
                }
            }
        }
    }
}

#[test]
fn bytes_do_not_depend_on_batch_or_split() {
    let mut r = Random(5);
    let formats = [2, 3, 4, 5, 6, 8].map(|bits| Affine { bits, group_size: 32, scales: DType::Bf16 });
    let formats = formats.map(Format::Affine).into_iter().chain([Format::Plain(DType::Bf16)]);
    for format in formats {
        let (rows, columns, n) = (37, 32 * 13, 27);
        let stored = Stored::new(rows, columns, format, &mut r, Random::unit);
        let (w, x) = (stored.weights(), r.units(n * columns));
        for k in all() {
            let whole = [exact(k, &stored, &x), fast(k, &stored, &x)];
            let mut split = [vec![0.0; n * rows], vec![0.0; n * rows]];
            let mut start = 0;
            while start < n {
                let end = n.min(start + 1 + r.below(12));
                let xs = &x[start * columns..end * columns];
                let mut acts = Activations::new();
                acts.set(xs, columns);
                if let Format::Affine(a) = format {
                    acts.prepare(&k, a);
                }
                let [e, f] = &mut split;
                let e = SharedOut::new(&mut e[start * rows..end * rows], rows);
                let f = SharedOut::new(&mut f[start * rows..end * rows], rows);
                let mut row = 0;
                while row < rows {
                    let to = rows.min(row + 1 + r.below(9));
                    k.exact(&w, row..to, xs, &e);
                    k.fast(&w, row..to, &acts, &f);
                    row = to;
                }
                start = end;
            }
            assert_same(&split[0], &whole[0], &format!("exact {} {format}", k.isa()));
            assert_same(&split[1], &whole[1], &format!("fast {} {format}", k.isa()));
        }
    }
}

#[test]
fn the_meaning_is_that_of_the_format() {
    let mut r = Random(6);
    for a in affines() {
        let (rows, columns) = (4, 5 * a.group_size);
        let w = Stored::new(rows, columns, Format::Affine(a), &mut r, Random::unit);
        let x = r.units(columns);
        let (e, f) = (exact(scalar(), &w, &x), fast(scalar(), &w, &x));
        let [weight, scales, biases] = w.parts();
        for row in 0..rows {
            let mut wide = vec![0.0; columns];
            dequantize_row(&w.spec, weight, scales, biases, row, &mut wide);
            let pairs = || wide.iter().zip(&x).map(|(&w, &x)| f64::from(w) * f64::from(x));
            let (sum, size): (f64, f64) = (pairs().sum(), pairs().map(f64::abs).sum());
            assert!((f64::from(e[row]) - sum).abs() <= 1e-6 * size, "exact {a:?}: {} for {sum}", e[row]);
            // Half a step of 1/127 of the largest activation, which is at most 1, on every weight.
            let bound: f64 = wide.iter().map(|w| f64::from(w.abs())).sum::<f64>() * (0.5 / 127.0 + 1e-5);
            assert!((f64::from(f[row]) - sum).abs() <= bound, "fast {a:?}: {} for {sum}", f[row]);
        }
    }
}

#[test]
fn activations_are_made_again_for_new_rows_and_other_kernels() {
    let mut r = Random(7);
    let a = Affine { bits: 4, group_size: 64, scales: DType::Bf16 };
    let w = Stored::new(3, 128, Format::Affine(a), &mut r, Random::unit);
    let mut acts = Activations::new();
    for k in all() {
        for n in [3, 1, 2] {
            let x = r.units(n * 128);
            acts.set(&x, 128);
            acts.prepare(&k, Affine { bits: 8, ..a });
            acts.prepare(&k, a);
            acts.prepare(&k, a);
            let mut out = vec![0.0; n * 3];
            k.fast(&w.weights(), 0..3, &acts, &SharedOut::new(&mut out, 3));
            assert_same(&out, &fast(scalar(), &w, &x), &format!("{} x {n}", k.isa()));
        }
    }
}

#[test]
#[should_panic(expected = "were not prepared for 4-bit g64")]
fn activations_that_were_not_prepared_are_refused() {
    let a = Affine { bits: 4, group_size: 64, scales: DType::Bf16 };
    let w = Stored::new(1, 64, Format::Affine(a), &mut Random(8), Random::unit);
    let mut acts = Activations::new();
    acts.set(&[0.0; 64], 64);
    scalar().fast(&w.weights(), 0..1, &acts, &SharedOut::new(&mut [0.0], 1));
}
