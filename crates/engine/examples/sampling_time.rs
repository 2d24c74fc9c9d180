//! What drawing one token costs with Qwen3.6's vocabulary: `sampling_time` prints microseconds for several settings.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::hint::black_box;
use std::time::Instant;

use spinetail_engine::text::{Sampler, SamplingParams};

const VOCABULARY: usize = 248_077;
const ROUNDS: u32 = 200;

fn main() {
    // Roughly normal logits, as a model's are: sums of a multiplicative hash's bytes.
    let logit = |i: usize| {
        let hash = (i as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        hash.to_le_bytes().iter().map(|&byte| f32::from(byte) / 64.0).sum::<f32>()
    };
    let logits: Vec<f32> = (0..VOCABULARY).map(logit).collect();
    let warm = SamplingParams { temperature: 0.7, seed: Some(0), ..SamplingParams::default() };
    for (name, params) in [
        ("greedy", SamplingParams::default()),
        ("greedy, presence penalty", SamplingParams { presence_penalty: 1.5, ..SamplingParams::default() }),
        ("top-k 20, top-p 0.8", SamplingParams { top_k: 20, top_p: 0.8, ..warm.clone() }),
        ("top-p 0.95", SamplingParams { top_p: 0.95, ..warm.clone() }),
        ("min-p 0.05", SamplingParams { min_p: 0.05, ..warm.clone() }),
        ("everything off", warm),
    ] {
        let mut sampler = Sampler::new(params, VOCABULARY, &[]).unwrap();
        let start = Instant::now();
        for _ in 0..ROUNDS {
            let id = sampler.sample(black_box(&logits)).unwrap();
            sampler.accept(id);
        }
        println!("{name}: {:.0} us a token", start.elapsed().as_secs_f64() * 1e6 / f64::from(ROUNDS));
    }
}
