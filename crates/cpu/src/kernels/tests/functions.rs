//! The vector functions, attention and the DeltaNet step.

use super::random::Random;
use super::{all, assert_same, fast_ones};
use crate::kernels::{Attended, Isa, Kernels, KeyValues, Queries};

const LENGTHS: [usize; 14] = [1, 2, 7, 15, 16, 17, 31, 32, 33, 64, 100, 128, 129, 515];

/// Runs `f` on rows of every length and kind, and compares the bytes of every instruction set.
fn same_bytes(what: &str, f: impl Fn(Kernels, &[f32], &[f32]) -> Vec<f32>) {
    let mut r = Random(10);
    for n in LENGTHS {
        for kind in [Random::units, Random::extremes, |r: &mut Random, n| {
            r.units(n).iter().map(|x| x * 90.0).collect()
        }] {
            // Each row begins in the middle of a vector.
            let (a, b) = (kind(&mut r, n + 3), kind(&mut r, n + 1));
            let (a, b) = (&a[3..], &b[1..]);
            let expected = f(Kernels::for_isa(Isa::Scalar).unwrap(), a, b);
            for k in fast_ones() {
                assert_same(&f(k, a, b), &expected, &format!("{what}, {}, {n} elements", k.isa()));
            }
        }
    }
}

/// Applies `f` to a copy.
fn on(x: &[f32], f: impl FnOnce(&mut [f32])) -> Vec<f32> {
    // The copy begins at an odd element too.
    let mut copy = vec![0.0];
    copy.extend_from_slice(x);
    f(&mut copy[1..]);
    copy.split_off(1)
}

#[test]
fn functions_have_the_bytes_of_their_scalar_meaning() {
    same_bytes("dot", |k, a, b| vec![k.dot(a, b)]);
    same_bytes("rms_norm", |k, a, b| on(a, |y| k.rms_norm(a, b, 1e-6, y)));
    same_bytes("rms_norm_in_place", |k, a, b| on(a, |x| k.rms_norm_in_place(x, b, 1e-6)));
    same_bytes("l2_norm", |k, a, _| on(a, |x| k.l2_norm_in_place(x, 0.25, 1e-6)));
    same_bytes("softmax", |k, a, _| on(a, |x| assert!(k.softmax(x))));
    same_bytes("exp", |k, a, _| on(a, |x| k.exp(x)));
    same_bytes("swiglu", |k, a, b| on(b, |up| k.swiglu(a, up)));
    same_bytes("sigmoid_gate", |k, a, b| on(b, |x| k.sigmoid_gate(a, x)));
    same_bytes("add_scaled", |k, a, b| on(b, |y| k.add_scaled(y, 0.7, a)));
    same_bytes("narrow", |k, a, _| {
        let mut out = vec![0; a.len()];
        k.narrow(a, &mut out);
        out.iter().map(|&bits| f32::from(bits)).collect()
    });
    same_bytes("rotate", |k, a, b| {
        let half = a.len() / 2;
        let (cos, sin) = (&b[..half], &b[b.len() - half..]);
        on(a, |x| k.rotate(x, cos, sin))
    });
}

#[test]
fn numbers_that_are_none_stay_so() {
    for k in all() {
        for n in [1, 5, 16, 40] {
            for bad in [f32::NAN, f32::INFINITY] {
                let mut x = vec![1.0; n];
                x[n / 2] = bad;
                assert!(!k.softmax(&mut x.clone()), "{} {n} {bad}", k.isa());
                assert!(!k.dot(&x, &x).is_finite());
                let mut e = x.clone();
                k.exp(&mut e);
                assert!(!e[n / 2].is_finite());
            }
            assert!(!k.softmax(&mut vec![f32::NEG_INFINITY; n]));
            assert!(k.softmax(&mut vec![-3.0e38; n]));
        }
        let mut x = [f32::NEG_INFINITY, f32::INFINITY, f32::NAN, -0.0, 0.0, 200.0, -200.0];
        k.exp(&mut x);
        assert_same(&x, &[0.0, f32::INFINITY, f32::NAN, 1.0, 1.0, f32::INFINITY, 0.0], k.isa().name());
    }
}

