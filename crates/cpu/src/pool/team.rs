//! What the threads of a pool share, and the protocol between them.
//!
//! One word, the gate, holds the chunks of the current job that nobody has taken. Publishing a job sets it, claiming
//! takes one off. Nothing else says which job is current, and nothing needs to: **whoever has claimed a chunk and not
//! yet reported it keeps the job alive**, since the caller returns only once every chunk has been reported. So after a
//! claim, however late it came, the job in the cell is the one that the claim belongs to.
//!
//! A join waits for the chunks and not for the threads: a worker that is asleep, or that the system has put off,
//! holds nobody up.
#![allow(unsafe_code)]

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::spin::Spin;
use super::sync::{AtomicI64, AtomicUsize, Condvar, Mutex, Ordering, Padded, UnsafeCell, inside, lock};

/// What a chunk may throw.
pub(super) type Panic = Box<dyn Any + Send>;

/// Chunks in the gate and in `unfinished` are counted in fours; the two low bits are flags.
const CHUNK: i64 = 4;
/// In the gate: a worker sleeps, or is about to.
const SLEEPING: i64 = 1;
/// In the gate: the pool is being dropped.
const CLOSED: i64 = 2;
/// In `unfinished`: the caller sleeps, or is about to.
const WAITING: usize = 1;
/// In `unfinished`: a chunk has panicked.
const PANICKED: usize = 2;

/// The closure of a run with its lifetime erased, and the number of its chunks.
#[derive(Clone, Copy)]
struct Job {
    call: *const (dyn Fn(usize) + Sync),
    chunks: usize,
}

pub(super) struct Team {
    /// Unclaimed chunks, below zero after late claims, and `SLEEPING` and `CLOSED`.
    gate: Padded<AtomicI64>,
    /// Written by the caller while no chunk is unreported, read by those who have claimed one.
    job: Padded<UnsafeCell<Job>>,
    /// Chunks not yet reported, and `WAITING` and `PANICKED`.
    unfinished: Padded<AtomicUsize>,
    /// The first panic of the current job.
    panic: Mutex<Option<Panic>>,
    /// Held between deciding to sleep and sleeping, so that a wake-up cannot fall in between.
    bed: Mutex<()>,
    wake_workers: Condvar,
    wake_caller: Condvar,
}

// SAFETY: only the job keeps `Team` from being both. Its closure is `Sync`, and the cell is accessed as `publish` and
// `take_part` say: never while another thread writes it.
unsafe impl Send for Team {}
// SAFETY: as above.
unsafe impl Sync for Team {}

impl Team {
    pub(super) fn new() -> Self {
        let idle: &'static (dyn Fn(usize) + Sync) = &|_| {};
        Self {
            gate: Padded(AtomicI64::new(0)),
            job: Padded(UnsafeCell::new(Job { call: idle, chunks: 0 })),
            unfinished: Padded(AtomicUsize::new(0)),
            panic: Mutex::new(None),
            bed: Mutex::new(()),
            wake_workers: Condvar::new(),
            wake_caller: Condvar::new(),
        }
    }

