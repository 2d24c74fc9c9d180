//! Brings the bytes of several files at once, each in order, hashed as they come, to whoever puts them in place.
//!
//! A file's stream may break as often as it likes as long as it gets on. What is in place is noted in the journal every
//! few seconds, so that another process can go on. Nothing here knows what the bytes are for.

use std::collections::{HashMap, VecDeque};
use std::io::Read;
use std::ops::ControlFlow;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::client::{Answer, Client, Fault, StopFlag};
use crate::error::HubError;
use crate::journal::{Entry, Journal};
use crate::listing::{RemoteFile, same_file, sniff};
use crate::progress::{Counters, Event, Listener, Progress, Rate, Stage};
use crate::running::Running;

/// Bytes read before they are put in place.
const BLOCK_BYTES: usize = 4 << 20;

/// Progress that makes earlier failures forgotten.
const GETTING_ON_BYTES: u64 = 64 << 10;

/// First bytes by which a wrong file is recognised.
const SNIFF_BYTES: u64 = 512;

const TICK: Duration = Duration::from_millis(100);

/// Where bytes go.
pub(crate) trait Sink: Sync {
    /// Bytes that have to come together, at most.
    fn unit_bytes(&self, file: usize) -> usize;
    /// Puts bytes in place; how many were taken. The rest comes again, with more.
    fn write(&self, file: usize, offset: u64, bytes: &[u8]) -> Result<usize, HubError>;
    /// Makes durable all that was written of a file.
    fn sync(&self, file: usize) -> Result<(), HubError>;
    /// The hash of the first `bytes` bytes in place, where that can be told; `None` if they are not there.
    fn rehash(&self, file: usize, bytes: u64) -> Result<Option<Rehashed>, HubError>;
    /// A file is complete and has `bytes` bytes.
    fn complete(&self, file: usize, bytes: u64) -> Result<(), HubError>;
}

/// What a sink knows of bytes in place.
pub(crate) enum Rehashed {
    /// It can no longer tell; the journal has to be believed.
    Unknown,
    Hash(Running),
}

/// A file to bring.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) file: RemoteFile,
    /// What tells it from another of the same name; a change starts it over.
    pub(crate) identity: String,
    /// The commit that every answer has to come from.
    pub(crate) commit: Option<String>,
    pub(crate) optional: bool,
}

/// How a file ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Done {
    /// All bytes, with their hash.
    Whole { bytes: u64, sha256: String },
    /// Optional, and not there.
    Absent,
}

/// How to bring them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    pub(crate) connections: usize,
    /// The journal is written after so many bytes of a file, or the time below.
    pub(crate) journal_bytes: u64,
    pub(crate) journal_time: Duration,
}

/// One file under way.
struct State {
    offset: u64,
    hash: Running,
    etag: Option<String>,
    /// The farthest it has been.
    highest: u64,
    journalled: (u64, Instant),
}

/// All files under way.
pub(crate) struct Transfer<'a> {
    pub(crate) client: &'a Client,
    pub(crate) sink: &'a dyn Sink,
    pub(crate) jobs: &'a [Job],
    pub(crate) pace: Pace,
    pub(crate) stop: &'a StopFlag,
    journal: Mutex<Journal>,
    entries: HashMap<String, Entry>,
    counters: Counters,
    next: AtomicUsize,
    notes: Mutex<VecDeque<String>>,
}

