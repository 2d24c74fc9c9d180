//! What a fork–join costs, in microseconds, for 1 to all threads: `pool_latency [THREADS]`.
//!
//! - `empty`: 32 empty chunks, one job after the other. Whoever comes first takes them.
//! - `work`: 32 chunks of under a microsecond of arithmetic: what is left of it, and how well it is shared.
//! - `hand-off`: one chunk per thread, each waiting until all have begun: every thread has got the job and reported.
//! - `paced`: as `hand-off`, with 5 µs of the caller's own work between jobs, as in a decode step.
//! - `asleep`: as `hand-off`, with 2 ms between jobs, so that the workers sleep.
//! - `scope`: as `hand-off`, with `std::thread::scope`.
//!
//! Each figure is the median over batches of a batch's mean, with the 10th and 90th percentiles.
#![expect(clippy::print_stdout, reason = "it is a report")]

use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use spinetail_cpu::{Pool, PoolError, PoolOptions};

const BATCHES: usize = 101;

fn main() -> Result<(), PoolError> {
    let threads = std::env::args().nth(1).and_then(|n| n.parse().ok());
    let threads = threads.unwrap_or(PoolOptions::default().threads);
    println!("us per fork-join: median (10 %..90 %)");
    row("threads", ["empty", "work", "hand-off", "paced", "asleep", "scope"].map(str::to_owned));
    for threads in 1..=threads {
        let pool = Pool::new(PoolOptions { threads, ..PoolOptions::default() })?;
        let hand_off = || {
            let begun = AtomicUsize::new(0);
            pool.run(threads, &|_| meet(&begun, threads));
        };
        let figures = [
            measure(500, Duration::ZERO, || pool.run(32, &|_| ())),
            measure(50, Duration::ZERO, || pool.run(32, &work)),
            measure(500, Duration::ZERO, hand_off),
            measure(200, Duration::from_micros(5), hand_off),
            measure(1, Duration::from_millis(2), hand_off),
            measure(5, Duration::ZERO, || scope(threads)),
        ];
        row(&threads.to_string(), figures);
    }
    Ok(())
}

fn row(threads: &str, figures: [String; 6]) {
    println!("{threads:>7}{}", figures.map(|figure| format!(" {figure:>22}")).concat());
}

/// A chain of dependent additions.
fn work(chunk: usize) {
    let sum = (0..700).fold(chunk as f32, |sum, i| sum + black_box(i) as f32);
    black_box(sum);
}

/// Times `job`, with `gap` before each.
fn measure(jobs: u32, gap: Duration, job: impl Fn()) -> String {
    let batch = |_| {
        let mut spent = Duration::ZERO;
        if gap.is_zero() {
            let start = Instant::now();
            (0..jobs).for_each(|_| job());
            spent = start.elapsed();
        } else {
            for _ in 0..jobs {
                wait(gap);
                let start = Instant::now();
                job();
                spent += start.elapsed();
            }
        }
        spent.as_secs_f64() * 1e6 / f64::from(jobs)
    };
    let mut us: Vec<f64> = (0..BATCHES).map(batch).collect();
    us.sort_by(f64::total_cmp);
    let at = |percent: usize| us[(BATCHES - 1) * percent / 100];
    format!("{:.2} ({:.2}..{:.2})", at(50), at(10), at(90))
}

fn wait(gap: Duration) {
    let start = Instant::now();
    if gap >= Duration::from_millis(1) {
        std::thread::sleep(gap);
    }
    while start.elapsed() < gap {
        spin_loop();
    }
}

/// Returns once all threads are here. Yields at times, should there be fewer processors than threads.
fn meet(begun: &AtomicUsize, threads: usize) {
    begun.fetch_add(1, Ordering::Relaxed);
    for polls in 1u32.. {
        if begun.load(Ordering::Relaxed) >= threads {
            return;
        }
        spin_loop();
        if polls.is_multiple_of(1024) {
            std::thread::yield_now();
        }
    }
}

fn scope(threads: usize) {
    let begun = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(|| meet(&begun, threads));
        }
        meet(&begun, threads);
    });
}
