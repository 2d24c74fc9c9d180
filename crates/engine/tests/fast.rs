//! `fast` against `exact` on the shipped model: its distance stays within what docs/performance.md publishes.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests stop at the first surprise and say what they found"
)]

use std::path::Path;

use spinetail_engine::{Engine, EngineOptions, Precision, divergence};

/// Part of exact's perplexity by which fast's may differ.
const PERPLEXITY: f64 = 0.005;

/// Nats of `KL(exact ‖ fast)`: the mean, and the most of all predictions.
const KL_MEAN: f64 = 5e-4;
const KL_MAX: f64 = 0.5;

/// Part of the predictions whose likeliest token is the same.
const TOP_1: f64 = 0.99;

#[test]
fn fast_is_within_its_published_distance_from_exact() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = std::fs::read_to_string(root.join("fixtures/held_out.txt")).unwrap();
    let open = |precision| {
        let options = EngineOptions { precision, ..EngineOptions::default() };
        Engine::open(&root.join("models/pip.qpack"), &options, &mut |_, _| {}).unwrap()
    };
    let (fast, exact) = (open(Precision::Fast), open(Precision::Exact));
    let d = divergence(&fast, &exact, &mut text.as_bytes(), usize::MAX, &mut |_| {}).unwrap();
    let (ours, theirs) = (d.model.perplexity(), d.reference.perplexity());
    println!(
        "{} tokens: perplexity {ours:.5} for {theirs:.5}, KL mean {:.2e}, 99.9 % {:.2e}, worst {:.2e}, same likeliest {:.4}",
        d.model.tokens,
        d.kl_nats_mean(),
        d.kl_nats_at(0.999),
        d.kl_nats_at(1.0),
        d.top_1_agreement()
    );
    assert!(d.model.tokens > 2000, "{} tokens are too few to judge by", d.model.tokens);
    assert!((ours / theirs - 1.0).abs() <= PERPLEXITY, "perplexity {ours} for {theirs}");
    assert!(d.kl_nats_mean() <= KL_MEAN, "{} nats in the mean", d.kl_nats_mean());
    assert!(d.kl_nats_at(1.0) <= KL_MAX, "{} nats at worst", d.kl_nats_at(1.0));
    assert!(d.top_1_agreement() >= TOP_1, "{} agree", d.top_1_agreement());
}
