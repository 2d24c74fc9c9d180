//! The small trained model at source precision, greedily, against what transformers generated.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests stop at the first surprise and say what they skip"
)]

mod common;

use std::ops::ControlFlow;

use spinetail_engine::{Engine, EngineOptions, Precision};

fn argmax(logits: &[f32]) -> u32 {
    let (mut best, mut at) = (f32::NEG_INFINITY, 0);
    for (i, &l) in logits.iter().enumerate() {
        if l > best {
            (best, at) = (l, i as u32);
        }
    }
    at
}

#[test]
fn greedy_answers_are_those_of_transformers_token_for_token() {
    let folder = common::shared().join("models/pip");
    let Ok(reference) = std::fs::read_to_string(folder.join("reference.json")) else {
        println!("skipped: {} is absent", folder.display());
        return;
    };
    let reference: serde_json::Value = serde_json::from_str(&reference).unwrap();
    let options = EngineOptions { precision: Precision::Exact, ..EngineOptions::default() };
    let engine = Engine::open(&folder, &options, &mut |_, _| {}).unwrap();
    let mut session = engine.session().unwrap();
    let ids = |v: &serde_json::Value| -> Vec<u32> {
        v.as_array().unwrap().iter().map(|i| i.as_u64().unwrap() as u32).collect()
    };
    let cases = reference.as_array().unwrap();
    assert!(!cases.is_empty());
    for case in cases {
        let (prompt, expected) = (ids(&case["prompt_ids"]), ids(&case["output_ids"]));
        // The session keeps what it can of the last prompt; that must not show.
        session.prefill(&prompt, None, &mut |_| ControlFlow::Continue(())).unwrap();
        let mut output = vec![argmax(session.logits())];
        while output.len() < expected.len() {
            session.push(output[output.len() - 1]).unwrap();
            output.push(argmax(session.logits()));
        }
        assert_eq!(output, expected, "{}", case["prompt"]);
    }
}
