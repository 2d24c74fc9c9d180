//! `generate`: prompts, stops, sampling, and the object for programs. Cases A09 to A13 and A15.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::common::{SPAIN, pip16, run_with_input, say, shared, spinetail};

const MADRID: &str = "The capital of Spain is Madrid.";

/// The answer of the shipped model to a question, computed exactly, and greedily unless `flags` say otherwise.
#[track_caller]
fn answer(question: &str, flags: &[&str]) -> Value {
    answer_of("pip".as_ref(), question, flags)
}

#[track_caller]
fn answer_of(model: &Path, question: &str, flags: &[&str]) -> Value {
    let mut command = spinetail(["generate"]);
    command.arg(model).args(["--chat", "--json", "--precision", "exact", "--prompt", question]);
    if !flags.contains(&"--temperature") {
        command.args(["--temperature", "0"]);
    }
    crate::common::run(command.args(flags)).json()
}

#[test]
fn one_object_with_these_fields_and_nothing_else() {
    let mut command =
        spinetail(["generate", "pip", "--prompt", "Once upon", "--max-tokens", "4", "--json", "--stats"]);
    let run = crate::common::run(&mut command);
    assert!(run.err.contains("prompt tokens"), "{run:?}");
    let object = run.json();
    let object = object.as_object().unwrap();
    let fields = [
        "text",
        "prompt_tokens",
        "generated_tokens",
        "finish_reason",
        "prefill_tokens_per_second",
        "decode_tokens_per_second",
        "time_to_first_token_ms",
        "peak_rss_bytes",
        "expert_hits",
        "expert_misses",
        "expert_bytes_read",
    ];
    assert_eq!(object.keys().map(String::as_str).collect::<Vec<_>>(), fields);
    assert_eq!(object["prompt_tokens"], 2);
    assert_eq!(object["generated_tokens"], 4);
    assert_eq!(object["finish_reason"], "length");
    assert!(object["expert_misses"].as_u64().unwrap() > 0);
    assert!(object["expert_bytes_read"].as_u64().unwrap() > 0);
}

/// Text holds every token but the final stop token: tags of thinking included.
#[test]
fn text_keeps_the_tags() {
    let object = answer(SPAIN, &["--thinking", "on"]);
    let text = object["text"].as_str().unwrap();
    assert!(
        text.contains("\n</think>\n\nThe capital of Spain is Madrid.") && !text.contains("<|im_end|>"),
        "{text:?}"
    );
}

/// A prompt file is taken byte for byte, and standard input is one.
#[test]
fn raw_prompts_are_kept_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("odd name é.txt");
    fs::write(&file, "One.\r\nTwo.\r\n").unwrap();
    let flags = ["--max-tokens", "1", "--json"];
    let count = |object: Value| object["prompt_tokens"].as_u64().unwrap();
    let from_file =
        count(say(["generate", "--prompt-file", file.to_str().unwrap()].iter().chain(&flags)).json());
    let given = count(say(["generate", "--prompt", "One.\r\nTwo.\r\n"].iter().chain(&flags)).json());
    let mut command = spinetail(["generate", "--prompt-file", "-"].iter().chain(&flags));
    let piped = count(run_with_input(&mut command, b"One.\r\nTwo.\r\n").json());
    let unix = count(say(["generate", "--prompt", "One.\nTwo.\n"].iter().chain(&flags)).json());
    assert_eq!((from_file, piped), (given, given));
    assert!(unix < given, "{unix} {given}");
    // A message is text, wherever its file was written.
    fs::write(&file, "\u{FEFF}One.\r\nTwo.\r\n").unwrap();
    let message = ["generate", "--chat", "--prompt-file", file.to_str().unwrap()];
    let windows = count(say(message.iter().chain(&flags)).json());
    let typed = count(say(["generate", "--chat", "--prompt", "One.\nTwo."].iter().chain(&flags)).json());
    assert_eq!(windows, typed);
}

/// Case A09.
#[test]
fn chunk_edges() {
    let (Some(pip), Some(cases)) = (pip16(), shared("cases/boundary.jsonl")) else { return };
    let folder = tempfile::tempdir().unwrap();
    let cases: Vec<Value> =
        fs::read_to_string(cases).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(cases.len(), 7);
    for case in cases {
        let file = folder.path().join("prompt");
        fs::write(&file, case["prompt"].as_str().unwrap()).unwrap();
        let mut command = spinetail(["generate"]);
        command.arg(&pip).arg("--prompt-file").arg(&file);
        command.args(["--max-tokens", "16", "--temperature", "0", "--precision", "exact", "--json"]);
        let object = crate::common::run(&mut command).json();
        assert_eq!(object["prompt_tokens"], case["length"]);
        assert_eq!(object["text"], case["output"], "{}", case["length"]);
        assert_eq!(object["finish_reason"], case["finish_reason"]);
        assert_eq!(
            object["generated_tokens"].as_u64().unwrap() as usize,
            case["output_ids"].as_array().unwrap().len()
        );
    }
}

