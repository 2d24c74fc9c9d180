//! How much a router has to favour each expert so that popularity follows a power law.

use super::weights::Random;

/// Tokens simulated to find out how often an expert is chosen.
const TOKENS: usize = 1500;
const ROUNDS: usize = 60;
/// Share of choices that all experts have alike, besides those that follow the power law: training balances experts, so
/// that even the least popular is chosen now and then. With a power law alone no exponent gives both the hits that a small
/// cache has in real models and those of a large one (docs/performance.md).
const EVEN_SHARE: f64 = 0.4;

/// One bias per expert, to be added to router logits of unit variance, so that the n-th most popular of `experts` is
/// among the `top_k` in proportion to `n^-skew`, but for the even share. Which expert is the n-th is random.
///
/// Found by simulation: a bias is raised while its expert is chosen too rarely. A share above 1 cannot be had; what
/// the first experts cannot take goes to the others.
pub(super) fn biases(random: &mut Random, experts: usize, top_k: usize, skew: f64) -> Vec<f32> {
    let mut biases = vec![0f64; experts];
    if skew > 0.0 && top_k < experts {
        let target = target_shares(experts, top_k, skew);
        let noise: Vec<f32> = (0..TOKENS * experts).map(|_| random.normal()).collect();
        for round in 0..ROUNDS {
            let shares = shares(&noise, &biases, top_k);
            let step = if round < ROUNDS / 2 { 0.5 } else { 0.2 };
            for ((b, share), target) in biases.iter_mut().zip(&shares).zip(&target) {
                // Half a choice is added so that an expert that was never chosen has a logarithm.
                let floor = 0.5 / TOKENS as f64;
                *b += step * ((target + floor) / (share + floor)).ln();
            }
        }
    }
    let mean = biases.iter().sum::<f64>() / experts as f64;
    let mut order: Vec<usize> = (0..experts).collect();
    random.shuffle(&mut order);
    let mut out = vec![0f32; experts];
    for (bias, at) in biases.iter().zip(order) {
        out[at] = (bias - mean) as f32;
    }
    out
}

/// `min(1, c · (n^-skew + even))` with c such that the shares sum to `top_k`.
fn target_shares(experts: usize, top_k: usize, skew: f64) -> Vec<f64> {
    let weights: Vec<f64> = (1..=experts).map(|n| (n as f64).powf(-skew)).collect();
    let even = EVEN_SHARE / (1.0 - EVEN_SHARE) * weights.iter().sum::<f64>() / experts as f64;
    let weights: Vec<f64> = weights.iter().map(|w| w + even).collect();
    let sum = |c: f64| weights.iter().map(|w| (w * c).min(0.98)).sum::<f64>();
    let (mut low, mut high) = (0.0, 1e6);
    for _ in 0..200 {
        let middle = (low + high) / 2.0;
        if sum(middle) < top_k as f64 { low = middle } else { high = middle }
    }
    weights.iter().map(|w| (w * low).min(0.98)).collect()
}

/// How often each expert is among the `top_k`, per token.
fn shares(noise: &[f32], biases: &[f64], top_k: usize) -> Vec<f64> {
    let experts = biases.len();
    let mut counts = vec![0usize; experts];
    let mut logits: Vec<(f64, usize)> = Vec::with_capacity(experts);
    for token in noise.chunks_exact(experts) {
        logits.clear();
        logits.extend(token.iter().zip(biases).enumerate().map(|(e, (n, b))| (f64::from(*n) + b, e)));
        logits.select_nth_unstable_by(top_k - 1, |a, b| b.0.total_cmp(&a.0));
        logits[..top_k].iter().for_each(|&(_, e)| counts[e] += 1);
    }
    counts.iter().map(|&c| c as f64 * experts as f64 / noise.len() as f64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn popularity_follows_the_power_law() {
        let mut random = Random::new(5);
        let mut found = biases(&mut random, 256, 8, 0.9);
        found.sort_by(|a, b| b.total_cmp(a));
        let noise: Vec<f32> = (0..2000 * 256).map(|_| random.normal()).collect();
        let biases: Vec<f64> = found.iter().map(|&b| f64::from(b)).collect();
        let shares = shares(&noise, &biases, 8);
        let target = target_shares(256, 8, 0.9);
        let head = |s: &[f64], n: usize| s[..n].iter().sum::<f64>() / 8.0;
        for n in [14, 85] {
            assert!(
                (head(&shares, n) - head(&target, n)).abs() < 0.03,
                "{n}: {} {}",
                head(&shares, n),
                head(&target, n)
            );
        }
    }
}
