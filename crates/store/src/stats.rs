//! What the store counts.

/// Counters since the store was made. A use of a record is a hit, late or a miss.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreStats {
    /// Uses that found the record in a slot.
    pub hits: u64,
    /// Uses of a record that was being read ahead and had not come yet.
    pub late: u64,
    /// Uses that had to start a read.
    pub misses: u64,
    /// Bytes of records read, whatever for.
    pub bytes_read: u64,
    /// Records read.
    pub reads: u64,
    /// Nanoseconds that readers spent reading, all of them together.
    pub reading_ns: u64,
    /// Nanoseconds in which the model had nothing to do but wait for a read.
    pub read_wait_ns: u64,
    /// Records that gave way to others.
    pub evictions: u64,
    /// Records read ahead on a guess.
    pub guesses: u64,
    /// Guesses that were used, late ones included.
    pub guesses_used: u64,
    /// Bytes of guesses that gave way without having been used.
    pub wasted_bytes: u64,
    /// Reads that failed and were tried again.
    pub retries: u64,
    /// Reads that failed for good, of guesses as well.
    pub failures: u64,
}

impl StoreStats {
    /// Uses of records.
    pub fn uses(&self) -> u64 {
        self.hits + self.late + self.misses
    }

    /// Share of uses that found their record in a slot; NaN before the first use.
    pub fn hit_rate(&self) -> f64 {
        self.hits as f64 / self.uses() as f64
    }

    /// What was added since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            hits: self.hits - before.hits,
            late: self.late - before.late,
            misses: self.misses - before.misses,
            bytes_read: self.bytes_read - before.bytes_read,
            reads: self.reads - before.reads,
            reading_ns: self.reading_ns - before.reading_ns,
            read_wait_ns: self.read_wait_ns - before.read_wait_ns,
            evictions: self.evictions - before.evictions,
            guesses: self.guesses - before.guesses,
            guesses_used: self.guesses_used - before.guesses_used,
            wasted_bytes: self.wasted_bytes - before.wasted_bytes,
            retries: self.retries - before.retries,
            failures: self.failures - before.failures,
        }
    }
}