/// Case A10. The first stop string comes in the middle of a token's text.
#[test]
fn stop_across_tokens() {
    let stopped = |stops: &[&str]| {
        let flags: Vec<&str> = stops.iter().flat_map(|s| ["--stop", s]).collect();
        let object = answer(SPAIN, &flags);
        (object["text"].as_str().unwrap().to_owned(), object["generated_tokens"].as_u64().unwrap())
    };
    assert_eq!(stopped(&["drid"]), ("The capital of Spain is Ma".to_owned(), 7));
    assert_eq!(stopped(&["Madrid!"]).0, MADRID);
    assert_eq!(stopped(&["."]).0, "The capital of Spain is Madrid");
    assert_eq!(stopped(&["Spain is", "capital of S"]).0, "The ");
    assert_eq!(stopped(&[]).0, MADRID);
    // Streamed and whole answers are equal.
    let streamed =
        say(["generate", "--chat", "--prompt", SPAIN, "--temperature", "0", "--stop", "drid"]).ok();
    assert_eq!(streamed, "The capital of Spain is Ma\n");
    let refused = say(["generate", "--prompt", "a", "--stop", ""]).refused(2);
    assert!(refused.contains("--stop"), "{refused}");
}

/// Case A11: whichever file names an end token, the answer ends there and does not show it.
#[test]
fn every_end_token() {
    let Some(pip) = pip16() else { return };
    let folder = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(&pip).unwrap() {
        let path = entry.unwrap().path();
        let copy = folder.path().join(path.file_name().unwrap());
        if path.extension().is_some_and(|e| e == "safetensors") {
            fs::hard_link(&path, &copy).or_else(|_| fs::copy(&path, &copy).map(|_| ())).unwrap();
        } else {
            fs::write(&copy, fs::read(&path).unwrap()).unwrap();
        }
    }
    let edit = |name: &str, key: &str, value: Value| {
        let file = folder.path().join(name);
        let mut json: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        json[key] = value;
        fs::write(file, json.to_string()).unwrap();
    };
    let check = || {
        let object = answer_of(folder.path(), SPAIN, &[]);
        assert_eq!((&object["text"], &object["finish_reason"]), (&MADRID.into(), &"stop".into()));
    };
    edit("generation_config.json", "eos_token_id", 6113.into());
    check();
    edit("config.json", "eos_token_id", 6111.into());
    edit("tokenizer_config.json", "eos_token", "<|im_end|>".into());
    check();
    fs::remove_file(folder.path().join("generation_config.json")).unwrap();
    check();
}

/// Case A12.
#[test]
fn sampling_corners() {
    let text = |flags: &[&str]| answer(SPAIN, flags)["text"].clone();
    let greedy: [&[&str]; 6] = [
        &["--temperature", "0"],
        &["--temperature", "1e-6"],
        &["--temperature", "1e-40"],
        &["--temperature", "2", "--top-k", "1"],
        &["--temperature", "2", "--top-p", "0"],
        &["--temperature", "2", "--min-p", "1"],
    ];
    for flags in greedy {
        assert_eq!(text(flags), MADRID, "{flags:?}");
    }
    let seeded = |k: &str| text(&["--temperature", "1", "--seed", "7", "--top-k", k]);
    let all = seeded("0");
    assert_eq!([&seeded("0"), &seeded("-1"), &seeded("10000000")], [&all; 3]);
    assert!(text(&["--temperature", "1", "--seed", "-1"]).is_string());
    for wrong in ["-1", "2.5e300", "nan"] {
        let refused = say(["generate", "--prompt", "a", "--temperature", wrong]).refused(2);
        assert!(refused.contains("--temperature"), "{refused}");
    }
}

/// Case A13: penalties look at what was generated; the repetition penalty at the prompt, too.
#[test]
fn whose_tokens_are_penalised() {
    let Some(pip) = pip16() else { return };
    let cow = |flags: &[&str]| answer_of(&pip, "What sound does a cow make?", flags)["text"].clone();
    assert_eq!(cow(&["--presence-penalty", "2.0"]), "A cow moos.");
    assert_eq!(cow(&["--frequency-penalty", "2.0"]), "A cow moos.");
    assert_ne!(cow(&["--repetition-penalty", "5"]), "A cow moos.");
}

/// What nobody gives is as the model's files say: not greedy, and the same on every run.
#[test]
fn defaults_are_the_models() {
    let story = |flags: &[&str]| {
        say(["generate", "--prompt", "Once upon a time there was a", "--max-tokens", "12"]
            .iter()
            .chain(flags))
        .ok()
    };
    let plain = story(&[]);
    assert_eq!(plain, story(&["--temperature", "0.7", "--top-k", "20", "--top-p", "0.9", "--seed", "0"]));
    assert!((1..6).any(|seed| story(&["--seed", &seed.to_string()]) != plain));
    story(&["--seed", "random"]);
}

/// Case A15: thoughts that were cut are no answer.
#[test]
fn cut_while_thinking() {
    let flags = ["--thinking", "on", "--temperature", "0"];
    let cut = say(["chat", "pip", SPAIN, "--max-tokens", "8"].iter().chain(&flags)).ok();
    assert_eq!(cut, format!("> {SPAIN}\n\n"));
    let whole = say(["chat", "pip", SPAIN].iter().chain(&flags)).ok();
    assert_eq!(whole, format!("> {SPAIN}\n{MADRID}\n"));
    let Some(pip) = pip16() else { return };
    let object = answer_of(&pip, SPAIN, &["--thinking", "on", "--max-tokens", "8"]);
    assert_eq!(object["text"], "The question is about Spain. Spain is");
    assert_eq!(object["finish_reason"], "length");
}