#[test]
fn exp_is_within_1_01_units_in_the_last_place() {
    // Every 997th f32 from −104 to 89, by the detected instruction set: the others have the same bytes.
    let k = Kernels::detect();
    let mut worst = (0.0, 0.0);
    for (from, to) in [(0.0f32, 89.0f32), (-0.0, -104.0)] {
        let bits: Vec<u32> = (from.to_bits()..to.to_bits()).step_by(997).collect();
        for bits in bits.chunks(1 << 16) {
            let x: Vec<f32> = bits.iter().map(|&b| f32::from_bits(b)).collect();
            for (&x, y) in x.iter().zip(on(&x, |x| k.exp(x))) {
                let exact = f64::from(x).exp();
                if exact > f64::from(f32::MAX) {
                    continue;
                }
                let y_bits = exact as f32;
                let unit = f64::from(f32::from_bits(y_bits.to_bits() + 1)) - f64::from(y_bits);
                let error = (f64::from(y) - exact).abs() / unit;
                if error > worst.0 {
                    worst = (error, x);
                }
            }
        }
    }
    println!("exp: {} units in the last place at {}", worst.0, worst.1);
    assert!(worst.0 < 1.01, "{worst:?}");
}

#[test]
fn functions_mean_what_they_say() {
    let mut r = Random(11);
    let (x, w) = (r.units(70), r.units(70));
    let wide = |x: &[f32]| -> Vec<f64> { x.iter().map(|&x| f64::from(x)).collect() };
    let close = |found: &[f32], expected: &[f64], what: &str| {
        for (f, e) in found.iter().zip(expected) {
            assert!((f64::from(*f) - e).abs() <= 1e-6 * e.abs().max(1.0), "{what}: {f} for {e}");
        }
    };
    let (x64, w64) = (wide(&x), wide(&w));
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let pairs =
        |f: &dyn Fn(f64, f64) -> f64| -> Vec<f64> { x64.iter().zip(&w64).map(|(&x, &w)| f(x, w)).collect() };
    let squares: f64 = x64.iter().map(|x| x * x).sum();
    let k = Kernels::detect();
    close(&[k.dot(&x, &w)], &[pairs(&|x, w| x * w).iter().sum()], "dot");
    let rms = (squares / 70.0 + 1e-6).sqrt();
    close(&on(&x, |x| k.rms_norm_in_place(x, &w, 1e-6)), &pairs(&|x, w| x / rms * w), "rms_norm");
    let length = (squares + 1e-6).sqrt();
    close(&on(&x, |x| k.l2_norm_in_place(x, 0.5, 1e-6)), &pairs(&|x, _| x * 0.5 / length), "l2_norm");
    close(&on(&w, |up| k.swiglu(&x, up)), &pairs(&|x, w| x * sigmoid(x) * w), "swiglu");
    close(&on(&w, |w| k.sigmoid_gate(&x, w)), &pairs(&|x, w| sigmoid(x) * w), "sigmoid_gate");
    close(&on(&w, |y| k.add_scaled(y, 3.0, &x)), &pairs(&|x, w| w + 3.0 * x), "add_scaled");
    let total: f64 = x64.iter().map(|x| x.exp()).sum();
    close(&on(&x, |x| assert!(k.softmax(x))), &pairs(&|x, _| x.exp() / total), "softmax");
    let turned = on(&x, |x| k.rotate(x, &w[..10], &w[10..20]));
    for i in 0..10 {
        let (a, b, cos, sin) = (x64[i], x64[i + 10], w64[i], w64[i + 10]);
        close(&[turned[i], turned[i + 10]], &[a * cos - b * sin, b * cos + a * sin], "rotate");
    }
    assert_eq!(turned[20..], x[20..]);
}

