//! What people see: errors, progress bars, and writing to a pipe that may close.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use spinetail_engine::{Answer, Engine};

use crate::units::size;

/// Prints an error: one line what, one line how to mend it where the message has one.
pub(crate) fn error(e: &anyhow::Error) {
    let message = format!("{e:#}");
    // Our messages end in "; do this": that part goes on a line of its own.
    let text = match message.rsplit_once("; ") {
        Some((what, fix)) => format!("error: {what}\n  {fix}\n"),
        None => format!("error: {message}\n"),
    };
    // Nobody is left to tell if standard error is closed.
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Whether the reader of our output has gone away.
pub(crate) fn is_broken_pipe(e: &anyhow::Error) -> bool {
    e.chain().any(|c| c.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe))
}

/// A bar on standard error for work of `total` bytes; hidden where nobody looks, and for the first half second.
pub(crate) fn bytes_bar(message: &'static str) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(0);
    let template = "{msg} {bar:30} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta} left";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_message(message);
    bar.set_draw_target(indicatif::ProgressDrawTarget::stderr_with_hz(8));
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

/// Prints how an answer went, to standard error.
pub(crate) fn stats(engine: &Engine, answer: &Answer) {
    let store = engine.store_stats();
    let text = format!(
        "{} prompt tokens ({} kept) at {:.1}/s, first token after {:.0} ms, {} generated at {:.1}/s, experts {} hits \
         {} misses {} read, peak memory {}\n",
        answer.prompt_tokens,
        answer.kept_tokens,
        answer.prefill_tokens_per_second(),
        answer.first_token.as_secs_f64() * 1e3,
        answer.tokens.len(),
        answer.decode_tokens_per_second(),
        store.hits,
        store.misses,
        size(store.bytes_read),
        peak_rss_bytes().map_or_else(|| "unknown".to_owned(), size),
    );
    let _ = io::stderr().write_all(text.as_bytes());
}

/// The kernel's own figure for the most memory this process has had resident; `None` where the system has no such file.
pub(crate) fn peak_rss_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kb| kb * 1024)
}
