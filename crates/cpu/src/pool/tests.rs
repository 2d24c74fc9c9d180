//! Many small jobs of every shape. [`super::loom_tests`] has the orders that chance does not find.
#![allow(clippy::unwrap_used, reason = "tests stop at the first surprise")]

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::*;

/// Jobs of a stress test: fewer where each step is interpreted.
const JOBS: usize = if cfg!(miri) { 20 } else { 2000 };

fn pool(threads: usize) -> Pool {
    Pool::new(PoolOptions { threads, ..PoolOptions::default() }).unwrap()
}

/// A sleepless pool, sleepers, and more threads than processors.
fn pools() -> [Pool; 4] {
    let asleep = PoolOptions { threads: 2, spin_limit: Duration::ZERO };
    [pool(1), pool(2), Pool::new(asleep).unwrap(), pool(2 * processors() + 1)]
}

fn random(state: &mut u64) -> usize {
    *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    (*state >> 33) as usize
}

fn counts(chunks: usize) -> Vec<AtomicUsize> {
    (0..chunks).map(|_| AtomicUsize::new(0)).collect()
}

fn all_are(counts: &[AtomicUsize], expected: usize) -> bool {
    counts.iter().all(|n| n.load(Ordering::Relaxed) == expected)
}

/// Returns once `threads` chunks are inside at the same time.
fn meet(inside: &AtomicUsize, threads: usize) {
    inside.fetch_add(1, Ordering::Relaxed);
    while inside.load(Ordering::Relaxed) < threads {
        thread::yield_now();
    }
}

#[test]
fn every_chunk_runs_once() {
    for pool in pools() {
        let mut state = 1;
        for _ in 0..JOBS {
            let ran = counts(random(&mut state) % 40);
            pool.run(ran.len(), &|chunk| {
                ran[chunk].fetch_add(1, Ordering::Relaxed);
            });
            assert!(all_are(&ran, 1), "{} chunks on {} threads", ran.len(), pool.threads());
        }
    }
}

#[test]
fn jobs_see_what_jobs_before_wrote() {
    for pool in pools() {
        let (mut a, mut b) = (vec![1u64; 100], vec![0u64; 100]);
        for _ in 0..JOBS / 2 {
            pool.for_each_chunk(&mut b, 7, |i, b| {
                b.iter_mut().enumerate().for_each(|(j, b)| *b = a[99 - (7 * i + j)] + 1);
            });
            std::mem::swap(&mut a, &mut b);
        }
        assert_eq!(a, vec![1 + JOBS as u64 / 2; 100]);
    }
}

#[test]
fn pieces_are_those_of_chunks_mut() {
    let pool = pool(2);
    for (len, piece) in [(0, 1), (1, 1), (1, 5), (10, 3), (12, 3), (100, 7)] {
        let (mut seen, mut expected) = (vec![(0, 0); len], vec![(0, 0); len]);
        pool.for_each_chunk(&mut seen, piece, |i, part| part.fill((i, part.len())));
        expected.chunks_mut(piece).enumerate().for_each(|(i, part)| part.fill((i, part.len())));
        assert_eq!(seen, expected);
    }
}

#[test]
fn pairs_go_in_step() {
    let (mut states, mut outputs) = (vec![1.0; 13], vec![0.0; 7]);
    let pool = pool(2);
    pool.for_each_pair((&mut states, 2), (&mut outputs, 1), |i, states, output| {
        states.iter_mut().for_each(|s| *s += i as f32);
        output[0] = states.iter().sum();
    });
    assert_eq!(outputs, [2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 7.0]);
    let uneven = || pool.for_each_pair((&mut states, 2), (&mut outputs, 2), |_, _, _| ());
    assert!(catch_unwind(AssertUnwindSafe(uneven)).is_err());
}

#[test]
fn all_threads_take_part() {
    for pool in pools() {
        for pause_us in [0, 10, 1000] {
            let (inside, threads) = (AtomicUsize::new(0), pool.threads());
            pool.run(threads, &|_| meet(&inside, threads));
            // Long enough, at times, for the workers to be asleep when the next job comes.
            thread::sleep(Duration::from_micros(pause_us));
        }
    }
}

#[test]
fn a_panic_is_raised_after_the_join_and_the_pool_goes_on() {
    for pool in pools() {
        let mut state = 1;
        for _ in 0..JOBS / 10 {
            let ran = counts(2 + random(&mut state) % 20);
            let bad = random(&mut state) % ran.len();
            let run = || {
                pool.run(ran.len(), &|chunk| {
                    ran[chunk].fetch_add(1, Ordering::Relaxed);
                    if chunk == bad {
                        // A panic without the message.
                        resume_unwind(Box::new(chunk));
                    }
                });
            };
            let panic = catch_unwind(AssertUnwindSafe(run)).unwrap_err();
            assert_eq!(*panic.downcast::<usize>().unwrap(), bad);
            assert!(pool.threads() == 1 || all_are(&ran, 1));
            pool.run(ran.len(), &|chunk| ran[chunk].store(7, Ordering::Relaxed));
            assert!(all_are(&ran, 7));
        }
    }
}

#[test]
fn one_of_many_panics_is_raised() {
    for pool in pools() {
        let run = || pool.run(50, &|chunk| resume_unwind(Box::new(chunk)));
        assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
        pool.run(50, &|_| ());
    }
}

#[test]
fn a_run_inside_a_chunk_stays_on_its_thread() {
    let others = pool(2);
    for pool in pools() {
        let ran = counts(12);
        pool.run(4, &|outer| {
            let here = thread::current().id();
            let nested = if outer % 2 == 0 { &pool } else { &others };
            nested.run(3, &|inner| {
                assert!(pool.threads() == 1 || thread::current().id() == here);
                ran[3 * outer + inner].fetch_add(1, Ordering::Relaxed);
            });
        });
        assert!(all_are(&ran, 1));
    }
}

#[test]
fn callers_take_turns() {
    let pool = pool(2);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..JOBS / 10 {
                    let ran = counts(9);
                    pool.run(9, &|chunk| {
                        ran[chunk].fetch_add(1, Ordering::Relaxed);
                    });
                    assert!(all_are(&ran, 1));
                }
            });
        }
    });
}

#[test]
fn pools_come_and_go() {
    for i in 0..JOBS / 20 {
        let pool = pool(1 + i % 4);
        if i % 3 > 0 {
            pool.run(i, &|_| ());
        }
    }
}

#[test]
fn impossible_numbers_of_threads_are_refused() {
    for threads in [0, MAX_THREADS + 1] {
        let pool = Pool::new(PoolOptions { threads, ..PoolOptions::default() });
        assert!(matches!(pool, Err(PoolError::Threads { threads: t }) if t == threads));
    }
    assert!((1..=DEFAULT_THREADS_LIMIT).contains(&PoolOptions::default().threads));
}
