//! `--trace` and `replay`.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::common::{SPAIN, run, say, spinetail};

/// A trace of some tokens of the shipped model, and what it said meanwhile.
fn recorded(folder: &Path) -> (PathBuf, Value) {
    let file = folder.join("a trace");
    let mut command =
        spinetail(["generate", "pip", "--chat", "--prompt", SPAIN, "--temperature", "0", "--json"]);
    let said = run(command.arg("--trace").arg(&file)).json();
    (file, said)
}

fn replayed(file: &Path, flags: &[&str]) -> Value {
    run(spinetail(["replay", "--json"]).arg(file).args(flags)).json()
}

#[test]
fn a_trace_is_replayed_with_every_policy() {
    let folder = tempfile::tempdir().unwrap();
    let (file, said) = recorded(folder.path());
    let plain = say(["generate", "pip", "--chat", "--prompt", SPAIN, "--temperature", "0", "--json"]).json();
    assert_eq!(said["text"], plain["text"]);

    let object = replayed(&file, &[]);
    // The token that ends an answer is not run.
    let decoded = said["generated_tokens"].as_u64().unwrap() - 1;
    assert_eq!(object["decode_tokens"], decoded);
    let prompt = said["prompt_tokens"].as_u64().unwrap();
    assert_eq!(object["prefill_tokens"], prompt);
    let results = object["results"].as_array().unwrap();
    assert_eq!(results.len(), 5 * 6);
    let rate = |slots: u64, policy: &str| {
        let found = results.iter().find(|r| r["slots"] == slots && r["policy"] == policy).unwrap();
        found["hit_rate_from_start"].as_f64().unwrap()
    };
    let records = object["layers"].as_u64().unwrap() * object["experts"].as_u64().unwrap();
    for policy in ["lru", "lfu", "decayed-lfu", "clock", "s3-fifo"] {
        assert!(rate(records / 8, policy) <= rate(records / 8, "belady"), "{policy}");
        assert!(rate(records / 8, policy) < rate(records / 2, policy), "{policy}");
    }

    let table =
        run(spinetail(["replay"]).arg(&file).args(["--slots", "1MiB,2MiB", "--policy", "lru,belady"])).ok();
    assert!(table.contains("predicted tok/s") && table.contains("not measured"), "{table}");
    assert_eq!(table.matches("belady").count(), 2, "{table}");
}

#[test]
fn budgets_are_those_of_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let (file, _) = recorded(folder.path());
    let of = |flags: &[&str]| replayed(&file, flags)["results"][0].clone();
    let recorded = of(&["--memory", "48MiB", "--policy", "decayed-lfu"]);
    assert_eq!(recorded["memory_bytes"], 48 << 20);
    let slots = recorded["slots_bytes"].as_u64().unwrap();
    assert!(slots > 0 && slots < 48 << 20, "{slots}");
    let reckoned = of(&["--memory", "48MiB", "--policy", "decayed-lfu", "--model", "pip"]);
    // As the engine divides it, which also makes room for longer batches of prompts.
    let exact = reckoned["slots_bytes"].as_u64().unwrap();
    assert!(exact <= slots && exact > slots * 3 / 4, "{exact} of {slots}");
    let long = ["--memory", "48MiB", "--policy", "decayed-lfu", "--model", "pip", "--context", "8"];
    assert!(of(&long)["slots_bytes"].as_u64().unwrap() > exact);

    let refused = run(spinetail(["replay"]).arg(&file).args(["--memory", "1MiB"])).refused(1);
    assert!(refused.contains("nothing for slots"), "{refused}");
    let mut command = spinetail(["replay"]);
    let refused = run(command.arg(&file).args(["--memory", "1GiB", "--slots", "1GiB"])).refused(2);
    assert!(refused.contains("--slots"), "{refused}");
}

#[test]
fn predictions_follow_from_what_is_given() {
    let folder = tempfile::tempdir().unwrap();
    let (file, _) = recorded(folder.path());
    let flags = ["--slots", "4MiB", "--policy", "decayed-lfu", "--compute-ms", "100", "--half-life", "8,900"];
    let object = replayed(&file, &[&flags[..], &["--read-rate", "1GB"]].concat());
    let results = object["results"].as_array().unwrap();
    assert_eq!(results.len(), 2);
    assert_eq!(
        (&results[0]["half_life_tokens"], &results[1]["half_life_tokens"]),
        (&8.0.into(), &900.0.into())
    );
    let number = |name: &str| results[0][name].as_f64().unwrap();
    let seconds = 0.1 + number("read_bytes_per_token") / 1e9;
    assert!((number("predicted_tokens_per_second_in_turns") - 1.0 / seconds).abs() < 1e-9);
    assert!((number("predicted_tokens_per_second_overlapped") - 10.0).abs() < 1e-9);
}

