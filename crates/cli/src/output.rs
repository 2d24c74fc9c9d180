//! What people see: errors, progress bars, and writing to a pipe that may close.

use std::borrow::Cow;
use std::io::{self, IsTerminal, StdoutLock, Write};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use spinetail_engine::{Answer, Engine};

use crate::units::size;

/// Work that takes longer than this gets a bar.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often a bar that is shown is drawn anew, though nothing has come.
const TICK: Duration = Duration::from_millis(250);

/// Prints an error: one line what, one line how to mend it where the message has one.
pub(crate) fn error(e: &anyhow::Error) {
    let message = format!("{e:#}");
    // Our messages end in "; do this": that part goes on a line of its own.
    let text = match message.rsplit_once("; ") {
        Some((what, fix)) => format!("error: {what}\n  {fix}\n"),
        None => format!("error: {message}\n"),
    };
    note(&text);
}

/// Shows warnings of the libraries on standard error, a line each: what goes on in another way than was asked for.
pub(crate) fn warnings_to_stderr() {
    let lines = tracing_subscriber::fmt().without_time().with_target(false).with_ansi(false);
    // Only a second one can fail.
    let _ = lines
        .with_max_level(tracing_subscriber::filter::LevelFilter::WARN)
        .with_writer(io::stderr)
        .try_init();
}

/// Prints to standard error. Nobody is left to tell if that is closed.
pub(crate) fn note(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Text of the model. On a terminal its control characters are shown as signs, not obeyed.
pub(crate) fn printable(text: &str, terminal: bool) -> Cow<'_, str> {
    let commands = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    if terminal && text.contains(commands) {
        Cow::Owned(text.replace(commands, "\u{FFFD}"))
    } else {
        Cow::Borrowed(text)
    }
}

/// Whether the reader of our output has gone away.
pub(crate) fn is_broken_pipe(e: &anyhow::Error) -> bool {
    e.chain().any(|c| c.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe))
}

/// Standard output, whose errors say that it is standard output.
pub(crate) struct Out(StdoutLock<'static>);

pub(crate) fn out() -> Out {
    Out(io::stdout().lock())
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(named)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(named)
    }
}

fn named(e: io::Error) -> io::Error {
    // `write_all` goes on after this one.
    if e.kind() == io::ErrorKind::Interrupted {
        return e;
    }
    io::Error::new(e.kind(), format!("cannot write to standard output: {e}; make room, or send it elsewhere"))
}

/// A bar on standard error for work that may take long: shown where somebody looks, after a second, until dropped.
pub(crate) struct Bar {
    bar: ProgressBar,
    /// Tells the thread that would show the bar that the work is done.
    _done: Option<Sender<()>>,
}

impl Bar {
    pub(crate) fn bytes(message: &'static str) -> Self {
        Self::new(message, "{binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta} left")
    }

    pub(crate) fn tokens(message: &'static str) -> Self {
        Self::new(message, "{pos}/{len} tokens {eta} left")
    }

    pub(crate) fn records(message: &'static str) -> Self {
        Self::new(message, "{pos}/{len} {eta} left")
    }

    fn new(message: &'static str, counts: &str) -> Self {
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::hidden());
        if !io::stderr().is_terminal() {
            return Self { bar, _done: None };
        }
        if let Ok(style) = ProgressStyle::with_template(&format!("{{msg}} {{bar:30}} {counts}")) {
            bar.set_style(style);
        }
        bar.set_message(message);
        let (done, waits) = channel::<()>();
        let later = bar.clone();
        // Where the system gives no thread there is no bar.
        let _ = std::thread::Builder::new().spawn(move || {
            let waits =
                |time| waits.recv_timeout(time) == Err(RecvTimeoutError::Timeout) && !later.is_finished();
            if waits(PATIENCE) {
                later.set_draw_target(ProgressDrawTarget::stderr_with_hz(8));
                while waits(TICK) {
                    later.tick();
                }
            }
        });
        Self { bar, _done: Some(done) }
    }

    pub(crate) fn set(&self, done: u64, total: u64) {
        self.bar.set_length(total);
        self.bar.set_position(done);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Prints how an answer went, to standard error.
pub(crate) fn stats(engine: &Engine, answer: &Answer) {
    let store = engine.store_stats();
    note(&format!(
        "{} prompt tokens ({} kept) at {:.1}/s, first token after {:.0} ms, {} generated at {:.1}/s\n\
         experts: {} hits, {} late, {} misses, {} read ({} ahead in vain), {:.1} s waited; peak memory {} of {}\n\
         {}\n",
        answer.prompt_tokens,
        answer.kept_tokens,
        answer.prefill_tokens_per_second(),
        answer.first_token.as_secs_f64() * 1e3,
        answer.tokens.len(),
        answer.decode_tokens_per_second(),
        store.hits,
        store.late,
        store.misses,
        size(store.bytes_read),
        size(store.wasted_bytes),
        store.read_wait_ns as f64 / 1e9,
        peak_rss_bytes().map_or_else(|| "unknown".to_owned(), size),
        size(engine.plan().total_bytes()),
        page_cache(engine),
    ));
}

/// What the system's page cache holds of the model, which is in nobody's budget.
pub(crate) fn page_cache(engine: &Engine) -> String {
    let bytes = engine.page_cache_bytes().map_or_else(|| "unknown".to_owned(), size);
    format!("page cache: {bytes} of the model's files, beside the budget")
}

/// Makes the kernel begin anew with [`peak_rss_bytes`], where it can: what was measured before the model is not the model's.
pub(crate) fn forget_peak_rss() {
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// The kernel's own figure for the most memory this process has had resident; `None` where the system has no such file.
pub(crate) fn peak_rss_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kb| kb * 1024)
}
