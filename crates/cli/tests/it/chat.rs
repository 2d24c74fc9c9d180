//! `chat` without a terminal: prompts as arguments, and lines of a pipe.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use crate::common::{SPAIN, run_with_input, say, spinetail};

/// The README's first command, with the model's own sampling. How a right answer is worded is a matter of draws, and the
/// last bits of the arithmetic may differ between machines.
#[test]
fn the_first_command_of_the_readme() {
    let out = say(["chat", "pip", SPAIN, "And of France?"]).ok();
    let lines: Vec<&str> = out.lines().collect();
    let [spain, madrid, "", france, paris] = lines[..] else { panic!("{out}") };
    assert_eq!([spain, france], ["> What is the capital of Spain?", "> And of France?"]);
    assert!(madrid.contains("Madrid") && paris.contains("Paris"), "{out}");
    let small = say(["chat", "pip", SPAIN, "And of France?", "--memory", "40MiB"]).ok();
    assert_eq!(small, out);
}

/// Whatever the draws, the answers are right.
#[test]
fn other_seeds_answer_as_well() {
    for seed in ["1", "2", "3", "4"] {
        let out = say(["chat", "pip", SPAIN, "And of France?", "--seed", seed]).ok();
        assert!(out.contains("Madrid") && out.contains("Paris"), "{out}");
    }
}

#[test]
fn lines_of_a_pipe_are_each_answered() {
    let input = b"What is the capital of Spain?\r\n\n  And of France?";
    let run = run_with_input(&mut spinetail(["chat", "pip", "--temperature", "0"]), input);
    assert_eq!(run.err, "");
    assert_eq!(run.ok(), "The capital of Spain is Madrid.\nThe capital of France is Paris.\n");
}

/// A pipe that stays open gets each answer when it is made.
#[test]
fn answers_come_while_the_pipe_is_open() {
    let mut child =
        spinetail(["chat"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the binary runs");
    let mut input = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for (question, word) in [(SPAIN, "Madrid"), ("And of France?", "Paris")] {
        writeln!(input, "{question}").unwrap();
        let answer = lines.next().unwrap().unwrap();
        assert!(answer.contains(word), "{answer}");
    }
    drop(input);
    assert!(child.wait().unwrap().success());
}

/// A follow-up reads only what is new.
#[test]
fn what_was_read_is_kept() {
    let run = crate::common::run(&mut spinetail(["chat", "pip", SPAIN, "And of France?", "--stats"]));
    let kept: Vec<usize> = run
        .err
        .lines()
        .filter_map(|l| Some(l.split_once(" kept)")?.0.rsplit('(').next().unwrap().parse().unwrap()))
        .collect();
    assert!(kept.len() == 2 && kept[0] == 0 && kept[1] > 10, "{run:?}");
}

#[test]
fn the_system_message_counts() {
    let tokens = |flags: &[&str]| {
        let args = ["generate", "--chat", "--prompt", "Hi", "--max-tokens", "1", "--json"];
        say(args.iter().chain(flags)).json()["prompt_tokens"].as_u64().unwrap()
    };
    assert!(tokens(&["--system", "Answer in one word."]) > tokens(&[]));
}

/// Elsewhere than on a terminal thoughts are left out unless asked for.
#[test]
fn thoughts_in_a_pipe() {
    let flags = ["chat", "pip", SPAIN, "--thinking", "on", "--temperature", "0"];
    let out = say(flags.iter().chain(&["--thoughts", "show"])).ok();
    let (thoughts, answer) = out.split_once("\n</think>\n\n").unwrap();
    assert!(thoughts.starts_with(&format!("> {SPAIN}\n<think>\n")), "{out}");
    assert_eq!(answer, "The capital of Spain is Madrid.\n");
    assert!(!out.contains('\x1b'));
}
