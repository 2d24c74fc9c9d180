//! `chat` on a terminal of our own: what is typed, what is shown, Ctrl-C and Ctrl-D.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Child;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::common::{SPAIN, spinetail};

/// Debug builds on a busy machine are slow; only a failure takes this long.
const PATIENCE: Duration = Duration::from_secs(60);
const CTRL_C: &str = "\x03";
const CTRL_D: &str = "\x04";

struct Terminal {
    child: Child,
    keyboard: File,
    screen: Receiver<Vec<u8>>,
    /// What has been shown and not yet been expected.
    shown: String,
    /// All that has been shown.
    log: String,
}

impl Terminal {
    fn open(home: &Path, flags: &[&str], vars: &[(&str, &str)]) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let size = Winsize { ws_row: 40, ws_col: 200, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&master, size).unwrap();
        let slave =
            OpenOptions::new().read(true).write(true).open(OsStr::from_bytes(name.to_bytes())).unwrap();
        let mut command = spinetail(["chat", "pip", "--temperature", "0"].iter().chain(flags));
        command
            .env("HOME", home)
            .env_remove("XDG_STATE_HOME")
            .env("TERM", "xterm")
            .envs(vars.iter().copied());
        command.stdin(slave.try_clone().unwrap()).stdout(slave.try_clone().unwrap()).stderr(slave);
        let child = command.spawn().unwrap();
        // The command holds our ends of the child's terminal: they have to go for its end to be seen.
        drop(command);
        let keyboard = File::from(master);
        let mut reader = keyboard.try_clone().unwrap();
        let (sender, screen) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // Linux ends a terminal that nobody has open any more with an error.
            while let Ok(n @ 1..) = reader.read(&mut buffer) {
                if sender.send(buffer[..n].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self { child, keyboard, screen, shown: String::new(), log: String::new() }
    }

    fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until `text` is shown; what came before it is returned, and both are done with.
    #[track_caller]
    fn expect(&mut self, text: &str) -> String {
        let start = Instant::now();
        loop {
            if let Some(at) = self.shown.find(text) {
                let rest = self.shown.split_off(at + text.len());
                return std::mem::replace(&mut self.shown, rest);
            }
            match self.screen.recv_timeout(Duration::from_millis(100)) {
                Ok(bytes) => {
                    let text = String::from_utf8_lossy(&bytes);
                    self.shown.push_str(&text);
                    self.log.push_str(&text);
                }
                Err(RecvTimeoutError::Timeout) if start.elapsed() < PATIENCE => {}
                _ => panic!("expected {text:?}, found {:?}\nafter {:?}", self.shown, self.log),
            }
        }
    }

    /// Asks, and gives what was shown up to the next prompt.
    #[track_caller]
    fn ask(&mut self, question: &str, answer: &str) -> String {
        self.press(&format!("{question}\r"));
        let mut shown = self.expect(answer);
        shown.push_str(&self.expect("\n"));
        self.prompt();
        shown
    }

    /// The editor is ready when it has turned bracketed paste on.
    #[track_caller]
    fn prompt(&mut self) {
        self.expect("\x1b[?2004h");
        self.expect("> ");
    }

    #[track_caller]
    fn status(mut self) -> i32 {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code().unwrap_or(-1);
            }
            assert!(start.elapsed() < PATIENCE, "it does not end: {:?}", self.log);
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // A failed test must not leave it waiting for ever.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What was said, as `/save` writes it: role and text.
fn saved(file: &Path) -> Vec<(String, String)> {
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let text = |m: &serde_json::Value, key: &str| m[key].as_str().unwrap().to_owned();
    json["messages"].as_array().unwrap().iter().map(|m| (text(m, "role"), text(m, "content"))).collect()
}

#[test]
fn a_conversation() {
    let home = tempfile::tempdir().unwrap();
    let mut terminal = Terminal::open(home.path(), &[], &[]);
    terminal.prompt();
    terminal.ask(SPAIN, "The capital of Spain is Madrid.");
    terminal.ask("And of France?", "The capital of France is Paris.");
    // A follow-up has read only what is new.
    let stats = terminal.ask("/stats", "positions used");
    let kept = stats.split_once(" kept)").unwrap().0.rsplit('(').next().unwrap();
    assert!(kept.parse::<usize>().unwrap() > 10, "{stats}");
    terminal.ask("/dance", "there is no /dance");
    terminal.ask("/help", "/thoughts");

    // Several lines: by backslash, between quotes, and pasted.
    terminal.press("One \\\r");
    terminal.ask("two", "\r\n");
    terminal.press("\"\"\"\rthree \\\rfour\r");
    terminal.ask("\"\"\"", "\r\n");
    terminal.ask("\x1b[200~five\nsix\x1b[201~", "\r\n");
    let file = home.path().join("said here.json");
    terminal.ask(&format!("/save {}", file.display()), "saved to");
    terminal.ask(&format!("/save {}", file.display()), "give the name of a new file");
    let messages = saved(&file);
    let users: Vec<&str> = messages.iter().filter(|m| m.0 == "user").map(|m| m.1.as_str()).collect();
    assert_eq!(users, [SPAIN, "And of France?", "One \ntwo", "three \\\nfour", "five\nsix"]);

    // After a reset nothing is left but the system message.
    terminal.ask("/system Answer in one word.", "set; ");
    terminal.ask("/reset", "forgotten");
    let file = home.path().join("again.json");
    terminal.ask(&format!("/save {}", file.display()), "saved to");
    assert_eq!(saved(&file), [("system".to_owned(), "Answer in one word.".to_owned())]);
    terminal.press(CTRL_D);
    assert_eq!(terminal.status(), 0);
    let history = std::fs::read_to_string(home.path().join(".local/state/spinetail/history"));
    if cfg!(target_os = "linux") {
        assert!(history.unwrap().contains(SPAIN));
    }
}

#[test]
fn thoughts_are_dimmed_and_folded() {
    let home = tempfile::tempdir().unwrap();
    let mut terminal = Terminal::open(home.path(), &["--thinking", "on", "--history", "off"], &[]);
    terminal.prompt();
    let shown = terminal.ask(SPAIN, "The capital of Spain is Madrid.");
    let (thoughts, _) = shown.split_once("\x1b[0m").unwrap();
    assert!(thoughts.contains("\x1b[2mThe user asks"), "{shown:?}");
    terminal.ask("/thoughts hide", "thoughts folded");
    let shown = terminal.ask(SPAIN, "The capital of Spain is Madrid.");
    assert!(shown.contains("thinking… 1 token") && shown.contains("\x1b[2mthought for "), "{shown:?}");
    assert!(!shown.contains("The user asks"), "{shown:?}");
    terminal.ask("/thoughts", "The user asks");
    terminal.ask("/thinking off", "answers at once");
    let shown = terminal.ask(SPAIN, "Madrid");
    assert!(!shown.contains("\x1b[2m"), "{shown:?}");
    terminal.press("/exit\r");
    assert_eq!(terminal.status(), 0);
    assert!(!home.path().join(".local").exists());
}

#[test]
fn no_colours_where_they_are_not_wanted() {
    let home = tempfile::tempdir().unwrap();
    let mut terminal = Terminal::open(home.path(), &["--thinking", "on"], &[("NO_COLOR", "1")]);
    terminal.prompt();
    let shown = terminal.ask(SPAIN, "The capital of Spain is Madrid.");
    assert!(shown.contains("<think>") && !shown.contains("\x1b[2m"), "{shown:?}");
}

/// Ctrl-C stops an answer and keeps the conversation; at the prompt it drops the line, and leaves the second time.
#[test]
fn control_c() {
    let home = tempfile::tempdir().unwrap();
    // A penalty that rewards: a story that goes round in circles and does not end before it is stopped.
    let endless = ["--frequency-penalty", "-2", "--max-tokens", "3000"];
    let mut terminal = Terminal::open(home.path(), &endless, &[]);
    terminal.prompt();
    terminal.press("Tell me a long story about a dog, a cat and a boat.\r");
    terminal.expect("boat.\x1b[?2004l\r\n");
    // Once it speaks.
    while !terminal.shown.contains(' ') {
        terminal.expect("");
        let bytes = terminal.screen.recv_timeout(PATIENCE).unwrap();
        terminal.shown.push_str(&String::from_utf8_lossy(&bytes));
    }
    let pid = Pid::from_child(&terminal.child);
    kill_process(pid, Signal::INT).unwrap();
    terminal.expect("stopped");
    terminal.prompt();
    terminal.ask(SPAIN, "Madrid");
    let file = home.path().join("said.json");
    terminal.ask(&format!("/save {}", file.display()), "saved to");
    let messages = saved(&file);
    assert_eq!(messages.len(), 4, "{messages:?}");
    assert!(!messages[1].1.is_empty(), "{messages:?}");
    terminal.press("half a li");
    terminal.press(CTRL_C);
    terminal.expect("Ctrl-C again leaves");
    terminal.prompt();
    terminal.press(CTRL_C);
    assert_eq!(terminal.status(), 0);
}
