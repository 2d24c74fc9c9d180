//! The sampler against a slow one, and the corners that went wrong elsewhere.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn sampler(params: SamplingParams, size: usize) -> Sampler {
    Sampler::new(params, size, &[]).unwrap()
}

/// The definition: sort everything, cut three times.
fn slow(logits: &[f32], params: &SamplingParams) -> Vec<(u32, f64)> {
    let mut all: Vec<(u32, f64)> =
        logits.iter().enumerate().map(|(id, &l)| (id as u32, f64::from(l))).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let best = all[0].1;
    if params.top_k > 0 {
        all.truncate(usize::try_from(params.top_k).unwrap());
    }
    for entry in &mut all {
        entry.1 = ((entry.1 - best) / params.temperature).exp();
    }
    let total: f64 = all.iter().map(|entry| entry.1).sum();
    let mut mass = 0.0;
    let mut kept = Vec::new();
    for entry in all {
        if kept.is_empty() || mass < params.top_p * total * (1.0 - 1e-12) || params.top_p == 1.0 {
            mass += entry.1;
            kept.push(entry);
        }
    }
    kept.retain(|entry| entry.1 >= NEGLIGIBLE.exp() && entry.1 >= params.min_p);
    kept
}

fn any_params() -> impl Strategy<Value = SamplingParams> {
    let top_k = prop_oneof![Just(0_i64), Just(-1), Just(10_000_000), 1_i64..50];
    let top_p = prop_oneof![Just(1.0), Just(0.0), 0.01_f64..1.0];
    let min_p = prop_oneof![Just(0.0), Just(1.0), 0.0_f64..1.0];
    (0.1_f64..5.0, top_k, top_p, min_p).prop_map(|(temperature, top_k, top_p, min_p)| SamplingParams {
        temperature,
        top_k,
        top_p,
        min_p,
        ..SamplingParams::default()
    })
}

proptest! {
    /// The same tokens may be drawn, with the same weights, as by the definition. Logits on a grid give many equals.
    #[test]
    fn narrows_as_the_definition(
        grid in prop::collection::vec(-20_i8..20, 1..700), flat in any::<bool>(), params in any_params()
    ) {
        let scale = if flat { 0.01 } else { 0.5 };
        let logits: Vec<f32> = grid.iter().map(|&l| f32::from(l) * scale).collect();
        let mut sampler = sampler(params.clone(), logits.len());
        let likeliest = argmax(&logits).unwrap();
        sampler.narrow(&logits, likeliest);
        let mut ours: Vec<(u32, f64)> = sampler.candidates.iter().map(|c| (c.id, c.weight)).collect();
        let mut theirs = slow(&logits, &params);
        ours.sort_by_key(|entry| entry.0);
        theirs.sort_by_key(|entry| entry.0);
        // Sums in another order may differ in the last digit and move top-p's cut by one token of its weight.
        let differ = ours.len().abs_diff(theirs.len());
        prop_assert!(differ <= 1, "{} and {} tokens", ours.len(), theirs.len());
        if differ == 0 {
            prop_assert_eq!(&ours, &theirs);
        }
        let id = sampler.sample(&logits).unwrap();
        prop_assert!(ours.iter().any(|entry| entry.0 == id));
    }

    /// Whatever the logits and parameters, there is a token and no panic; what is ruled out is never drawn.
    #[test]
    fn always_an_allowed_token(
        logits in prop::collection::vec(prop_oneof![Just(f32::NEG_INFINITY), any::<i32>().prop_map(|l| l as f32 * 1e29), -5_f32..5.0], 1..300),
        params in any_params(), allowed in any::<prop::sample::Index>(), penalty in prop_oneof![Just(1.0), 0.01_f64..100.0]
    ) {
        let mut logits = logits;
        let allowed = allowed.index(logits.len());
        logits[allowed] = 1.0;
        let params = SamplingParams { repetition_penalty: penalty, ..params };
        let id = Sampler::new(params, logits.len(), &[0]).unwrap().sample(&logits).unwrap();
        prop_assert!(logits[id as usize] > f32::NEG_INFINITY);
    }
}

#[test]
fn draws_follow_the_probabilities() {
    let logits = [0.0, 1.0, 2.0, f32::NEG_INFINITY];
    let mut sampler =
        sampler(SamplingParams { temperature: 1.0, seed: Some(5), ..SamplingParams::default() }, 4);
    let mut counts = [0_u32; 4];
    for _ in 0..20_000 {
        counts[sampler.sample(&logits).unwrap() as usize] += 1;
    }
    for (count, expected) in counts.into_iter().zip([0.090, 0.245, 0.665, 0.0]) {
        assert!((f64::from(count) / 20_000.0 - expected).abs() < 0.01, "{counts:?}");
    }
}

/// Case A12: these are all greedy.
#[test]
fn greedy_in_many_words() {
    let logits: Vec<f32> = (0..5000).map(|i| if i == 4321 { 9.0 } else { (i % 7) as f32 }).collect();
    let hot = SamplingParams { temperature: 2.0, ..SamplingParams::default() };
    for params in [
        SamplingParams::default(),
        SamplingParams { temperature: 1e-6, ..SamplingParams::default() },
        SamplingParams { temperature: 1e-40, ..SamplingParams::default() },
        SamplingParams { temperature: f64::MIN_POSITIVE, ..SamplingParams::default() },
        SamplingParams { top_k: 1, ..hot.clone() },
        SamplingParams { top_p: 0.0, ..hot.clone() },
        SamplingParams { min_p: 1.0, ..hot.clone() },
    ] {
        for seed in 0..20 {
            let params = SamplingParams { seed: Some(seed), ..params.clone() };
            assert_eq!(sampler(params, logits.len()).sample(&logits), Ok(4321));
        }
    }
    assert_eq!(sampler(SamplingParams::default(), 4).sample(&[1.0, 3.0, 3.0, 3.0]), Ok(1));
}

