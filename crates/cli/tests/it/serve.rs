//! The server as a program: its address, its log, its end.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use crate::common::{run, say, spinetail};

/// A server, ended with the test.
struct Served {
    child: Child,
    address: String,
}

impl Served {
    /// Starts on a port of the system's choosing and reads the address from standard error.
    fn start() -> (Self, BufReader<std::process::ChildStderr>) {
        Self::start_with(&mut spinetail(["serve", "pip", "--port", "0"]))
    }

    fn start_with(command: &mut Command) -> (Self, BufReader<std::process::ChildStderr>) {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut address = None;
        while address.is_none() {
            let mut line = String::new();
            assert!(log.read_line(&mut line).unwrap() > 0, "it ended before it listened");
            address =
                line.split_once("http://").and_then(|(_, rest)| Some(rest.split_once("/v1")?.0.to_owned()));
        }
        (Self { child, address: address.unwrap() }, log)
    }

    fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.address);
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn it_goes_on_when_nobody_reads_its_log() {
    let (served, log) = Served::start();
    assert!(served.get("/health").starts_with("HTTP/1.1 200"));
    drop(log);
    for _ in 0..3 {
        assert!(served.get("/health").starts_with("HTTP/1.1 200"));
        assert!(served.get("/v1/models").contains("\"pip\""));
    }
}

/// Ctrl-C keeps what was learned, also while a client is still answered.
#[cfg(unix)]
#[test]
fn what_was_learned_is_kept_at_the_end() {
    use rustix::process::{Pid, Signal, kill_process};
    let state = tempfile::tempdir().unwrap();
    let mut command = spinetail(["serve", "pip", "--port", "0", "--memory", "34MiB"]);
    let (mut served, _log) = Served::start_with(command.env("XDG_STATE_HOME", state.path()));
    let body = r#"{"prompt": "Once upon a time", "max_tokens": 2000, "stream": true, "stop": "never said"}"#;
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        served.address,
        body.len()
    );
    let mut stream = TcpStream::connect(&served.address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    stream.read_exact(&mut [0; 60_000]).unwrap();
    kill_process(Pid::from_child(&served.child), Signal::INT).unwrap();
    drop(stream);
    assert!(served.child.wait().unwrap().success());
    assert_eq!(std::fs::read_dir(state.path().join("spinetail/experts")).map_or(0, Iterator::count), 1);
}

#[test]
fn what_cannot_be_served_is_refused() {
    // An address that others can reach needs a key.
    say(["serve", "pip", "--host", "0.0.0.0", "--port", "0"]).refused(1);
    say(["serve", "pip", "--api-key-file", "/nonexistent/key"]).refused(1);
    say(["serve", "no-such-model"]).refused(1);
}

#[cfg(unix)]
#[test]
fn a_damaged_container_can_be_removed_and_a_link_cannot() {
    let folder = tempfile::tempdir().unwrap();
    let (bad, link) = (folder.path().join("bad.qpack"), folder.path().join("link.qpack"));
    std::fs::create_dir(&bad).unwrap();
    std::fs::write(bad.join("manifest.json"), "{").unwrap();
    std::os::unix::fs::symlink(&bad, &link).unwrap();
    let rm = |name: &str| run(spinetail(["rm", "--yes", name]).env("SPINETAIL_MODELS", folder.path()));
    assert!(rm("link").refused(1).contains("it is a link"));
    assert!(rm("bad").ok().contains("removed"));
    assert!(!bad.exists() && link.symlink_metadata().is_ok());
}

#[test]
fn what_cannot_be_removed_or_fetched_is_refused() {
    for name in ["pip", "..", ".", "/", "no-such-model"] {
        say(["rm", "--yes", name]).refused(1);
    }
    say(["pull", "acme/tiny", "--connections", "0"]).refused(2);
    let mut pull = spinetail(["pull", "acme/tiny", "--output", "/nonexistent/x.qpack"]);
    run(pull.env("HF_ENDPOINT", "http://127.0.0.1:9")).refused(1);
}
