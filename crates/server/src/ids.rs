//! Names for requests and answers that nobody else has, and the time at which they were given.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// 32 hexadecimal digits: random, and counted, so that no two of a process are the same.
pub(crate) fn random() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let half = || {
        // Each state has keys of its own, from the operating system's randomness.
        let mut hasher = RandomState::new().build_hasher();
        hasher.write_u64(count);
        hasher.finish()
    };
    format!("{:016x}{:016x}", half(), half())
}

/// Seconds since 1970.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
