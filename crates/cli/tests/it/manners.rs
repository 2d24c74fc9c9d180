//! Closed pipes, full disks, wrong flags, help, completions, manual pages. Case A26.

use std::fs::{self, OpenOptions};
use std::io::Read;
use std::process::Stdio;

use crate::common::{SPAIN, run, run_with_input, say, spinetail};

/// Reads so many bytes of the output, closes the pipe, and expects a quiet end.
#[cfg(unix)]
#[track_caller]
fn read_and_leave(args: &[&str], bytes: usize) {
    use std::os::unix::process::ExitStatusExt;
    let mut child = spinetail(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut seen = vec![0; bytes];
    child.stdout.take().unwrap().read_exact(&mut seen).unwrap();
    let output = child.wait_with_output().unwrap();
    let quiet = output.status.code() == Some(0) || output.status.signal() == Some(13);
    assert!(quiet && output.stderr.is_empty(), "{args:?} {output:?}");
}

#[cfg(unix)]
#[test]
fn a_reader_may_leave() {
    read_and_leave(&["inspect", "pip"], 1);
    read_and_leave(&["generate", "pip", "--prompt", "Once upon", "--max-tokens", "200"], 5);
    read_and_leave(&["chat", "pip", SPAIN, SPAIN, SPAIN], 5);
    read_and_leave(&["completions", "bash"], 5);
    read_and_leave(&["help"], 1);
    read_and_leave(&["list"], 1);
}

#[test]
fn no_input_is_no_question() {
    let run = say(["chat", "pip"]);
    assert_eq!((run.status, run.out.as_str(), run.err.as_str()), (0, "", ""));
}

#[test]
fn a_line_without_an_end_is_answered() {
    let out = run_with_input(&mut spinetail(["chat", "pip"]), SPAIN.as_bytes()).ok();
    assert!(out.contains("Madrid") && !out.contains("> "), "{out}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error() {
    let all: [&[&str]; 7] = [
        &["list"],
        &["inspect", "pip"],
        &["verify", "pip"],
        &["help"],
        &["completions", "zsh"],
        &["generate", "pip", "--prompt", "Once", "--max-tokens", "2"],
        &["generate", "pip", "--prompt", "Once", "--max-tokens", "2", "--json"],
    ];
    for args in all {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = spinetail(args).stdout(full).stderr(Stdio::piped()).output().unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?} {err}");
        assert!(
            err.starts_with("error: cannot write to standard output: ") && err.lines().count() == 2,
            "{err}"
        );
    }
}

#[test]
fn wrong_flags_are_refused_by_name() {
    let wrong: [(&[&str], &str); 9] = [
        (&[], "Usage"),
        (&["dance"], "dance"),
        (&["generate", "--prompt", "a", "--temprature", "1"], "--temprature"),
        (&["generate"], "--prompt"),
        (&["generate", "--prompt", "a", "--prompt-file", "b"], "--prompt-file"),
        (&["generate", "--prompt", "a", "--system", "b"], "--chat"),
        (&["generate", "--prompt", "a", "--max-tokens", "-1"], "--max-tokens"),
        (&["generate", "--prompt", "a", "--memory", "4 pounds"], "--memory"),
        (&["chat", "pip", "Hi", "--seed", "soon"], "--seed"),
    ];
    for (args, name) in wrong {
        let run = say(args);
        assert!(run.status == 2 && run.out.is_empty() && run.err.contains(name), "{args:?} {run:?}");
    }
}

#[test]
fn fast_is_the_default_and_exact_is_asked_for() {
    let said = |flags: &[&str]| {
        let run = say(["generate", "--prompt", "a", "--max-tokens", "1", "--verbose"].iter().chain(flags));
        run.err.lines().find(|l| l.starts_with("precision")).expect("a line").to_owned()
    };
    assert!(said(&[]).contains("fast"));
    assert!(said(&["--precision", "exact"]).contains("exact"));
    // Keys and values are half as large.
    let kv = |precision: &str| {
        let out = say(["inspect", "pip", "--precision", precision]).ok();
        out.lines().find(|l| l.trim_start().starts_with("KV cache")).expect("a line").to_owned()
    };
    assert!(
        kv("fast").contains("4.00 MiB") && kv("exact").contains("8.00 MiB"),
        "{} {}",
        kv("fast"),
        kv("exact")
    );
}

#[test]
fn help_and_version() {
    assert!(say(["--version"]).ok().starts_with("spinetail 0."));
    let help = say(["help", "generate"]).ok();
    for flag in ["--temperature", "--stop", "--seed", "--memory", "--prompt-file", "--json"] {
        assert!(help.contains(flag), "{flag}");
    }
}

#[test]
fn completions_and_manual_pages_know_the_flags() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = say(["completions", shell]).ok();
        assert!(script.contains("presence-penalty") && script.contains("perplexity"), "{shell}");
    }
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man pages/man1");
    say([&"man".into(), &"--output".into(), &pages.clone().into_os_string()]).ok();
    let page = fs::read_to_string(pages.join("spinetail-generate.1")).unwrap();
    assert!(page.contains("presence\\-penalty"));
    assert!(pages.join("spinetail.1").is_file());
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    run(spinetail(["man", "--output"]).arg(&file)).refused(1);
}

#[cfg(unix)]
#[test]
fn arguments_that_are_not_text() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let odd = OsStr::from_bytes(b"a\xFFb");
    let refused = run(spinetail(["generate", "--prompt"]).arg(odd)).refused(2);
    assert!(refused.contains("UTF-8"), "{refused}");
    // Names of files need not be text.
    let folder = tempfile::tempdir().unwrap();
    let (prompt, model, output) = (
        folder.path().join(odd),
        folder.path().join(OsStr::from_bytes(b"m \xFE")),
        folder.path().join(OsStr::from_bytes(b"o\xFD")),
    );
    fs::write(&prompt, "Once upon").unwrap();
    std::os::unix::fs::symlink(crate::common::repository().join("models/pip.qpack"), &model).unwrap();
    let mut command = spinetail(["generate"]);
    command.arg(&model).arg("--prompt-file").arg(&prompt).args(["--max-tokens", "2"]);
    run(&mut command).ok();
    run(spinetail(["logits"]).arg(&model).args(["--tokens", "1,2", "--output"]).arg(&output)).ok();
    assert!(output.is_file());
}
