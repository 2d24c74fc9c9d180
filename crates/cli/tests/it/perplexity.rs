//! `perplexity`, against the figure that transformers gives.

use crate::common::{fixture, pip16, run_with_input, say, spinetail};

/// The first document only: a debug build is slow. `docs/cli.md` has the whole.
#[test]
fn the_figure_of_transformers() {
    let Some(pip) = pip16() else { return };
    let text = pip.join("eval.txt");
    let args = ["perplexity", pip.to_str().unwrap(), "--text", text.to_str().unwrap(), "--documents", "1"];
    let object = say(args.iter().chain(&["--json"])).json();
    assert_eq!(object["documents"], 1);
    let (nats, tokens) = (object["nats_per_token"].as_f64().unwrap(), object["tokens"].as_u64().unwrap());
    assert!((object["perplexity"].as_f64().unwrap() - nats.exp()).abs() < 1e-12);
    assert_eq!(tokens, TOKENS);
    assert!((nats - NATS).abs() < 1e-5, "{nats}");
}

/// The first document, by the build that gave transformers' 0.29489 for the whole.
const TOKENS: u64 = 154;
const NATS: f64 = 0.28530;

/// Each document is alone: what comes before it makes no difference.
#[test]
fn documents_are_alone() {
    let nats = |text: &str| {
        let mut command = spinetail(["perplexity", "pip", "--text", "-", "--json"]);
        let object = run_with_input(&mut command, text.as_bytes()).json();
        let tokens = object["tokens"].as_f64().unwrap();
        (tokens, tokens * object["nats_per_token"].as_f64().unwrap())
    };
    let (one, two) = (nats("The cat sat.<|endoftext|>"), nats("A dog ran to me."));
    let both =
        nats("The cat sat.<|endoftext|>A dog ran to me.\n<|endoftext|>".trim_end_matches("\n<|endoftext|>"));
    assert_eq!(both.0, one.0 + two.0);
    assert!((both.1 - one.1 - two.1).abs() < 1e-9, "{one:?} {two:?} {both:?}");
}

/// A model is at no distance from itself, and at some from itself in the other precision.
#[test]
fn the_distance_from_another_model_is_measured() {
    let against = |precision: &str| {
        let args =
            ["perplexity", "pip", "--text", "-", "--json", "--against", "pip", "--precision", precision];
        run_with_input(&mut spinetail(args), b"The cat sat on the mat.<|endoftext|>").json()
    };
    let same = against("exact");
    assert_eq!(same["against"]["kl_nats_max"], 0.0);
    assert_eq!(same["against"]["top_1_agreement"], 1.0);
    assert_eq!(same["against"]["perplexity"], same["perplexity"]);
    let other = against("fast");
    assert_eq!(other["against"]["perplexity"], same["perplexity"]);
    let [mean, p999, max] =
        ["mean", "p999", "max"].map(|k| other["against"][format!("kl_nats_{k}")].as_f64().unwrap());
    assert!(0.0 < mean && mean < p999 && p999 <= max && max < 0.1, "{other}");
}

#[test]
fn what_cannot_be_measured_is_refused() {
    for text in ["", " \n", "a"] {
        run_with_input(&mut spinetail(["perplexity", "pip", "--text", "-"]), text.as_bytes()).refused(1);
    }
    let long = "a b c d e f g h ".repeat(40);
    let mut command = spinetail(["perplexity", "pip", "--text", "-", "--context", "100"]);
    assert!(run_with_input(&mut command, long.as_bytes()).refused(1).contains("context of 100"));
    say(["perplexity", "pip", "--text", "/dev/null", "--documents", "0"]).refused(2);
    let other = fixture("hf-next");
    let args = ["perplexity", "pip", "--text", "-", "--against", other.to_str().unwrap()];
    run_with_input(&mut spinetail(args), b"The cat sat.").refused(1);
}

/// One budget for both models, which the one who gives too little is told in full.
#[test]
fn two_models_share_one_budget() {
    let measure = |flags: &[&str]| {
        let args = ["perplexity", "pip", "--text", "-", "--verbose"];
        run_with_input(spinetail(args).args(flags), b"The cat sat on the mat.")
    };
    let refused = measure(&["--against", "pip", "--memory", "1MiB"]).refused(1);
    assert!(refused.contains("two models at once"), "{refused}");
    let least = |text: &str| -> u64 {
        let (_, rest) = text.split_once("at least ").unwrap();
        rest.split_once(" MiB").unwrap().0.parse().unwrap()
    };
    let both = least(&refused);
    let alone = least(&measure(&["--memory", "1MiB"]).refused(1));
    assert!(both >= 2 * alone - 1, "{both} {alone}");
    let enough = measure(&["--against", "pip", "--memory", &format!("{both}MiB")]);
    let line = enough.err.lines().find(|l| l.contains("for both models")).expect("a line");
    assert!(line.contains("for comparing"), "{line}");
    enough.ok();
    measure(&["--against", "pip", "--memory", &format!("{}MiB", both - 1)]).refused(1);
    // Without a budget as with one, both are in what is said to be used.
    let memory = |flags: &[&str]| -> f64 {
        let run = measure(flags);
        let line = run.err.lines().find(|l| l.starts_with("memory")).expect("a line").to_owned();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    let (one, two) = (memory(&[]), memory(&["--against", "pip"]));
    assert!(two > 1.9 * one, "{one} MiB, {two} MiB");
}

/// Of a text no more is read than is asked for, whether or not it ends.
#[cfg(unix)]
#[test]
fn a_text_is_read_as_far_as_it_is_needed() {
    use std::io::{Read, Write};
    use std::process::Stdio;
    use std::time::{Duration, Instant};

    let args = ["perplexity", "pip", "--text", "-", "--documents", "1", "--json"];
    let mut child = spinetail(args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut text = child.stdin.take().unwrap();
    text.write_all(b"The cat sat.<|endoftext|>A dog").unwrap();
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > Duration::from_secs(60) {
            child.kill().unwrap();
            panic!("it waits for more of the text");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(text);
    let mut out = String::new();
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    let object: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(object["documents"], 1);
    let endless = say(["perplexity", "pip", "--text", "/dev/zero"]).refused(1);
    assert!(endless.contains("context of 4096"), "{endless}");
    let refused = run_with_input(&mut spinetail(["perplexity", "pip", "--text", "-"]), b"caf\xE9").refused(1);
    assert!(refused.contains("standard input is not UTF-8 text from byte 3"), "{refused}");
    say(["perplexity", "pip", "--text", "/no/such/file"]).refused(1);
    assert!(say(["perplexity", "pip", "--text", "/"]).refused(1).contains("cannot read the text from /"));
}