#[test]
fn wrong_files_and_flags_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (file, _) = recorded(folder.path());
    let mut bytes = fs::read(&file).unwrap();
    // What is there is not written over.
    let mut command = spinetail(["generate", "pip", "--prompt", "Once", "--max-tokens", "1"]);
    let refused = run(command.arg("--trace").arg(&file)).refused(1);
    assert!(refused.contains("already") && refused.contains("another name"), "{refused}");
    assert_eq!(fs::read(&file).unwrap(), bytes);

    let cut = folder.path().join("cut");
    fs::write(&cut, &bytes[..bytes.len() - 5]).unwrap();
    let run_cut = run(spinetail(["replay"]).arg(&cut));
    assert!(run_cut.err.contains("no whole step"), "{run_cut:?}");
    run_cut.ok();

    bytes[12] ^= 1;
    fs::write(&cut, &bytes).unwrap();
    assert!(run(spinetail(["replay"]).arg(&cut)).refused(1).contains("damaged"));
    fs::write(&cut, "text").unwrap();
    assert!(run(spinetail(["replay"]).arg(&cut)).refused(1).contains("no trace"));
    assert!(run(spinetail(["replay"]).arg(folder.path().join("none"))).refused(1).contains("none"));
    for flags in [["--policy", "mru"], ["--half-life", "-1"], ["--compute-ms", "0"], ["--slots", "much"]] {
        let refused = run(spinetail(["replay"]).arg(&file).args(flags)).refused(2);
        assert!(refused.contains(flags[1]), "{refused}");
    }
}

/// What fails before the first step leaves no file that would be in the way of the next attempt.
#[test]
fn a_start_that_fails_leaves_no_trace() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace");
    let long = "word ".repeat(100);
    for args in [
        &["generate", "pip", "--prompt", ""][..],
        &["generate", "pip", "--prompt", "a", "--memory", "1MiB"],
        &["generate", "pip", "--prompt", &long, "--context", "16"],
        &["generate", "pip", "--chat", "--prompt", &long, "--context", "16"],
        &["generate", "pip", "--prompt", "a", "--context", "4000000"],
        &["chat", "pip", &long, "--context", "16"],
        &["chat", "pip", "Hi", "--memory", "1MiB"],
        &["generate", "no-such-model", "--prompt", "a"],
    ] {
        let failed = run(spinetail(args).arg("--trace").arg(&file));
        assert_eq!(failed.status, 1, "{args:?} {failed:?}");
        assert!(!file.exists(), "{args:?}");
    }
    recorded(folder.path());
    // What cannot be recorded to is refused before a model is opened.
    for place in [folder.path().join("none/trace"), folder.path().join("a trace/trace")] {
        let mut command = spinetail(["generate", "no-such-model", "--prompt", "a", "--trace"]);
        let refused = run(command.arg(&place)).refused(1);
        assert!(refused.contains("no-such-model"), "{refused}");
        let mut command = spinetail(["generate", "pip", "--memory", "1MiB", "--prompt", "a", "--trace"]);
        let refused = run(command.arg(&place)).refused(1);
        assert!(refused.contains("cannot record to") && refused.contains("another place"), "{refused}");
    }
}

/// What a kill leaves is read as far as it is whole.
#[cfg(unix)]
#[test]
fn killed_while_recording() {
    use std::process::Stdio;
    use std::time::{Duration, Instant};
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace");
    let mut command = spinetail(["generate", "pip", "--prompt", "Once upon a time", "--max-tokens", "4000"]);
    command.args(["--stop", "never to be said"]).arg("--trace").arg(&file);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let start = Instant::now();
    // Past the header, and past a first piece of the steps.
    while fs::metadata(&file).map_or(0, |m| m.len()) < 1000 && start.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let object = replayed(&file, &["--policy", "lru", "--slots", "1MiB"]);
    assert!(object["decode_tokens"].as_u64().unwrap() > 0, "{object}");
    // And the least that can be left of one is refused.
    for bytes in [0, 10, 44] {
        let whole = fs::read(&file).unwrap();
        let cut = folder.path().join("cut");
        fs::write(&cut, &whole[..bytes]).unwrap();
        run(spinetail(["replay"]).arg(&cut)).refused(1);
    }
}

/// What is named twice is tried once, and there is an end to what is tried.
#[test]
fn sizes_and_policies_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let (file, _) = recorded(folder.path());
    let flags = ["--slots", "1MiB,2MiB,1MiB", "--policy", "lru,all,lru", "--half-life", "8,8"];
    assert_eq!(replayed(&file, &flags)["results"].as_array().unwrap().len(), 2 * 6);
    let many: Vec<String> = (1..=400).map(|mib| format!("{mib}MiB")).collect();
    let refused = run(spinetail(["replay"]).arg(&file).args(["--slots", &many.join(",")])).refused(2);
    assert!(refused.contains("2400 replays"), "{refused}");
}

/// A prompt alone has nothing to replay; a chat adds its turns to one trace.
#[test]
fn what_is_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prompt");
    let mut command = spinetail(["generate", "pip", "--prompt", "Once upon a time", "--max-tokens", "1"]);
    run(command.arg("--trace").arg(&file)).ok();
    assert!(run(spinetail(["replay"]).arg(&file)).refused(1).contains("no decoded token"));
    let file = folder.path().join("chat");
    let mut command = spinetail(["chat", "--temperature", "0", "--trace"]);
    run(command.arg(&file).args(["pip", SPAIN, SPAIN])).ok();
    let object = replayed(&file, &["--policy", "lru", "--slots", "1MiB"]);
    assert!(object["decode_tokens"].as_u64().unwrap() >= 12, "{object}");
}
