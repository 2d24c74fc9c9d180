//! What the system refuses or has little of: threads, open files, address space, memory.

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
    without_threads(&["repack", "--source", &from, "--output", &to, "--bits", "16"]).ok();
    without_threads(&["verify", &to]).ok();
}

#[test]
fn serving_and_fetching_say_that_they_need_threads() {
    let said = without_threads(&["serve", "pip", "--port", "0"]).refused(1);
    assert!(said.contains("needs 4 threads") && said.contains("ulimit -u"), "{said}");
    let said = without_threads(&["pull", "a/b", "--output", "/nonexistent/models"]).refused(1);
    assert!(said.contains("cannot start a thread to download with"), "{said}");
}

/// Runs with a limit of the shell's `ulimit`, which takes a flag and a number.
#[track_caller]
fn limited(limit: &str, args: &[&str]) -> Run {
    let mut shell = std::process::Command::new("/bin/sh");
    shell
        .args(["-c", &format!("ulimit {limit} && exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_spinetail")])
        .args(args);
    shell.env_clear().env("HOME", "/nonexistent").env("XDG_STATE_HOME", "/proc/nowhere");
    run(shell.stdin(std::process::Stdio::null()))
}

const SHORT: [&str; 6] = ["generate", "pip", "--prompt", SPAIN, "--max-tokens", "4"];

#[test]
fn files_are_opened_once_and_the_number_is_named_where_it_is_too_large() {
    // Ten large files, each open for direct and for other reads.
    limited("-n 30", &SHORT).ok();
    let said = limited("-n 12", &SHORT).refused(1);
    assert!(
        said.contains("10 large files need up to 52 open files") && said.contains("ulimit -n 52"),
        "{said}"
    );
}

#[test]
fn a_limit_of_address_space_is_heeded_and_named() {
    // The budget that nobody gave fits.
    let whole = run(&mut spinetail(SHORT)).ok();
    let args = [&SHORT[..], &["--threads", "2"]].concat();
    assert_eq!(limited("-v 200000", &args).ok(), whole);
    // Stacks of threads are address space, too.
    let said = limited("-v 200000", &[&SHORT[..], &["--threads", "60"]].concat()).refused(1);
    assert!(
        said.contains("of address space") && said.contains("195 MiB") && said.contains("ulimit -v"),
        "{said}"
    );
}

#[test]
fn threads_are_in_the_budget() {
    let least = |threads: &str| -> u64 {
        let said =
            run(&mut spinetail(["inspect", "pip", "--memory", "1MiB", "--threads", threads])).refused(1);
        let (_, rest) = said.split_once("at least ").unwrap();
        rest.split_once(" MiB").unwrap().0.parse().unwrap()
    };
    // 10 KiB of memory each were measured, and what the kernel has for them beside.
    let (few, many) = (least("1"), least("257"));
    assert!(many >= few + 256 * 10 / 1024, "{few} {many}");
    let memory = format!("{many}MiB");
    let args = [&SHORT[..], &["--threads", "257", "--memory", &memory, "--json"]].concat();
    let peak = run(&mut spinetail(args)).json()["peak_rss_bytes"].as_u64().unwrap();
    assert!(peak <= many << 20, "{peak} of {many} MiB");
}

#[test]
fn rates_are_measured_within_the_budget() {
    let args = ["bench", "pip", "--memory", "40MiB", "--decode", "1", "--runs", "1"];
    let bench = run(spinetail(args).arg("--json")).json();
    let number = |field: &str| bench[field].as_u64().unwrap();
    assert!(number("rates_buffer_bytes") <= 24 << 20, "{bench}");
    // What was taken to measure is gone when the model comes.
    assert!(number("peak_rss_bytes") <= number("budget_bytes"), "{bench}");
    let said = run(&mut spinetail(args)).ok();
    assert_eq!(said.contains("which a cache may hold"), bench["rates_cached"] == true, "{said}");
    assert!(said.contains("page cache: "), "{said}");
    assert!(bench["page_cache_bytes"].is_u64() || bench["page_cache_bytes"].is_null(), "{bench}");
}
