//! Running the binary, away from the settings of whoever runs the tests.

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub(crate) const SPAIN: &str = "What is the capital of Spain?";

/// What a run came to.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) status: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Run {
    /// Standard output of a run that succeeded.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.status, 0, "{self:?}");
        self.out
    }

    /// Standard error of a run that failed with `status` and kept standard output clean: a line of what and, unless
    /// the arguments were wrong, a line of how to mend it. No panic has such a form.
    #[track_caller]
    pub(crate) fn refused(self, status: i32) -> String {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.out, "", "{self:?}");
        assert!(self.err.starts_with("error: ") && !self.err.contains("panicked"), "{self:?}");
        if status == 1 {
            let lines: Vec<&str> = self.err.lines().collect();
            assert!(lines.len() == 2 && lines[1].starts_with("  "), "{self:?}");
        }
        self.err
    }

    /// The object on standard output.
    #[track_caller]
    pub(crate) fn json(self) -> serde_json::Value {
        serde_json::from_str(&self.ok()).expect("one JSON object on standard output")
    }
}

/// The binary with arguments, without anybody's configuration, and without input.
pub(crate) fn spinetail<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(args: I) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spinetail"));
    command
        .args(args)
        .env_clear()
        .env("HOME", "/nonexistent")
        .env("XDG_STATE_HOME", "/proc/nowhere")
        .stdin(Stdio::null());
    command
}

#[track_caller]
pub(crate) fn run(command: &mut Command) -> Run {
    let output = command.stdout(Stdio::piped()).stderr(Stdio::piped()).output().expect("the binary runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8 output");
    Run { status: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr) }
}

#[track_caller]
pub(crate) fn run_with_input(command: &mut Command, input: &[u8]) -> Run {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    // A program that ends without reading its input closes the pipe.
    let _ = child.stdin.take().expect("a pipe").write_all(input);
    let output = child.wait_with_output().expect("the binary ends");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8 output");
    Run { status: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr) }
}

/// `spinetail ARGS…` in one line.
#[track_caller]
pub(crate) fn say<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(args: I) -> Run {
    run(&mut spinetail(args))
}

pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A small checkpoint folder, unconverted.
pub(crate) fn fixture(name: &str) -> PathBuf {
    repository().join("fixtures/parity").join(name)
}

/// A file or folder of the larger material, or `None`, having said so, where it is not.
pub(crate) fn shared(path: &str) -> Option<PathBuf> {
    let found = repository().join("../shared").join(path);
    if !found.exists() {
        #[allow(clippy::print_stderr)]
        {
            eprintln!("skipped: no ../shared/{path}");
        }
        return None;
    }
    Some(found)
}

/// The unconverted 16-bit folder of the shipped model.
pub(crate) fn pip16() -> Option<PathBuf> {
    shared("models/pip")
}
