//! Small vector functions. Every sum has one fixed order that depends on the length alone.

/// Partial sums kept side by side: enough independent chains for any vector width.
const LANES: usize = 16;

/// `Σ aᵢ·bᵢ`
#[inline]
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    debug_assert_eq!(a.len(), b.len());
    let mut lanes = [0f32; LANES];
    let (a_chunks, b_chunks) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let tail: f32 = a_chunks.remainder().iter().zip(b_chunks.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a_chunks.zip(b_chunks) {
        for i in 0..LANES {
            lanes[i] += a[i] * b[i];
        }
    }
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0] + tail
}

/// `y += s·x`
#[inline]
pub(crate) fn add_scaled(y: &mut [f32], s: f32, x: &[f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += s * x;
    }
}

/// `y += x`
#[inline]
pub(crate) fn add(y: &mut [f32], x: &[f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += x;
    }
}

/// `1 / (1 + e⁻ˣ)`
#[inline]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// `x · sigmoid(x)`
#[inline]
pub(crate) fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

/// `ln(1 + eˣ)`, linear from where the exponential swallows the 1 in f32.
#[inline]
pub(crate) fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

/// `y = x / sqrt(mean(x²) + eps) · w`
pub(crate) fn rms_norm(x: &[f32], w: &[f32], eps: f32, y: &mut [f32]) {
    let scale = 1.0 / (dot(x, x) / x.len() as f32 + eps).sqrt();
    for ((y, x), w) in y.iter_mut().zip(x).zip(w) {
        *y = x * scale * w;
    }
}

/// `x = x / sqrt(mean(x²) + eps) · w`
pub(crate) fn rms_norm_in_place(x: &mut [f32], w: &[f32], eps: f32) {
    let scale = 1.0 / (dot(x, x) / x.len() as f32 + eps).sqrt();
    for (x, w) in x.iter_mut().zip(w) {
        *x = *x * scale * w;
    }
}

/// `x = x · s / sqrt(Σx² + 1e-6)`
pub(crate) fn l2_norm_in_place(x: &mut [f32], s: f32) {
    let scale = s / (dot(x, x) + 1e-6).sqrt();
    x.iter_mut().for_each(|x| *x *= scale);
}

/// `x = softmax(x)`. Returns whether the result is made of numbers.
pub(crate) fn softmax(x: &mut [f32]) -> bool {
    let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for x in x.iter_mut() {
        *x = (*x - max).exp();
        sum += *x;
    }
    x.iter_mut().for_each(|x| *x /= sum);
    sum.is_finite() && max.is_finite()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dot_is_the_sum_of_products_at_every_length() {
        for n in 0..100 {
            let a: Vec<f32> = (0..n).map(|i| (i as f32 * 0.7).sin()).collect();
            let b: Vec<f32> = (0..n).map(|i| (i as f32 * 1.3).cos()).collect();
            let exact: f64 = a.iter().zip(&b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
            assert!((f64::from(dot(&a, &b)) - exact).abs() < 1e-5, "length {n}");
        }
    }

    #[test]
    fn softmax_says_when_it_means_nothing() {
        let mut x = [1.0, 2.0, 3.0];
        assert!(softmax(&mut x));
        assert!((x.iter().sum::<f32>() - 1.0).abs() < 1e-6);
        assert!(!softmax(&mut [1.0, f32::NAN]));
        assert!(!softmax(&mut [1.0, f32::INFINITY]));
        assert!(!softmax(&mut [f32::NEG_INFINITY; 2]));
    }

    #[test]
    fn softplus_is_continuous_and_sigmoid_saturates() {
        assert!((softplus(20.0) - softplus(20.000_002)).abs() < 1e-4);
        assert_eq!(sigmoid(f32::INFINITY), 1.0);
        assert_eq!(sigmoid(-200.0), 0.0);
        assert_eq!(silu(-200.0), 0.0);
    }
}
