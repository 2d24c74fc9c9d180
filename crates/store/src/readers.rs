//! Threads that read records, and the queue that they take them from.
//!
//! A job owns its slot until it is done, so that nobody can look at a record that is half read. What is needed now is
//! read before what may be needed, and that before what is merely worth having. Must not know what is cached, or why.
//!
//! A source that has a ring is read by one thread through that (`ring.rs`), and by as many as there may be reads at once
//! when it has none or gives it up.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use spinetail_core::{ExpertId, ReadError, ReadMode, RecordSource};

use crate::ring;
use crate::slot::Slot;

/// A read that fails is tried again this often, after 10 ms and then 80 ms: a drive that wakes up, a network share.
const RETRIES: u32 = 2;
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// Readers need little: a system call and its error.
const STACK_BYTES: usize = 256 << 10;

/// How soon a record is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Urgency {
    /// A token waits for it.
    Demand,
    /// A guess at what the next layer needs.
    Guess,
    /// Worth having in memory some time.
    Warm,
}

const URGENCIES: usize = 3;

/// A record to be read into a slot that nobody else can reach.
pub(crate) struct Job {
    pub(crate) id: ExpertId,
    /// Whatever the store knows the slot by.
    pub(crate) entry: u32,
    pub(crate) slot: Arc<Slot>,
}

/// A job that has been done, with its slot.
pub(crate) struct Done {
    pub(crate) job: Job,
    pub(crate) result: Result<(), ReadError>,
    pub(crate) ns: u64,
    pub(crate) retries: u32,
}

#[derive(Default)]
pub(crate) struct Queue {
    waiting: [VecDeque<Job>; URGENCIES],
    done: VecDeque<Done>,
    pub(crate) stop: bool,
    /// Wakes the thread that drives a ring.
    pub(crate) waker: Option<Waker>,
}

impl Queue {
    /// The job that is needed soonest.
    pub(crate) fn next(&mut self) -> Option<Job> {
        self.waiting.iter_mut().find_map(VecDeque::pop_front)
    }
}

/// What readers share with those who give them jobs.
pub(crate) struct Shared {
    pub(crate) source: Arc<dyn RecordSource>,
    queue: Mutex<Queue>,
    /// There is a job, or no more will come.
    work: Condvar,
    /// A job is done.
    done: Condvar,
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Queue> {
        // No code runs under the lock that can leave the queue half changed.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a job back that came to nothing and is to be begun anew. It was begun, so that somebody may have come to count
    /// on it: it goes before others and cannot be taken out of the queue.
    pub(crate) fn put_back(&self, job: Job) {
        let mut queue = self.lock();
        if !queue.stop {
            queue.waiting[Urgency::Demand as usize].push_front(job);
        }
        drop(queue);
        self.work.notify_one();
    }

    /// Hands a job back that is done.
    pub(crate) fn deliver(&self, done: Done) {
        self.lock().done.push_back(done);
        self.done.notify_one();
    }
}

/// The threads. They are started with jobs, and end when this is dropped.
pub(crate) struct Readers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    wanted: usize,
    /// After this long without an answer of the drive, somebody is told.
    patience: Duration,
}

impl Readers {
    pub(crate) fn new(source: Arc<dyn RecordSource>, threads: usize, patience: Duration) -> Self {
        let (work, done) = (Condvar::new(), Condvar::new());
        let shared = Arc::new(Shared { source, queue: Mutex::default(), work, done });
        Self { shared, threads: Vec::new(), wanted: threads.max(1), patience }
    }

    pub(crate) fn count(&self) -> usize {
        self.wanted
    }

    /// Starts the threads, if they are not there yet. One is enough to go on with.
    pub(crate) fn start(&mut self) -> std::io::Result<()> {
        while self.threads.len() < self.wanted {
            // One thread drives a ring. Where it cannot, the source is in another mode when the next job comes.
            let by_ring = self.shared.source.read_mode() == ReadMode::Uring;
            if by_ring && !self.threads.is_empty() {
                break;
            }
            let (shared, reads) = (Arc::clone(&self.shared), self.wanted);
            let name = format!("reader-{}", self.threads.len());
            let thread = std::thread::Builder::new().name(name).stack_size(STACK_BYTES);
            let read = move || {
                if by_ring {
                    ring::drive(&shared, reads);
                }
                work(&shared);
            };
            match thread.spawn(read) {
                Ok(thread) => self.threads.push(thread),
                Err(e) if self.threads.is_empty() => return Err(e),
                Err(e) => {
                    tracing::warn!("only {} of {} reader threads: {e}", self.threads.len(), self.wanted);
                    self.wanted = self.threads.len();
                }
            }
        }
        Ok(())
    }