/// Takes a lock whose holder may have panicked; what it guards stays sound.
fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl<'a> Transfer<'a> {
    pub(crate) fn new(
        client: &'a Client,
        sink: &'a dyn Sink,
        jobs: &'a [Job],
        pace: Pace,
        stop: &'a StopFlag,
        (journal, entries): (Journal, HashMap<String, Entry>),
    ) -> Self {
        Self {
            client,
            sink,
            jobs,
            pace,
            stop,
            journal: Mutex::new(journal),
            entries,
            counters: Counters::new(jobs.len()),
            next: AtomicUsize::new(0),
            notes: Mutex::default(),
        }
    }

    /// Brings all files; how each ended, and how many bytes came over the network. The first failure stops everything,
    /// after noting how far each file is.
    pub(crate) fn run(self, listener: Listener<'_>) -> Result<(Vec<Done>, u64), Fault> {
        let (this, watcher) = (&self, std::thread::current());
        let results: Vec<Mutex<Option<Done>>> = this.jobs.iter().map(|_| Mutex::new(None)).collect();
        let failure: Mutex<Option<Fault>> = Mutex::new(None);
        let workers = this.pace.connections.clamp(1, this.jobs.len().max(1));
        let running = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for index in 0..workers {
                running.fetch_add(1, Ordering::AcqRel);
                let leaving = Leaving(&running, &watcher);
                let started = std::thread::Builder::new().spawn_scoped(scope, || {
                    let _last = leaving;
                    while let Some((i, job)) = this.take() {
                        match this.fetch(i, job) {
                            Ok(done) => *locked(&results[i]) = Some(done),
                            Err(fault) => {
                                // What others say once they have been told to stop is only that.
                                if !this.stop.is_set() || locked(&failure).is_none() {
                                    locked(&failure).get_or_insert(fault);
                                }
                                this.stop.set();
                                return;
                            }
                        }
                    }
                });
                // The work of those that the system refuses is done by those that it gave.
                if let Err(error) = started {
                    if index == 0 {
                        *locked(&failure) = Some(Fault::Stop(HubError::Thread { error }));
                    }
                    break;
                }
            }
            this.watch(&running, listener);
        });
        if let Some(fault) = failure.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
            return Err(fault);
        }
        let received = this.counters.received.load(Ordering::Relaxed);
        let done = results.into_iter().map(|r| r.into_inner().unwrap_or_default());
        let done: Option<Vec<Done>> = done.collect();
        done.map(|d| (d, received)).ok_or(Fault::Stop(HubError::Cancelled))
    }

    fn take(&self) -> Option<(usize, &Job)> {
        if self.stop.is_set() {
            return None;
        }
        let i = self.next.fetch_add(1, Ordering::Relaxed);
        self.jobs.get(i).map(|job| (i, job))
    }

    /// Tells the listener how far everybody is, until nobody works any more.
    fn watch(&self, running: &AtomicUsize, listener: Listener<'_>) {
        let mut rate = Rate::new();
        let total = self.jobs.iter().filter_map(|j| j.file.bytes).sum::<u64>();
        loop {
            let left = running.load(Ordering::Acquire);
            let note = locked(&self.notes).pop_front();
            if left > 0 && note.is_none() {
                std::thread::park_timeout(TICK);
            }
            let done = self.counters.done_bytes();
            let per_second = rate.at(self.counters.received.load(Ordering::Relaxed));
            let left_bytes = total.saturating_sub(done) as f64;
            let flow = match &note {
                Some(note) => listener(Event::Note(note)),
                None => listener(Event::Progress(Progress {
                    stage: Stage::Downloading,
                    done_bytes: done,
                    total_bytes: total.max(done),
                    bytes_per_second: per_second,
                    seconds_left: (per_second > 0.0).then(|| left_bytes / per_second),
                    file: &self.counters.file(),
                })),
            };
            if flow == ControlFlow::Break(()) {
                self.stop.set();
            }
            if left == 0 && note.is_none() {
                return;
            }
        }
    }

    fn note(&self, text: String) {
        locked(&self.notes).push_back(text);
    }

    /// One file, from where it is to its end.
    fn fetch(&self, i: usize, job: &Job) -> Result<Done, Fault> {
        self.counters.working_on(&job.file.path);
        let (mut state, complete) = self.begin(i, job)?;
        if complete {
            return Ok(Done::Whole { bytes: state.offset, sha256: state.hash.digest() });
        }
        let (mut failures, mut wrong) = (0, 0);
        loop {
            let highest = state.highest;
            let outcome = self.stream(i, job, &mut state);
            if state.highest >= highest + GETTING_ON_BYTES {
                failures = 0;
            }
            match outcome {
                Ok(true) => match self.finish(i, job, &mut state)? {
                    Ok(done) => return Ok(done),
                    Err(found) => {
                        wrong += 1;
                        let expected = job.file.sha256.clone().unwrap_or_default();
                        if wrong == 2 {
                            let file = job.file.path.clone();
                            return Err(HubError::Hash { file, expected, found }.into());
                        }
                        self.restart(i, job, &mut state, &format!("its SHA-256 is {found}, not {expected}"))?;
                    }
                },
                Ok(false) => return Ok(Done::Absent),
                Err(Fault::Again { why, wait }) => {
                    failures += 1;
                    self.note(format!("{}: {why}; trying again", job.file.path));
                    let waited = self.client.pause(&job.file.url, self.stop, failures, why, wait);
                    if waited.is_err() {
                        self.remember(i, job, &mut state, false)?;
                    }
                    waited?;
                }
                Err(fault) => {
                    self.remember(i, job, &mut state, false)?;
                    return Err(fault);
                }
            }
        }
    }

    /// Where the journal says a file is, if it is the same file and its bytes are there; and whether that is all.
    fn begin(&self, i: usize, job: &Job) -> Result<(State, bool), Fault> {
        let now = Instant::now();
        let fresh =
            State { offset: 0, hash: Running::default(), etag: None, highest: 0, journalled: (0, now) };
        let Some(entry) = self.entries.get(&job.file.path).filter(|e| e.offset > 0) else {
            return Ok((fresh, false));
        };
        let why = if entry.identity != job.identity {
            Some("it is another file at the source now")
        } else if job.file.bytes.is_some_and(|n| entry.offset > n) {
            Some("it is longer than its listing says")
        } else {
            None
        };
        let journalled = Running::load(&entry.state);
        let hash = match (why, journalled) {
            (None, Some(saved)) => match self.sink.rehash(i, entry.offset)? {
                Some(Rehashed::Unknown) => Ok(saved),
                Some(Rehashed::Hash(found)) if found.digest() == saved.digest() => Ok(found),
                _ => Err("what lies on the drive is not what was written"),
            },
            (why, _) => Err(why.unwrap_or("the journal is damaged")),
        };
        match hash {
            Ok(hash) => {
                let offset = entry.offset;
                self.counters.offsets[i].store(offset, Ordering::Relaxed);
                let state = State {
                    offset,
                    hash,
                    etag: entry.etag.clone(),
                    highest: offset,
                    journalled: (offset, now),
                };
                Ok((state, entry.done))
            }
            Err(why) => {
                let mut state = fresh;
                self.restart(i, job, &mut state, why)?;
                Ok((state, false))
            }
        }
    }

    /// Forgets what there is of a file, in the journal first.
    fn restart(&self, i: usize, job: &Job, state: &mut State, why: &str) -> Result<(), Fault> {
        self.note(format!("{} starts over: {why}", job.file.path));
        (state.offset, state.hash) = (0, Running::default());
        self.counters.offsets[i].store(0, Ordering::Relaxed);
        self.remember(i, job, state, false)
    }

    /// Notes in the journal how far a file is, once that much of it is durable.
    fn remember(&self, i: usize, job: &Job, state: &mut State, done: bool) -> Result<(), Fault> {
        if state.offset > 0 {
            self.sink.sync(i)?;
        }
        let entry = Entry {
            file: job.file.path.clone(),
            identity: job.identity.clone(),
            offset: state.offset,
            etag: state.etag.clone(),
            state: state.hash.save(),
            done,
        };
        locked(&self.journal).add(&entry)?;
        state.journalled = (state.offset, Instant::now());
        Ok(())
    }

    /// Checks a file that has come to its end; the hash found if it is not the right one.
    fn finish(&self, i: usize, job: &Job, state: &mut State) -> Result<Result<Done, String>, Fault> {
        let sha256 = state.hash.digest();
        if job.file.sha256.as_ref().is_some_and(|expected| *expected != sha256) {
            return Ok(Err(sha256));
        }
        self.sink.complete(i, state.offset)?;
        self.remember(i, job, state, true)?;
        Ok(Ok(Done::Whole { bytes: state.offset, sha256 }))
    }

    /// One request and its answer: true if the file is complete, false if there is none and it is optional.
    fn stream(&self, i: usize, job: &Job, state: &mut State) -> Result<bool, Fault> {
        let file = &job.file;
        if file.bytes == Some(state.offset) {
            return Ok(true);
        }
        let mut answer = match self.client.get(&file.url, Some(state.offset), None) {
            Err(Fault::Stop(e)) if job.optional && self.client.is_absence(&file.url, &e) => return Ok(false),
            other => other?,
        };
        self.identify(i, job, state, &answer)?;
        let total = match (answer.status, answer.range) {
            (206, (Some(first), total)) if first == state.offset => {
                total.or(answer.length.map(|n| n + first))
            }
            (206, (first, _)) => {
                let found = first.map_or("none".to_owned(), |f| f.to_string());
                return Err(Fault::again(format!(
                    "asked for bytes from {}, got those from {found}",
                    state.offset
                )));
            }
            (416, (_, Some(total))) if total == state.offset => return Ok(true),
            (416, _) => {
                self.restart(i, job, state, "the server has fewer bytes of it than there are here")?;
                return Err(Fault::again("the range was not there"));
            }
            _ => {
                if state.offset > 0 {
                    self.restart(i, job, state, "the server sends all of it instead of the rest")?;
                }
                answer.length
            }
        };
        if let (Some(expected), Some(found)) = (file.bytes, total)
            && expected != found
        {
            let mut start = Vec::new();
            let _ = answer.body.by_ref().take(SNIFF_BYTES).read_to_end(&mut start);
            if state.offset == 0 {
                sniff(&file.path, &start)?;
            }
            return Err(
                HubError::Length { file: file.path.clone(), expected, found: found.to_string() }.into()
            );
        }
        self.body(i, job, state, answer.body.as_mut(), total)
    }

    /// Makes sure that an answer speaks of the same file as the listing, and as the answers before it.
    fn identify(&self, i: usize, job: &Job, state: &mut State, answer: &Answer) -> Result<(), Fault> {
        let (file, linked) = (&job.file, &answer.linked);
        same_file(file, job.commit.as_deref(), linked)?;
        let etag = linked.etag.clone().or_else(|| answer.etag.clone());
        if file.sha256.is_none() && state.offset > 0 && state.etag != etag {
            state.etag = None;
            self.restart(i, job, state, "the server's tag for it has changed")?;
            // Nothing is kept of the answer: it begins in the middle.
            return Err(Fault::Again {
                why: "it has changed at the server".to_owned(),
                wait: Some(Duration::ZERO),
            });
        }
        state.etag = etag.filter(|_| file.sha256.is_none());
        Ok(())
    }

    /// Reads a body to its end. Whatever ends it, what has come is in place.
    fn body(
        &self,
        i: usize,
        job: &Job,
        state: &mut State,
        body: &mut dyn Read,
        total: Option<u64>,
    ) -> Result<bool, Fault> {
        let mut buffer = vec![0; BLOCK_BYTES.max(2 * self.sink.unit_bytes(i))];
        let mut filled = 0;
        loop {
            if self.stop.is_set() {
                self.place(i, job, state, &mut buffer, &mut filled)?;
                return Err(HubError::Cancelled.into());
            }
            let read = body.read(&mut buffer[filled..]);
            let n = *read.as_ref().unwrap_or(&0);
            filled += n;
            self.counters.received.fetch_add(n as u64, Ordering::Relaxed);
            let arrived = state.offset + filled as u64;
            self.counters.offsets[i].store(arrived, Ordering::Relaxed);
            if let Some(expected) = total.filter(|&t| arrived > t) {
                let found = "more".to_owned();
                return Err(HubError::Length { file: job.file.path.clone(), expected, found }.into());
            }
            let ended = n == 0 || total == Some(arrived);
            if filled == buffer.len() || ended || state.journalled.1.elapsed() >= self.pace.journal_time {
                self.place(i, job, state, &mut buffer, &mut filled)?;
            }
            match read {
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => {
                    return Err(Fault::again(format!("the connection broke after {arrived} bytes: {e}")));
                }
                Ok(_) if total == Some(arrived) && filled == 0 => return Ok(true),
                Ok(0) if total.is_none() && filled == 0 => return Ok(true),
                Ok(0) => {
                    let of = total.map_or(String::new(), |t| format!(" of {t}"));
                    return Err(Fault::again(format!("the connection was closed after {arrived}{of} bytes")));
                }
                Ok(_) => {}
            }
        }
    }

    /// Puts what is in the buffer in place, hashes it, and sees to the journal.
    fn place(
        &self,
        i: usize,
        job: &Job,
        state: &mut State,
        buffer: &mut [u8],
        filled: &mut usize,
    ) -> Result<(), Fault> {
        if state.offset == 0 {
            sniff(&job.file.path, &buffer[..*filled])?;
        }
        let taken = self.sink.write(i, state.offset, &buffer[..*filled])?;
        state.hash.update(&buffer[..taken]);
        state.offset += taken as u64;
        state.highest = state.highest.max(state.offset);
        buffer.copy_within(taken..*filled, 0);
        *filled -= taken;
        let (bytes, time) = state.journalled;
        if state.offset - bytes.min(state.offset) >= self.pace.journal_bytes
            || (state.offset > bytes && time.elapsed() >= self.pace.journal_time)
        {
            self.remember(i, job, state, false)?;
        }
        Ok(())
    }
}

/// Counts a worker out, even one that panics.
struct Leaving<'a>(&'a AtomicUsize, &'a std::thread::Thread);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
        self.1.unpark();
    }
}
