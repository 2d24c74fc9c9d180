//! Ctrl-C while a model answers: it stops the answer, so that what the run has learned and recorded is kept. At a
//! terminal the conversation goes on; elsewhere the program ends with [`Interrupted`].
//!
//! Must not be used by commands that do not answer: there Ctrl-C ends the program at once, as everywhere.

use std::fmt;
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};

use spinetail_engine::Engine;

/// Ctrl-C ends the program.
const IDLE: u8 = 0;
/// The line editor sees the key itself.
const PROMPT: u8 = 1;
/// An answer is being made. Each press counts one up.
const ANSWERING: u8 = 2;
/// So many presses say that stopping takes too long.
const IMPATIENT: u8 = ANSWERING + 3;

/// 128 and the number of SIGINT, as shells report it.
pub(crate) const STATUS: u8 = 130;

/// The program ends because somebody pressed Ctrl-C, who needs not be told.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// What a Ctrl-C means now.
#[derive(Clone)]
pub(crate) struct Interrupt(Arc<Shared>);

struct Shared {
    state: AtomicU8,
    /// What has something to remember.
    engine: OnceLock<Engine>,
}

impl Interrupt {
    /// Takes over Ctrl-C.
    pub(crate) fn install() -> Self {
        let this = Self(Arc::new(Shared { state: AtomicU8::new(IDLE), engine: OnceLock::new() }));
        let shared = Arc::clone(&this.0);
        // Where no handler can be set, Ctrl-C ends the program: worse, and no reason to refuse.
        let _ = ctrlc::set_handler(move || {
            let pressed =
                shared.state.fetch_update(SeqCst, SeqCst, |s| (s >= ANSWERING).then(|| s.saturating_add(1)));
            match pressed {
                Ok(before) if before + 1 < IMPATIENT => {}
                Err(PROMPT) => {}
                _ => leave(shared.engine.get()),
            }
        });
        this
    }

    /// What this engine has learned is to be kept, too, if Ctrl-C ends the program while no answer is made.
    pub(crate) fn remember(&self, engine: &Engine) {
        let _ = self.0.engine.set(engine.clone());
    }

    /// No answer is made, and nobody looks at keys.
    pub(crate) fn idle(&self) {
        self.0.state.store(IDLE, SeqCst);
    }

    /// The line editor is about to read.
    pub(crate) fn prompt(&self) {
        self.0.state.store(PROMPT, SeqCst);
    }

    /// An answer is about to be made.
    pub(crate) fn answering(&self) {
        self.0.state.store(ANSWERING, SeqCst);
    }

    /// Whether the answer is to be stopped.
    pub(crate) fn is_stopped(&self) -> bool {
        self.0.state.load(SeqCst) > ANSWERING
    }
}

fn leave(engine: Option<&Engine>) {
    if let Some(engine) = engine {
        engine.remember_experts();
    }
    let mut err = std::io::stderr();
    if err.is_terminal() {
        // An answer may have been dimmed.
        let _ = err.write_all(b"\x1b[0m\n");
    }
    std::process::exit(i32::from(STATUS));
}