#[test]
fn convolution_is_causal() {
    let mut r = Random(12);
    for kernel in [1, 2, 4, 5] {
        for channels in [1, 16, 33, 70] {
            let taps = r.units(kernel * channels);
            let inputs = r.units(9 * channels);
            let run = |k: Kernels| {
                let before = (kernel - 1) * channels;
                let with_past = [vec![0.0; before], inputs.clone()].concat();
                let mut out = vec![0.0; 9 * channels];
                for (t, out) in out.chunks_mut(channels).enumerate() {
                    let (past, rest) = with_past[t * channels..].split_at(before);
                    k.conv_silu(&taps, past, &rest[..channels], out);
                }
                out
            };
            let expected = run(Kernels::for_isa(Isa::Scalar).unwrap());
            for k in fast_ones() {
                assert_same(&run(k), &expected, &format!("{} {kernel} {channels}", k.isa()));
            }
            for t in 0..9 {
                for c in 0..channels {
                    let input =
                        |i: usize| (t + i + 1).checked_sub(kernel).map_or(0.0, |t| inputs[t * channels + c]);
                    let sum: f32 = (0..kernel).map(|i| taps[i * channels + c] * input(i)).sum();
                    let silu = sum / (1.0 + (-sum).exp());
                    assert!((expected[t * channels + c] - silu).abs() < 1e-5);
                }
            }
        }
    }
}

#[test]
fn the_delta_step_is_the_recurrence() {
    let mut r = Random(13);
    for (dv, dk) in [(1, 1), (3, 16), (4, 128), (5, 40), (128, 128), (7, 17)] {
        let (s, q, k, v) = (r.units(dv * dk), r.units(dk), r.units(dk), r.units(dv));
        let run = |kernels: Kernels| {
            let mut y = vec![0.0; dv];
            let mut out = on(&s, |s| kernels.delta_step(s, [&q, &k, &v], 0.9, 0.3, &mut y));
            out.extend(y);
            out
        };
        let expected = run(Kernels::for_isa(Isa::Scalar).unwrap());
        for k in fast_ones() {
            assert_same(&run(k), &expected, &format!("{} {dv} {dk}", k.isa()));
        }
        for (i, s) in s.chunks(dk).enumerate() {
            let found: f64 = s.iter().zip(&k).map(|(s, k)| 0.9 * f64::from(*s) * f64::from(*k)).sum();
            let change = 0.3 * (f64::from(v[i]) - found);
            let next = |j: usize| 0.9 * f64::from(s[j]) + change * f64::from(k[j]);
            let y: f64 = (0..dk).map(|j| next(j) * f64::from(q[j])).sum();
            assert!((f64::from(expected[dv * dk + i]) - y).abs() < 1e-4, "y {i}");
            assert!((0..dk).all(|j| (f64::from(expected[i * dk + j]) - next(j)).abs() < 1e-5), "s {i}");
        }
    }
}

/// Attention over `length` positions of one key head, in segments.
fn attention(k: Kernels, heads: usize, d: usize, q: &[f32], kv: KeyValues<'_>, length: usize) -> Vec<f32> {
    let mut parts = Vec::new();
    for positions in Attended::segments(length) {
        let mut part = Attended::new(heads, d);
        let queries = Queries { q, heads, head_stride: d + 1, row_stride: 0, position: length - 1 };
        k.attend(queries, kv, positions, 0.3, &mut part);
        parts.push(part);
    }
    let mut out = vec![0.0; heads * d];
    k.merge(&parts, 0, &mut out);
    out
}

