//! Inputs that are wrong, huge or not there: one line what, one line how to mend it.

use std::fs;

use crate::common::{run, run_with_input, say, spinetail};

#[test]
fn prompts_that_are_none() {
    say(["generate", "--prompt", ""]).refused(1);
    let folder = tempfile::tempdir().unwrap();
    let refused = run(spinetail(["generate", "--prompt-file"]).arg(folder.path())).refused(1);
    assert!(refused.contains("directory"), "{refused}");
    say(["generate", "--prompt-file", "/no/such/file"]).refused(1);
    let latin = folder.path().join("latin1.txt");
    fs::write(&latin, b"caf\xE9").unwrap();
    let refused = run(spinetail(["generate", "--prompt-file"]).arg(&latin)).refused(1);
    assert!(refused.contains("latin1.txt is not UTF-8"), "{refused}");
    run_with_input(&mut spinetail(["chat", "pip"]), b"caf\xE9\n").refused(1);
}

#[test]
fn prompts_that_are_too_long() {
    let text = "a b ".repeat(100_000);
    let mut command = spinetail(["generate", "--prompt-file", "-"]);
    assert!(run_with_input(&mut command, text.as_bytes()).refused(1).contains("context of 4096"));
    assert!(run_with_input(&mut spinetail(["chat"]), text.as_bytes()).refused(1).contains("context of 4096"));
    let mut command = spinetail(["generate", "--chat", "--prompt-file", "-", "--context", "64"]);
    run_with_input(&mut command, &text.as_bytes()[..1000]).refused(1);
}

/// What is certainly too long is refused by its bytes alone: rendering and encoding it would take many times its memory.
#[test]
fn prompts_that_are_certainly_too_long() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prompt");
    fs::write(&file, "a b ".repeat(2_000_000)).unwrap();
    let least = |flags: &[&str]| -> u64 {
        let refused = run(spinetail(["generate", "--prompt-file"]).arg(&file).args(flags)).refused(1);
        assert!(refused.contains("context of 4096"), "{refused}");
        let (_, rest) = refused.split_once("at least ").unwrap_or_else(|| panic!("{refused}"));
        rest.split_once(' ').unwrap().0.parse().unwrap()
    };
    // Encoding ends at twice the context: a larger figure is from no tokens.
    assert!(least(&[]) > 8193);
    assert!(least(&["--chat"]) > 8193);
    // What may fit is encoded, and no further than that it does not.
    fs::write(&file, "a b ".repeat(8000)).unwrap();
    assert_eq!(least(&[]), 8193);
    assert_eq!(least(&["--chat"]), 8193);
    // White space that a template leaves out is no token.
    fs::write(&file, " ".repeat(1 << 20)).unwrap();
    run(spinetail(["generate", "--chat", "--max-tokens", "1", "--prompt-file"]).arg(&file)).ok();
}

/// A file without an end is not read to it.
#[cfg(unix)]
#[test]
fn prompts_without_an_end() {
    assert!(say(["generate", "--prompt-file", "/dev/zero"]).refused(1).contains("too large"));
}

#[test]
fn contexts_that_cannot_be() {
    say(["generate", "--prompt", "a", "--context", "0"]).refused(2);
    say(["generate", "--prompt", "a", "--context", "4000000000"]).refused(1);
    say(["generate", "--prompt", "a", "--memory", "1MiB"]).refused(1);
    // The answer ends where the context does.
    let object = say(["generate", "--prompt", "Once upon", "--context", "8", "--json"]).json();
    assert_eq!((&object["finish_reason"], object["prompt_tokens"].as_u64()), (&"length".into(), Some(2)));
    assert_eq!(object["generated_tokens"], 6, "prompt and answer share the context");
    // Another processor's instruction set is refused, not replaced.
    let foreign = if cfg!(target_arch = "x86_64") { "neon" } else { "avx2" };
    say(["generate", "--prompt", "a", "--isa", foreign]).refused(1);
    let none = say(["generate", "--prompt", "Once upon", "--max-tokens", "0", "--json"]).json();
    assert_eq!((&none["text"], &none["generated_tokens"]), (&"".into(), &0.into()));
}

/// What is said to be the least is enough, wherever it is said.
#[test]
fn the_least_memory_is_enough() {
    for context in ["64", "3000"] {
        let said = [
            say(["inspect", "pip", "--context", context]).ok(),
            say(["generate", "--prompt", "a", "--memory", "1MiB", "--context", context]).refused(1),
        ];
        let least = said.map(|text| {
            let (_, rest) = text.split_once("at least ").expect("the least");
            rest.split_once(" MiB").expect("mebibytes").0.parse::<u64>().unwrap()
        });
        assert_eq!(least[0], least[1]);
        let with = |mib: u64| {
            let memory = format!("--memory={mib}MiB");
            say(["generate", "--prompt", "a", "--max-tokens", "1", &memory, "--context", context])
        };
        with(least[0]).ok();
        with(least[0] - 1).refused(1);
    }
}

#[test]
fn models_that_are_none() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "no model").unwrap();
    let manifest = folder.path().join("broken");
    fs::create_dir(&manifest).unwrap();
    fs::write(manifest.join("manifest.json"), "{").unwrap();
    for model in [file.as_path(), folder.path(), &manifest, "/no/such/model".as_ref(), "no-name".as_ref()] {
        for command in ["generate", "logits", "inspect", "verify", "chat"] {
            let mut command = spinetail([command]);
            command.arg(model);
            let extra: &[&str] = match command.get_args().next().and_then(|c| c.to_str()) {
                Some("generate") => &["--prompt", "a"],
                Some("chat") => &["Hi"],
                Some("logits") => &["--tokens", "1", "--output", "/nonexistent/x"],
                _ => &[],
            };
            let run = run(command.args(extra));
            assert!(run.status == 1 && run.out.is_empty(), "{command:?} {run:?}");
            assert!(run.err.starts_with("error: ") && !run.err.contains("panicked"), "{command:?} {run:?}");
            assert_eq!(run.err.lines().count(), 2, "{command:?} {run:?}");
        }
    }
}

#[test]
fn an_empty_name_is_a_wrong_argument() {
    say(["inspect", ""]).refused(2);
}

#[test]
fn outputs_that_cannot_be() {
    let folder = tempfile::tempdir().unwrap();
    let logits = |output: &std::path::Path, tokens: &str| {
        run(spinetail(["logits", "pip", "--tokens", tokens, "--output"]).arg(output))
    };
    logits("/no/such/folder/x".as_ref(), "1").refused(1);
    logits(folder.path(), "1").refused(1);
    let output = folder.path().join("x");
    logits(&output, "6144").refused(1);
    logits(&output, "").refused(2);
    logits(&output, "1,x").refused(2);
    assert!(!output.exists());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// What is there and no file, such as a device, is not replaced by one.
#[cfg(unix)]
#[test]
fn devices_are_left_alone() {
    use std::os::unix::fs::FileTypeExt;
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let refused = run(spinetail(["logits", "pip", "--tokens", "1", "--output"]).arg(&socket)).refused(1);
    assert!(refused.contains("not a regular file"), "{refused}");
    assert!(fs::metadata(&socket).unwrap().file_type().is_socket());
}
