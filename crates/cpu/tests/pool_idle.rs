//! A pool without jobs takes no processor time. In a process of its own, since the process's time is what is read.
#![cfg(target_os = "linux")]

use std::time::Duration;

use spinetail_cpu::{Pool, PoolOptions};

#[test]
fn idle_threads_sleep() {
    // User and system time of this process, in the system's ticks of 10 ms.
    let ticks = || -> u64 {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
        // The name comes second and may hold anything; from the third field on, utime and stime are the 14th and 15th.
        let fields = stat.rsplit_once(')').unwrap().1.split_whitespace().skip(11);
        fields.take(2).map(|field| field.parse::<u64>().unwrap()).sum()
    };
    let pool = Pool::new(PoolOptions { threads: 4, ..PoolOptions::default() }).unwrap();
    for _ in 0..1000 {
        pool.run(16, &|_| ());
    }
    std::thread::sleep(Duration::from_millis(20));
    let before = ticks();
    std::thread::sleep(Duration::from_secs(1));
    assert!(ticks() - before <= 1, "{} ticks in an idle second", ticks() - before);
}