#[test]
fn attention_is_a_softmax_over_positions() {
    let mut r = Random(14);
    for (heads, d, length) in [(1, 1, 1), (3, 16, 15), (8, 64, 33), (5, 80, 100), (4, 33, 17), (8, 256, 1100)]
    {
        let stride = 2 * d + 1;
        let q = r.units(heads * (d + 1));
        let [keys, values] = [0, 1].map(|_| r.units(length * stride + d));
        let kv = KeyValues::f32(&keys[1..], &values[1..], stride);
        let expected = attention(Kernels::for_isa(Isa::Scalar).unwrap(), heads, d, &q, kv, length);
        let mut halves = [vec![0; keys.len()], vec![0; keys.len()]];
        Kernels::detect().narrow(&keys, &mut halves[0]);
        Kernels::detect().narrow(&values, &mut halves[1]);
        let kv_16 = KeyValues::f16(&halves[0][1..], &halves[1][1..], stride);
        let expected_16 = attention(Kernels::for_isa(Isa::Scalar).unwrap(), heads, d, &q, kv_16, length);
        for k in fast_ones() {
            let what = format!("{} {heads} x {d} over {length}", k.isa());
            assert_same(&attention(k, heads, d, &q, kv, length), &expected, &what);
            assert_same(&attention(k, heads, d, &q, kv_16, length), &expected_16, &format!("{what}, f16"));
        }
        for h in 0..heads {
            let row =
                |x: &[f32], at: usize| -> Vec<f64> { x[at..at + d].iter().map(|&x| x.into()).collect() };
            let q = row(&q, h * (d + 1));
            let weight = |j: usize| {
                let score: f64 = q.iter().zip(row(&keys, 1 + j * stride)).map(|(q, k)| q * k).sum();
                (score * 0.3).exp()
            };
            let weights: Vec<f64> = (0..length).map(weight).collect();
            let total: f64 = weights.iter().sum();
            for i in 0..d {
                let y: f64 = (0..length).map(|j| weights[j] * f64::from(values[1 + j * stride + i])).sum();
                let (y, found) = (y / total, [expected[h * d + i], expected_16[h * d + i]].map(f64::from));
                assert!((found[0] - y).abs() < 1e-5, "head {h} element {i}: {} for {y}", found[0]);
                assert!((found[1] - y).abs() < 2e-3, "f16, head {h} element {i}: {} for {y}", found[1]);
            }
        }
    }
}

#[test]
fn rows_see_what_they_see_alone() {
    let mut r = Random(15);
    for (rows, heads, d, position) in [(3, 1, 16, 0), (16, 8, 64, 500), (5, 3, 80, 1020), (17, 2, 33, 30)] {
        let (length, stride) = (position + rows, d + 3);
        let (head_stride, row_stride) = (d + 1, heads * (d + 1) + 2);
        let q = r.units(rows * row_stride);
        let [keys, values] = [0, 1].map(|_| r.units(length * stride));
        let kv = KeyValues::f32(&keys, &values, stride);
        for k in all() {
            let parts: Vec<Attended> = Attended::segments(length)
                .map(|positions| {
                    let mut part = Attended::new(rows * heads, d);
                    let queries = Queries { q: &q, heads, head_stride, row_stride, position };
                    k.attend(queries, kv, positions, 0.3, &mut part);
                    part
                })
                .collect();
            for row in 0..rows {
                let seen = position + row + 1;
                let mut out = vec![0.0; heads * d];
                k.merge(&parts[..seen.div_ceil(Attended::SEGMENT)], row * heads, &mut out);
                let alone = attention(k, heads, d, &q[row * row_stride..], kv, seen);
                assert_same(&out, &alone, &format!("{} row {row} of {rows} at {position}", k.isa()));
            }
        }
    }
}

#[test]
fn attention_survives_large_scores() {
    for k in all() {
        let keys: Vec<f32> = (0..40).map(|j| if j == 20 { 3e4 } else { -3e4 }).collect();
        let values: Vec<f32> = (0..40).map(|j| j as f32).collect();
        let out = attention(k, 1, 1, &[1e3, 0.0], KeyValues::f32(&keys, &values, 1), 40);
        assert_eq!(out, [20.0], "{}", k.isa());
    }
}

#[test]
#[should_panic(expected = "keys and values end before position 3")]
fn keys_that_are_missing_are_refused() {
    let x = [0.0; 8];
    let k = Kernels::detect();
    let queries = Queries { q: &x, heads: 1, head_stride: 4, row_stride: 4, position: 2 };
    k.attend(queries, KeyValues::f32(&x, &x, 4), 0..3, 1.0, &mut Attended::new(1, 4));
}