#[test]
fn the_same_seed_draws_the_same_tokens() {
    let logits: Vec<f32> = (0..1000).map(|i| (i * 37 % 101) as f32 / 25.0).collect();
    let draw = |seed| {
        let params =
            SamplingParams { temperature: 1.0, top_k: 50, seed: Some(seed), ..SamplingParams::default() };
        let mut sampler = sampler(params, logits.len());
        (0..50).map(|_| sampler.sample(&logits).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(draw(7), draw(7));
    assert_eq!(draw(-1), draw(-1));
    assert_ne!(draw(7), draw(8));
    let picked = sampler(SamplingParams::default(), 2);
    assert_ne!(picked.seed(), sampler(SamplingParams::default(), 2).seed());
}

/// Case A13: presence and frequency look at the answer, repetition at prompt and answer.
#[test]
fn whose_tokens_are_penalized() {
    let logits = [1.0, 0.9, 0.5];
    let new = |params: SamplingParams| Sampler::new(params, 3, &[0]).unwrap();
    let mut presence = new(SamplingParams { presence_penalty: 2.0, ..SamplingParams::default() });
    assert_eq!(presence.sample(&logits), Ok(0));
    presence.accept(0);
    assert_eq!(presence.sample(&logits), Ok(1));
    presence.accept(1);
    assert_eq!(presence.sample(&logits), Ok(2));
    presence.accept(2);
    assert_eq!(presence.sample(&logits), Ok(0));
    let mut frequency = new(SamplingParams { frequency_penalty: 0.3, ..SamplingParams::default() });
    frequency.accept(0);
    frequency.accept(0);
    frequency.accept(1);
    assert_eq!(frequency.sample(&logits), Ok(1));
    let mut repetition = new(SamplingParams { repetition_penalty: 4.0, ..SamplingParams::default() });
    assert_eq!(repetition.sample(&logits), Ok(1));
    repetition.accept(1);
    assert_eq!(repetition.sample(&logits), Ok(2));
    assert_eq!(repetition.sample(&[-1.0, -1.0, -3.0]), Ok(2));
}

#[test]
fn bias_moves_and_forbids() {
    let biased =
        |id, bias| SamplingParams { logit_bias: BTreeMap::from([(id, bias)]), ..SamplingParams::default() };
    assert_eq!(sampler(biased(0, -100.0), 2).sample(&[5.0, 1.0]), Ok(1));
    assert_eq!(sampler(biased(1, 100.0), 2).sample(&[5.0, 1.0]), Ok(1));
    // What a grammar rules out cannot be biased back in.
    assert_eq!(sampler(biased(1, 100.0), 2).sample(&[5.0, f32::NEG_INFINITY]), Ok(0));
    let parse = |map: serde_json::Value| parse_logit_bias(map.as_object().unwrap(), 6144);
    assert_eq!(parse(json!({"5340": -100})), Ok(BTreeMap::from([(5340, -100.0)])));
    for (key, value) in
        [("6144", json!(1)), ("-1", json!(1)), ("Madrid", json!(1)), ("5", json!(101)), ("6", json!("x"))]
    {
        let error = parse(json!({ key: value })).unwrap_err();
        assert_eq!(error.param, "logit_bias");
        assert!(error.to_string().contains(&format!("{key:?}")), "{error}");
    }
}

#[test]
fn padding_is_never_drawn() {
    for temperature in [0.0, 1.0] {
        let mut sampler = sampler(SamplingParams { temperature, ..SamplingParams::default() }, 2);
        assert!(sampler.sample(&[0.0, 0.0, 50.0, f32::NAN]).unwrap() < 2);
    }
    let error = sampler(SamplingParams::default(), 3).sample(&[0.0]);
    assert_eq!(error, Err(SampleError::TooFew { found: 1, expected: 3 }));
}

#[test]
fn bad_logits_are_errors() {
    let mut sampler = sampler(SamplingParams { temperature: 1.0, ..SamplingParams::default() }, 3);
    assert_eq!(sampler.sample(&[0.0, f32::NAN, f32::NAN]), Err(SampleError::NotANumber { id: 1 }));
    assert_eq!(sampler.sample(&[0.0, 0.0, f32::INFINITY]), Err(SampleError::NotANumber { id: 2 }));
    assert_eq!(sampler.sample(&[f32::NEG_INFINITY; 3]), Err(SampleError::NothingAllowed));
}

#[test]
fn parameters_without_meaning_are_refused_by_name() {
    let base = SamplingParams::default;
    for (params, param) in [
        (SamplingParams { temperature: -1.0, ..base() }, "temperature"),
        (SamplingParams { temperature: 2.5e300, ..base() }, "temperature"),
        (SamplingParams { temperature: f64::NAN, ..base() }, "temperature"),
        (SamplingParams { top_p: 1.1, ..base() }, "top_p"),
        (SamplingParams { min_p: -0.1, ..base() }, "min_p"),
        (SamplingParams { presence_penalty: 3.0, ..base() }, "presence_penalty"),
        (SamplingParams { frequency_penalty: f64::INFINITY, ..base() }, "frequency_penalty"),
        (SamplingParams { repetition_penalty: 0.0, ..base() }, "repetition_penalty"),
        (SamplingParams { logit_bias: BTreeMap::from([(9, 1.0)]), ..base() }, "logit_bias"),
        (SamplingParams { logit_bias: BTreeMap::from([(1, f32::NAN)]), ..base() }, "logit_bias"),
    ] {
        assert_eq!(Sampler::new(params, 9, &[]).unwrap_err().param, param);
    }
}