    pub(crate) fn submit(&self, job: Job, urgency: Urgency) {
        let mut queue = self.shared.lock();
        queue.waiting[urgency as usize].push_back(job);
        let waker = queue.waker.clone();
        drop(queue);
        match waker {
            Some(waker) => waker.wake(),
            None => self.shared.work.notify_one(),
        }
    }

    /// Makes a job that nobody has begun a demand. Nothing happens if it has been begun or is one.
    pub(crate) fn promote(&self, entry: u32) {
        let mut queue = self.shared.lock();
        for urgency in [Urgency::Guess, Urgency::Warm] {
            let jobs = &mut queue.waiting[urgency as usize];
            if let Some(job) = jobs.iter().position(|j| j.entry == entry).and_then(|i| jobs.remove(i)) {
                queue.waiting[Urgency::Demand as usize].push_back(job);
                return;
            }
        }
    }

    /// Takes back the jobs of that urgency that nobody has begun.
    pub(crate) fn take_back(&self, urgency: Urgency) -> VecDeque<Job> {
        std::mem::take(&mut self.shared.lock().waiting[urgency as usize])
    }

    /// A job that is done, if there is one.
    pub(crate) fn poll(&self) -> Option<Done> {
        self.shared.lock().done.pop_front()
    }

    /// Waits for a job to be done. There has to be one.
    pub(crate) fn wait(&self) -> Done {
        let start = Instant::now();
        let mut queue = self.shared.lock();
        loop {
            if let Some(done) = queue.done.pop_front() {
                return done;
            }
            let (q, timeout) =
                self.shared.done.wait_timeout(queue, self.patience).unwrap_or_else(PoisonError::into_inner);
            queue = q;
            if timeout.timed_out() && queue.done.is_empty() {
                tracing::warn!(
                    "the drive has not answered for {:.0?}; still waiting for it",
                    start.elapsed()
                );
            }
        }
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        let waker = {
            let mut queue = self.shared.lock();
            queue.stop = true;
            queue.waiting = Default::default();
            queue.waker.take()
        };
        self.shared.work.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
        for thread in self.threads.drain(..) {
            // It has caught its own panics.
            let _ = thread.join();
        }
    }
}

fn work(shared: &Shared) {
    loop {
        let mut queue = shared.lock();
        let mut job = loop {
            if queue.stop {
                return;
            }
            match queue.next() {
                Some(job) => break job,
                None => queue = shared.work.wait(queue).unwrap_or_else(PoisonError::into_inner),
            }
        };
        drop(queue);
        let start = Instant::now();
        let (result, retries) = read(&*shared.source, &mut job);
        shared.deliver(Done { job, result, ns: start.elapsed().as_nanos() as u64, retries });
    }
}

/// Reads a record, trying again where that may help.
fn read(source: &dyn RecordSource, job: &mut Job) -> (Result<(), ReadError>, u32) {
    let id = job.id;
    let slot = Arc::get_mut(&mut job.slot).expect("a job is given a slot that nobody else holds");
    let mut retries = 0;
    loop {
        // A panic would leave whoever waits for this record waiting for ever.
        let read = catch_unwind(AssertUnwindSafe(|| source.read_record(id, slot.bytes_mut())));
        let error = match read {
            Ok(Ok(())) => return (Ok(()), retries),
            Ok(Err(e)) => e,
            Err(_) => return (Err(panicked(id)), retries),
        };
        let Some(pause) = pause(&error, retries) else { return (Err(error), retries) };
        tracing::warn!("{id}: {error}; reading it again");
        std::thread::sleep(pause);
        retries += 1;
    }
}

/// How long to wait before a read that failed is tried again; `None` if that would not help.
pub(crate) fn pause(error: &ReadError, retries: u32) -> Option<Duration> {
    let again = match error {
        ReadError::Io { .. } => retries < RETRIES,
        // Once more, in case it was the memory or the bus.
        ReadError::Checksum { .. } => retries < 1,
        _ => false,
    };
    again.then(|| FIRST_PAUSE * 8u32.pow(retries))
}

pub(crate) fn panicked(id: ExpertId) -> ReadError {
    ReadError::Unknown { what: format!("{id}: its reader panicked") }
}
