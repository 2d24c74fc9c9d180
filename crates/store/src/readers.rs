//! Threads that read records, and the queue that they take them from.
//!
//! A job owns its slot until it is done, so that nobody can look at a record that is half read. What is needed now is
//! read before what may be needed, and that before what is merely worth having. Must not know what is cached, or why.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use spinetail_core::{ExpertId, ReadError, RecordSource};

use crate::slot::Slot;

/// A read that fails is tried again this often, after 10 ms and then 80 ms: a drive that wakes up, a network share.
const RETRIES: u32 = 2;
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// Readers need little: a system call and its error.
const STACK_BYTES: usize = 256 << 10;

/// After this long without an answer of the drive, somebody is told.
const PATIENCE: Duration = Duration::from_secs(5);

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
struct Queue {
    waiting: [VecDeque<Job>; URGENCIES],
    done: VecDeque<Done>,
    stop: bool,
}

struct Shared {
    source: Arc<dyn RecordSource>,
    queue: Mutex<Queue>,
    /// There is a job, or no more will come.
    work: Condvar,
    /// A job is done.
    done: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // No code runs under the lock that can leave the queue half changed.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The threads. They are started with the first job, and end when this is dropped.
pub(crate) struct Readers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    wanted: usize,
}

impl Readers {
    pub(crate) fn new(source: Arc<dyn RecordSource>, threads: usize) -> Self {
        let (work, done) = (Condvar::new(), Condvar::new());
        let shared = Arc::new(Shared { source, queue: Mutex::default(), work, done });
        Self { shared, threads: Vec::new(), wanted: threads.max(1) }
    }

    pub(crate) fn count(&self) -> usize {
        self.wanted
    }

    /// Starts the threads, if they are not there yet. One is enough to go on with.
    pub(crate) fn start(&mut self) -> std::io::Result<()> {
        while self.threads.len() < self.wanted {
            let shared = Arc::clone(&self.shared);
            let name = format!("reader-{}", self.threads.len());
            let thread = std::thread::Builder::new().name(name).stack_size(STACK_BYTES);
            match thread.spawn(move || work(&shared)) {
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
        self.shared.lock().waiting[urgency as usize].push_back(job);
        self.shared.work.notify_one();
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
                self.shared.done.wait_timeout(queue, PATIENCE).unwrap_or_else(PoisonError::into_inner);
            queue = q;
            if timeout.timed_out() && queue.done.is_empty() {
                tracing::warn!(
                    "the drive has not answered for {} s; still waiting for it",
                    start.elapsed().as_secs()
                );
            }
        }
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        {
            let mut queue = self.shared.lock();
            queue.stop = true;
            queue.waiting = Default::default();
        }
        self.shared.work.notify_all();
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
            match queue.waiting.iter_mut().find_map(VecDeque::pop_front) {
                Some(job) => break job,
                None => queue = shared.work.wait(queue).unwrap_or_else(PoisonError::into_inner),
            }
        };
        drop(queue);
        let start = Instant::now();
        let (result, retries) = read(&*shared.source, &mut job);
        let done = Done { job, result, ns: start.elapsed().as_nanos() as u64, retries };
        shared.lock().done.push_back(done);
        shared.done.notify_one();
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
            Err(_) => {
                return (Err(ReadError::Unknown { what: format!("{id}: its reader panicked") }), retries);
            }
        };
        let again = match &error {
            ReadError::Io { .. } => retries < RETRIES,
            // Once more, in case it was the memory or the bus.
            ReadError::Checksum { .. } => retries < 1,
            _ => false,
        };
        if !again {
            return (Err(error), retries);
        }
        tracing::warn!("{id}: {error}; reading it again");
        std::thread::sleep(FIRST_PAUSE * 8u32.pow(retries));
        retries += 1;
    }
}
