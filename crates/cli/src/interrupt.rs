//! Ctrl-C in a conversation: it stops an answer, not the program.
//!
//! Must not be used by commands that are not conversations: there Ctrl-C ends the program, as everywhere.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};

/// Ctrl-C ends the program.
const IDLE: u8 = 0;
/// The line editor sees the key itself.
const PROMPT: u8 = 1;
/// An answer is being made. Each press counts one up.
const ANSWERING: u8 = 2;
/// So many presses say that stopping takes too long.
const IMPATIENT: u8 = ANSWERING + 3;

/// 128 and the number of SIGINT, as shells report it.
const STATUS: i32 = 130;

/// What a Ctrl-C means now.
#[derive(Clone)]
pub(crate) struct Interrupt(Arc<AtomicU8>);

impl Interrupt {
    /// Takes over Ctrl-C.
    pub(crate) fn install() -> Self {
        let state = Arc::new(AtomicU8::new(IDLE));
        let shared = Arc::clone(&state);
        // Where no handler can be set, Ctrl-C ends the program: worse, and no reason to refuse.
        let _ = ctrlc::set_handler(move || {
            let pressed =
                shared.fetch_update(SeqCst, SeqCst, |s| (s >= ANSWERING).then(|| s.saturating_add(1)));
            match pressed {
                Ok(before) if before + 1 < IMPATIENT => {}
                Err(PROMPT) => {}
                _ => leave(),
            }
        });
        Self(state)
    }

    /// The line editor is about to read.
    pub(crate) fn prompt(&self) {
        self.0.store(PROMPT, SeqCst);
    }

    /// An answer is about to be made.
    pub(crate) fn answering(&self) {
        self.0.store(ANSWERING, SeqCst);
    }

    /// Whether the answer is to be stopped.
    pub(crate) fn is_stopped(&self) -> bool {
        self.0.load(SeqCst) > ANSWERING
    }
}

fn leave() {
    let mut err = std::io::stderr();
    if err.is_terminal() {
        // An answer may have been dimmed.
        let _ = err.write_all(b"\x1b[0m\n");
    }
    std::process::exit(STATUS);
}
