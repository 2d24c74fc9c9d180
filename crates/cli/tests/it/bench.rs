//! `bench`: what it measures, and what it cannot.

use crate::common::{run, spinetail};

#[test]
fn every_figure_is_there_and_counts_add_up() {
    let mut command = spinetail(["bench", "pip", "--json", "--decode", "3", "--warmup", "2", "--runs", "2"]);
    let object =
        run(command.args(["--context-fill", "0,70", "--prefill", "5,65", "--memory", "40MiB"])).json();
    for rate in ["memory_bytes_per_second", "unpack_memory_bytes_per_second", "integer_ops_per_second"] {
        assert!(object[rate].as_f64().unwrap() > 0.0, "{rate}");
    }
    let lengths = |kind: &str, field: &str| -> Vec<u64> {
        object[kind].as_array().unwrap().iter().map(|m| m[field].as_u64().unwrap()).collect()
    };
    assert_eq!(lengths("prefill", "tokens"), [5, 65]);
    assert_eq!(lengths("decode", "context"), [0, 70]);
    // Keys and values of 70 positions, and none.
    let kv = lengths("decode", "kv_bytes_per_token");
    assert!(kv[0] == 0 && kv[1] > 0 && kv[1] % 70 == 0, "{kv:?}");
    for m in object["decode"].as_array().unwrap() {
        assert_eq!(m["seconds"].as_array().unwrap().len(), 2);
        assert!(m["tokens_per_second"].as_f64().unwrap() > 0.0);
        let uses = ["expert_hits", "expert_late", "expert_misses"].map(|f| m[f].as_u64().unwrap());
        // Runs · (one token to begin with, and three) · layers · experts per token.
        assert_eq!(uses.iter().sum::<u64>() % (2 * 4), 0, "{uses:?}");
    }
}

#[test]
fn preloaded_experts_are_never_read_again() {
    let mut command = spinetail(["bench", "pip", "--json", "--preload", "--decode", "4", "--runs", "1"]);
    let object = run(&mut command).json();
    let decode = &object["decode"][0];
    assert_eq!((decode["expert_misses"].as_u64(), decode["expert_bytes_read"].as_u64()), (Some(0), Some(0)));
}

#[test]
fn a_fill_past_the_model_is_refused() {
    let refused = |flags: &[&str]| run(spinetail(["bench", "pip"]).args(flags)).refused(2);
    for flags in [
        ["--context-fill", "4000000000"],
        ["--context-fill", "4294967296"],
        ["--decode", "4294967295"],
        ["--warmup", "99999999"],
        ["--prefill", "64,20000000"],
        ["--prefill", "0"],
        ["--decode", "0"],
    ] {
        assert!(refused(&flags).contains(flags[0]), "{flags:?}");
    }
    for flags in [["--context-fill", "1000000"], ["--prefill", "1000000"], ["--decode", "1000000"]] {
        let said = refused(&flags);
        assert!(said.contains("the model was made for") && said.contains("\n  lower --prefill"), "{said}");
    }
    let said = refused(&["--prefill", "512", "--context", "100"]);
    assert!(said.contains("a context of 512") && said.contains("--context is 100"), "{said}");
}

/// What a long prompt borrowed goes back to the system, so that the next one stays within the budget as well.
#[cfg(target_os = "linux")]
#[test]
fn a_second_long_prompt_stays_within_the_budget() {
    let long = "The capital of Spain is Madrid. The opposite of hot is cold. ".repeat(70);
    let short = "What is the capital of Spain?";
    let mut command =
        spinetail(["chat", "pip", "--memory=50MiB", "--max-tokens=4", "--stats", "--learn=off"]);
    let run = run(command.args(["--threads=2", "--readers=8", short, &long, short, &long, short]));
    let peaks: Vec<f64> = run
        .err
        .lines()
        .filter_map(|l| l.split_once("peak memory ")?.1.split_once(" MiB of 50.0 MiB")?.0.parse().ok())
        .collect();
    assert_eq!(peaks.len(), 5, "{run:?}");
    assert!(peaks.iter().all(|&peak| peak <= 50.0), "{peaks:?}");
}

/// The budget is the whole process's: the kernel's own peak stays below it, with a prompt that fills most of the context.
#[cfg(target_os = "linux")]
#[test]
fn the_peak_stays_within_the_budget() {
    let folder = tempfile::tempdir().unwrap();
    let prompt = folder.path().join("prompt");
    std::fs::write(&prompt, "The capital of Spain is Madrid. The opposite of hot is cold. ".repeat(220))
        .unwrap();
    for (mib, more) in
        [(32, "--threads=1"), (40, "--lookahead=on"), (44, "--reads=buffered"), (100, "--readers=16")]
    {
        let mut command = spinetail(["generate", "pip", "--max-tokens", "20", "--json", "--prompt-file"]);
        let object = run(command.arg(&prompt).args([&format!("--memory={mib}MiB"), more])).json();
        let peak = object["peak_rss_bytes"].as_u64().unwrap();
        assert!(peak <= mib << 20, "{mib} MiB: {:.1} MiB, {object}", peak as f64 / f64::from(1 << 20));
    }
}