    /// The caller's part: publishes the job, takes part in it, waits for the rest. The first panic, if there was one.
    ///
    /// # Safety
    ///
    /// One call at a time, and none from inside a chunk.
    pub(super) unsafe fn lead(
        &self,
        chunks: usize,
        call: &(dyn Fn(usize) + Sync),
        spin: &Spin,
    ) -> Option<Panic> {
        // SAFETY: only the lifetime changes. `join` returns once every chunk is reported; after that nobody uses the
        // pointer, and `call` outlives this function.
        let call = unsafe {
            std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), *const (dyn Fn(usize) + Sync + 'static)>(
                call,
            )
        };
        self.publish(Job { call, chunks });
        inside::set(true);
        let ran = self.take_part();
        inside::set(false);
        self.join(ran, spin);
        // Relaxed: `join` has acquired the reports, and a panic is noted before its chunk is reported.
        let panicked = self.unfinished.0.load(Ordering::Relaxed) & PANICKED != 0;
        if panicked { lock(&self.panic).take() } else { None }
    }

    /// A worker's life.
    pub(super) fn work(&self, mut spin: Spin) {
        inside::set(true);
        loop {
            // Relaxed: only a hint, claiming is what synchronises.
            let polled = spin.until(|| is_ready(self.gate.0.load(Ordering::Relaxed)));
            spin.adapt(polled);
            if !polled {
                self.sleep();
            }
            let gate = self.gate.0.load(Ordering::Relaxed);
            if gate & CLOSED != 0 {
                return;
            }
            if is_ready(gate) {
                let ran = self.take_part();
                if ran > 0 {
                    self.report(ran);
                }
            }
        }
    }

    /// Sends the workers home. No job may follow.
    pub(super) fn close(&self) {
        // Relaxed: there is nothing to hand over, and `bed` orders this before the sleep of those who would miss it.
        self.gate.0.fetch_or(CLOSED, Ordering::Relaxed);
        drop(lock(&self.bed));
        self.wake_workers.notify_all();
    }

    fn publish(&self, job: Job) {
        // Relaxed: only holders of a claim touch the count, and a claim on this job comes after the swap below.
        self.unfinished.0.store(job.chunks * CHUNK as usize, Ordering::Relaxed);
        // SAFETY: readers hold an unreported claim. The last job has none left, which its `join` acquired, so those
        // reads happened before; claims on this job are possible only after the swap.
        self.job.0.with_mut(|cell| unsafe { *cell = job });
        // Release: a claim acquires from this swap, be it through the claims in between (read-modify-writes continue a
        // release sequence), and so sees the job and the count. A swap and not a store: a late decrement for the last
        // job falls either before it and is overwritten, or after it and is a claim on this job; and `SLEEPING` is
        // taken out in the same step, so that sleepers are woken once.
        let before = self.gate.0.swap(job.chunks as i64 * CHUNK, Ordering::Release);
        if before & SLEEPING != 0 {
            drop(lock(&self.bed));
            self.wake_workers.notify_all();
        }
    }

    /// Takes one chunk off the gate. Returns the number that were left, or none.
    fn claim(&self) -> Option<usize> {
        // Acquire: pairs with the swap in `publish`.
        let left = self.gate.0.fetch_sub(CHUNK, Ordering::Acquire) / CHUNK;
        (left > 0).then_some(left as usize)
    }

    /// Runs chunks while there are any; how many. They are unreported still, so the job stays as it is until then.
    fn take_part(&self) -> usize {
        let Some(mut left) = self.claim() else { return 0 };
        // SAFETY: this thread holds an unreported claim, so the caller does not write the cell before its report; the
        // write before is seen, since the claim acquired it.
        let job = self.job.0.with(|cell| unsafe { *cell });
        // SAFETY: for the same reason the caller is still in `lead`, which borrows the closure.
        let call = unsafe { &*job.call };
        let mut ran = 0;
        loop {
            // The panic goes on in the caller, which then sees what any panic lets it see.
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| call(job.chunks - left))) {
                self.keep(panic);
            }
            ran += 1;
            match self.claim() {
                Some(next) => left = next,
                None => return ran,
            }
        }
    }

    #[cold]
    fn keep(&self, panic: Panic) {
        let mut first = lock(&self.panic);
        if first.is_none() {
            *first = Some(panic);
        } else if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
            // What was thrown threw when dropped. It ends here: a worker must not die of it.
            std::mem::forget(again);
        }
        // Relaxed: this thread's report follows and is what the caller acquires.
        self.unfinished.0.fetch_or(PANICKED, Ordering::Relaxed);
    }

    /// A worker reports chunks that it ran. It has no part in the job from here on.
    fn report(&self, ran: usize) {
        let ran = ran * CHUNK as usize;
        // Release: what the chunks wrote, and this thread's reading of the job, happen before the caller goes on.
        let after = self.unfinished.0.fetch_sub(ran, Ordering::Release) - ran;
        if is_finished(after) && after & WAITING != 0 {
            drop(lock(&self.bed));
            self.wake_caller.notify_one();
        }
    }

    /// The caller reports the chunks that it ran, and waits for the reports of the others.
    fn join(&self, ran: usize, spin: &Spin) {
        // Acquire, here and below: pairs with the release of every report, the later of which continue the release
        // sequences of the earlier.
        let ran = ran * CHUNK as usize;
        let after = self.unfinished.0.fetch_sub(ran, Ordering::Acquire) - ran;
        if is_finished(after) || spin.until(|| is_finished(self.unfinished.0.load(Ordering::Acquire))) {
            return;
        }
        let mut bed = lock(&self.bed);
        // Flag and count are one word: the last report either comes first and is seen here, or sees the flag, and then
        // waits for `bed`, which is free only once this thread sleeps.
        let mut state = self.unfinished.0.fetch_or(WAITING, Ordering::Acquire);
        while !is_finished(state) {
            bed = self.wake_caller.wait(bed).unwrap_or_else(std::sync::PoisonError::into_inner);
            state = self.unfinished.0.load(Ordering::Acquire);
        }
    }

    /// Sleeps until the next job, or not at all if there is one. May wake for no reason.
    fn sleep(&self) {
        let bed = lock(&self.bed);
        // Relaxed: that both sides change one word decides. Either this comes before the swap in `publish` (or the
        // change in `close`), which then sees the flag and waits for `bed`, which is free only once this thread sleeps;
        // or it comes after and sees the chunks, unless they are all taken.
        let flag = |gate| (!is_ready(gate)).then_some(gate | SLEEPING);
        if self.gate.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, flag).is_ok() {
            drop(self.wake_workers.wait(bed));
        }
    }
}

/// Whether a worker has something to do: a chunk, or to go home.
fn is_ready(gate: i64) -> bool {
    gate >= CHUNK || gate & CLOSED != 0
}

/// Whether every chunk has been reported.
fn is_finished(unfinished: usize) -> bool {
    unfinished < CHUNK as usize
}
