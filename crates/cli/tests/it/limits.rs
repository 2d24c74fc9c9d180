//! What the system refuses: threads.

use std::time::{Duration, Instant};

use crate::common::{Run, SPAIN, fixture, run, spinetail};

/// More than there are addresses: no thread with a stack of that size can be had. Those that say how little they need,
/// the readers of experts, can.
const NO_STACK: (&str, &str) = ("RUST_MIN_STACK", "140737488355328");

/// Runs where the system gives hardly a thread. A thread that waits for one that never came would wait for ever.
#[track_caller]
fn without_threads(args: &[&str]) -> Run {
    let mut command = spinetail(args);
    let (status, out, err) = {
        let child = command.env(NO_STACK.0, NO_STACK.1).stdout(std::process::Stdio::piped());
        let mut child = child.stderr(std::process::Stdio::piped()).spawn().unwrap();
        let end = Instant::now() + Duration::from_secs(100);
        while child.try_wait().unwrap().is_none() {
            if Instant::now() > end {
                child.kill().unwrap();
                panic!("{args:?} waits for ever");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let o = child.wait_with_output().unwrap();
        (o.status, String::from_utf8(o.stdout).unwrap(), String::from_utf8(o.stderr).unwrap())
    };
    assert!(!err.contains("panicked"), "{args:?}: {err}");
    Run { status: status.code().unwrap_or(-1), out, err }
}

#[test]
fn a_model_answers_on_one_thread() {
    let whole = run(&mut spinetail(["generate", "pip", "--prompt", SPAIN, "--max-tokens", "4"])).ok();
    let args = ["generate", "pip", "--prompt", SPAIN, "--max-tokens", "4", "--threads", "3"];
    let alone = without_threads(&args);
    assert!(alone.err.contains("only 1 of 3 compute threads"), "{alone:?}");
    assert_eq!(alone.ok(), whole);
}

#[test]
fn machine_and_drive_are_measured_with_the_threads_there_are() {
    let doctor = without_threads(&["doctor", "pip", "--seconds", "0.2", "--json"]).json();
    assert_eq!(doctor["rates"][1]["threads"], 1, "{doctor}");
    let tried = doctor["drive"]["tried"].as_array().unwrap();
    assert!(!tried.is_empty() && tried.iter().all(|t| t["depth"] == 1), "{doctor}");
    assert_eq!(doctor["drive"]["chosen"]["depth"], 1, "{doctor}");
    let said = without_threads(&["doctor", "pip", "--seconds", "0.2"]).ok();
    assert!(said.contains("at most 1 at once: the system gives no more threads"), "{said}");
    let bench = without_threads(&["bench", "pip", "--decode", "1", "--runs", "1", "--json"]).json();
    assert_eq!(bench["threads"], 1, "{bench}");
}

#[test]
fn work_for_many_threads_is_done_by_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let trace = path("trace");
    without_threads(&["generate", "pip", "--prompt", SPAIN, "--max-tokens", "4", "--trace", &trace]).ok();
    let replayed =
        without_threads(&["replay", &trace, "--slots", "1MiB,2MiB,4MiB", "--policy", "lru", "--json"]).json();
    assert_eq!(replayed["results"].as_array().unwrap().len(), 3, "{replayed}");
    let checkpoint = std::fs::read_dir(fixture("")).unwrap().map(|e| e.unwrap().path());
    let checkpoint = checkpoint.into_iter().find(|p| p.join("config.json").is_file()).unwrap();
    let (from, to) = (checkpoint.display().to_string(), path("made.qpack"));
    without_threads(&["repack", &from, "--output", &to]).ok();
    without_threads(&["verify", &to]).ok();
}

#[test]
fn serving_and_fetching_say_that_they_need_threads() {
    let said = without_threads(&["serve", "pip", "--port", "0"]).refused(1);
    assert!(said.contains("needs 4 threads") && said.contains("ulimit -u"), "{said}");
    let said = without_threads(&["pull", "a/b", "--output", "/nonexistent/models"]).refused(1);
    assert!(said.contains("cannot start a thread to download with"), "{said}");
}
