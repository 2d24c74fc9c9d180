//! Every order in which two or three threads can run small cases, under loom. `scripts/test-loom.sh` runs them.
//!
//! Polling is a single look here, so each case has the worker find a job while polling, while about to sleep and while
//! asleep, the caller likewise at the join, and the pool dropped at any of these moments.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use loom::cell::UnsafeCell;

use super::*;

/// All orders with at most `preemptions` switches that no thread asked for; all orders at all for none given.
fn check(preemptions: impl Into<Option<usize>>, case: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    // The script's limit goes first.
    model.preemption_bound = model.preemption_bound.or(preemptions.into());
    model.check(case);
}

fn pool(threads: usize) -> Pool {
    Pool::new(PoolOptions { threads, spin_limit: Duration::ZERO }).unwrap()
}

/// Cells that loom watches: two accesses that nothing orders, one of them a write, fail the case.
struct Cells(Vec<UnsafeCell<usize>>);

// SAFETY: loom checks that accesses are ordered.
#[allow(unsafe_code)]
unsafe impl Sync for Cells {}

impl Cells {
    fn new(count: usize) -> Self {
        Self((0..count).map(|_| UnsafeCell::new(0)).collect())
    }

    #[allow(unsafe_code)]
    fn add(&self, index: usize, value: usize) {
        // SAFETY: loom checks it.
        self.0[index].with_mut(|cell| unsafe { *cell += value });
    }

    #[allow(unsafe_code)]
    fn get(&self) -> Vec<usize> {
        // SAFETY: loom checks it.
        self.0.iter().map(|cell| cell.with(|cell| unsafe { *cell })).collect()
    }
}

#[test]
fn pool_without_jobs_is_dropped() {
    check(None, || drop(pool(2)));
    check(3, || drop(pool(3)));
}

#[test]
fn every_chunk_runs_once_and_is_seen_after_the_join() {
    check(None, || {
        let (pool, cells) = (pool(2), Cells::new(2));
        pool.run(2, &|chunk| cells.add(chunk, 1));
        assert_eq!(cells.get(), [1, 1]);
    });
}

#[test]
fn no_wake_up_is_lost() {
    check(3, || {
        let pool = pool(2);
        let (inside, all_inside) = (loom::sync::Mutex::new(0), loom::sync::Condvar::new());
        // A worker that slept through the job would leave the caller here alone, and loom with a deadlock.
        pool.run(2, &|_| {
            let mut inside = inside.lock().unwrap();
            *inside += 1;
            all_inside.notify_all();
            while *inside < 2 {
                inside = all_inside.wait(inside).unwrap();
            }
        });
    });
}

#[test]
fn a_late_worker_joins_the_job_that_it_finds() {
    check(3, || {
        let (pool, cells) = (pool(2), Cells::new(3));
        pool.run(2, &|chunk| cells.add(chunk, 1));
        // More chunks, another closure on the same stack, and what the first job wrote.
        pool.run(3, &|chunk| cells.add(chunk, 10));
        assert_eq!(cells.get(), [11, 11, 10]);
    });
}

#[test]
fn three_threads_share_a_job() {
    check(2, || {
        let (pool, cells) = (pool(3), Cells::new(2));
        pool.run(2, &|chunk| cells.add(chunk, 1));
        assert_eq!(cells.get(), [1, 1]);
    });
}

#[test]
fn three_threads_share_two_jobs() {
    check(1, || {
        let (pool, cells) = (pool(3), Cells::new(3));
        pool.run(3, &|chunk| cells.add(chunk, 1));
        pool.run(2, &|chunk| cells.add(chunk, 10));
        assert_eq!(cells.get(), [11, 11, 1]);
    });
}

#[test]
fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
    check(3, || {
        let (pool, cells) = (pool(2), Cells::new(2));
        let run = || {
            pool.run(2, &|chunk| {
                cells.add(chunk, 1);
                resume_unwind(Box::new(chunk));
            });
        };
        let panic = catch_unwind(AssertUnwindSafe(run)).unwrap_err();
        assert!(*panic.downcast::<usize>().unwrap() < 2);
        assert_eq!(cells.get(), [1, 1]);
        pool.run(2, &|chunk| cells.add(chunk, 1));
        assert_eq!(cells.get(), [2, 2]);
    });
}

#[test]
fn two_callers_take_turns() {
    check(2, || {
        let (pool, cells) = (loom::sync::Arc::new(pool(2)), loom::sync::Arc::new(Cells::new(2)));
        let other = loom::thread::spawn({
            let (pool, cells) = (pool.clone(), cells.clone());
            move || pool.run(2, &|chunk| cells.add(chunk, 1))
        });
        pool.run(2, &|chunk| cells.add(chunk, 10));
        other.join().unwrap();
        assert_eq!(cells.get(), [11, 11]);
    });
}

#[test]
fn a_run_inside_a_chunk_is_run_in_place() {
    check(3, || {
        let (pool, cells) = (pool(2), Cells::new(4));
        pool.run(2, &|outer| pool.run(2, &|inner| cells.add(2 * outer + inner, 1)));
        assert_eq!(cells.get(), [1; 4]);
    });
}
