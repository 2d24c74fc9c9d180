//! Fork–join over a fixed set of threads, for steps of microseconds.
//!
//! A decode step forks and joins some five hundred times, with a few dozen chunks each time. Threads that have nothing
//! to do poll for a while and then sleep: a hand-off costs about a microsecond while a model generates, and nothing at
//! all while none does. Chunks are claimed from a common counter, so that fast cores take more of them than slow ones.
//! Knows nothing of what it runs, and must not decide what is computed: a result may not depend on which thread ran a
//! chunk, or in which order.
//!
//! Tests: plain ones beside this file; every interleaving of small cases under loom, with
//! `RUSTFLAGS="--cfg loom" cargo test -p spinetail-cpu --release pool` (`scripts/test-loom.sh`); and
//! `cargo +nightly miri test -p spinetail-cpu --lib pool`. Figures: `cargo run --release -p spinetail-cpu --example
//! pool_latency`.

mod spin;
mod split;
mod sync;
mod team;

#[cfg(test)]
#[cfg(loom)]
mod loom_tests;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;

use std::panic::resume_unwind;
use std::time::Duration;

use spin::Spin;
use sync::{Arc, Builder, JoinHandle, Mutex, inside, lock};
use team::Team;

/// The most threads that a pool may have.
pub const MAX_THREADS: usize = 512;

/// The most threads that a pool has unless told: decoding is bound by memory, which fewer threads than this saturate.
const DEFAULT_THREADS_LIMIT: usize = 32;

/// How a pool is made up.
#[derive(Debug, Clone, Copy)]
pub struct PoolOptions {
    /// Threads that run chunks, the caller of [`Pool::run`] among them: 1 to [`MAX_THREADS`].
    pub threads: usize,
    /// The longest time for which a thread without work polls before it sleeps. It polls for less where polling has
    /// not paid off lately. Ignored when there are more threads than processors: then others go first.
    pub spin_limit: Duration,
}

impl Default for PoolOptions {
    /// As many threads as there are processors for this process, heeding affinity and container limits, up to 32.
    fn default() -> Self {
        Self { threads: processors().min(DEFAULT_THREADS_LIMIT), spin_limit: Duration::from_micros(100) }
    }
}

/// Why a pool could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// A number of threads out of range.
    #[error("{threads} compute threads were asked for: expected 1 to {MAX_THREADS}")]
    Threads {
        /// What was asked for.
        threads: usize,
    },
}

/// Threads that run the chunks of one job at a time.
pub struct Pool {
    team: Arc<Team>,
    workers: Vec<JoinHandle<()>>,
    /// Whose turn it is to lead.
    turn: Mutex<()>,
    spin: Spin,
}

impl Pool {
    /// Starts the threads, or as many as the system gives: [`threads`](Self::threads) says how many there are. They are not
    /// bound to processors: the system moves them as it sees fit.
    pub fn new(options: PoolOptions) -> Result<Self, PoolError> {
        let PoolOptions { threads, spin_limit } = options;
        if !(1..=MAX_THREADS).contains(&threads) {
            return Err(PoolError::Threads { threads });
        }
        let spin = Spin::new(spin_limit, threads > processors());
        let mut pool = Self { team: Arc::new(Team::new()), workers: Vec::new(), turn: Mutex::new(()), spin };
        for index in 1..threads {
            let (team, spin) = (pool.team.clone(), pool.spin.clone());
            match Builder::new().name(format!("compute-{index}")).spawn(move || team.work(spin)) {
                Ok(worker) => pool.workers.push(worker),
                // No result depends on how many there are, and one more attempt would fail as well.
                Err(_) => break,
            }
        }
        Ok(pool)
    }

    /// The number of threads that run chunks, the caller among them.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `chunk` once with each of `0..chunks`, on the threads of the pool, this one among them, and returns when
    /// all the calls have. What they wrote is visible then.
    ///
    /// A second thread that calls meanwhile waits for its turn. A call from inside a chunk, of this pool or of
    /// another, runs its chunks one after the other on the thread it is on; so does a pool of one thread.
    ///
    /// # Panics
    ///
    /// With the first panic of a chunk, once all those that were started have ended. Chunks that were not may have
    /// been left out. The pool can be used again. Also if `chunks` exceeds `u32::MAX`.
    #[allow(unsafe_code)]
    pub fn run(&self, chunks: usize, chunk: &(dyn Fn(usize) + Sync)) {
        if chunks <= 1 || self.workers.is_empty() || inside::get() {
            return (0..chunks).for_each(chunk);
        }
        assert!(chunks <= u32::MAX as usize, "a job has at most u32::MAX chunks");
        let turn = lock(&self.turn);
        // SAFETY: the turn is ours, and this thread is not inside a chunk.
        let panic = unsafe { self.team.lead(chunks, chunk, &self.spin) };
        drop(turn);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.team.close();
        for worker in self.workers.drain(..) {
            // Chunks' panics are caught: a worker that died of something else has nothing more to say here.
            let _ = worker.join();
        }
    }
}

/// Processors that this process may use now.
fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}
