//! Ctrl-C where no terminal is: what was learned and recorded by then is kept, and the status says how it ended.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::common::{SPAIN, run, spinetail};

/// Less than all experts take: only then is there something to learn.
const MEMORY: &str = "--memory=34MiB";

fn interrupt(child: &Child) {
    kill_process(Pid::from_child(child), Signal::INT).unwrap();
}

/// Waits for the end, and gives up on a program that does not come to it.
#[track_caller]
fn status(child: &mut Child) -> Option<i32> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        if start.elapsed() > Duration::from_secs(60) {
            child.kill().unwrap();
            panic!("it goes on after Ctrl-C");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Reads until there are so many bytes.
fn read_some(child: &mut Child, bytes: usize) {
    child.stdout.as_mut().unwrap().read_exact(&mut vec![0; bytes]).unwrap();
}

fn learned(state: &Path) -> usize {
    fs::read_dir(state.join("spinetail/experts")).map_or(0, Iterator::count)
}

fn started(command: &mut Command, state: &Path) -> Child {
    command.env("XDG_STATE_HOME", state).stdout(Stdio::piped()).stderr(Stdio::null());
    command.spawn().unwrap()
}

#[test]
fn generate_keeps_what_it_has_learned_and_recorded() {
    let state = tempfile::tempdir().unwrap();
    let trace = state.path().join("trace");
    let mut command =
        spinetail(["generate", "pip", MEMORY, "--prompt", "Once upon a time", "--max-tokens=4000"]);
    let mut child = started(command.arg("--trace").arg(&trace), state.path());
    read_some(&mut child, 600);
    interrupt(&child);
    // Whoever reads the answer still does.
    let mut rest = String::new();
    child.stdout.take().unwrap().read_to_string(&mut rest).unwrap();
    assert_eq!(status(&mut child), Some(130));
    assert!(rest.ends_with('\n'), "{rest:?}");
    assert_eq!(learned(state.path()), 1);
    let replayed = run(spinetail(["replay"]).arg(&trace));
    assert!(!replayed.err.contains("no whole step"), "{replayed:?}");
    replayed.ok();
}

#[test]
fn chat_keeps_what_it_has_learned() {
    // While it answers, and while it waits for a question.
    for answers in [true, false] {
        let state = tempfile::tempdir().unwrap();
        let mut command = spinetail(["chat", "pip", MEMORY, "--max-tokens=4000", "--temperature=0"]);
        let mut child = started(command.stdin(Stdio::piped()), state.path());
        let questions = format!("{SPAIN}\n").repeat(if answers { 4000 } else { 20 });
        let mut input = child.stdin.take().unwrap();
        let write = std::thread::spawn(move || {
            let _ = input.write_all(questions.as_bytes());
            input
        });
        read_some(&mut child, 20 * "The capital of Spain is Madrid.\n".len());
        if !answers {
            // The last answer is out; a moment later it waits.
            std::thread::sleep(Duration::from_millis(300));
        }
        interrupt(&child);
        drop(child.stdout.take());
        assert_eq!(status(&mut child), Some(130), "{answers}");
        drop(write.join().unwrap());
        assert_eq!(learned(state.path()), 1, "{answers}");
    }
}
