//! How far a pull has come, for people.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What is being done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stage {
    /// Looking at what the source has.
    Listing,
    /// Bytes are coming in (and are repacked as they do).
    Downloading,
    /// What has been written is read back and checked.
    Verifying,
}

/// How far it is.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Progress<'a> {
    /// What is being done.
    pub stage: Stage,
    /// Bytes in place, from this run and earlier ones.
    pub done_bytes: u64,
    /// Bytes there will be; 0 while that is not known.
    pub total_bytes: u64,
    /// Lately.
    pub bytes_per_second: f64,
    /// At that rate; `None` before there is one.
    pub seconds_left: Option<f64>,
    /// The file worked on last.
    pub file: &'a str,
}

/// Something to show, or to log.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A few times a second.
    Progress(Progress<'a>),
    /// One line: a file starts over, a connection was lost, the source has changed.
    Note(&'a str),
}

/// Told what happens; breaking stops the pull, which keeps what has arrived.
pub(crate) type Listener<'a> = &'a mut dyn FnMut(Event<'_>) -> std::ops::ControlFlow<()>;

/// What workers count and the listener's thread reads.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Bytes in place, by job.
    pub(crate) offsets: Vec<AtomicU64>,
    /// Bytes received in this run.
    pub(crate) received: AtomicU64,
    file: Mutex<String>,
}

impl Counters {
    pub(crate) fn new(jobs: usize) -> Self {
        Self { offsets: (0..jobs).map(|_| AtomicU64::new(0)).collect(), ..Self::default() }
    }

    pub(crate) fn done_bytes(&self) -> u64 {
        self.offsets.iter().map(|o| o.load(Ordering::Relaxed)).sum()
    }

    pub(crate) fn working_on(&self, file: &str) {
        file.clone_into(&mut self.file.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
    }

    pub(crate) fn file(&self) -> String {
        self.file.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }
}

/// The rate over the last few seconds.
#[derive(Debug)]
pub(crate) struct Rate {
    since: Instant,
    bytes: u64,
    per_second: f64,
}

impl Rate {
    /// Time over which the rate follows a change.
    const WINDOW: Duration = Duration::from_secs(5);

    pub(crate) fn new() -> Self {
        Self { since: Instant::now(), bytes: 0, per_second: 0.0 }
    }

    /// Bytes per second, given all bytes so far.
    pub(crate) fn at(&mut self, bytes: u64) -> f64 {
        let time = self.since.elapsed();
        if time >= Duration::from_millis(100) {
            let now = bytes.saturating_sub(self.bytes) as f64 / time.as_secs_f64();
            let weight = (time.as_secs_f64() / Self::WINDOW.as_secs_f64()).min(1.0);
            self.per_second =
                if self.per_second == 0.0 { now } else { self.per_second + weight * (now - self.per_second) };
            (self.since, self.bytes) = (Instant::now(), bytes);
        }
        self.per_second
    }
}
