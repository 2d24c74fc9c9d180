//! A source that fails on purpose: late, in another order, for a while, or for good.
//!
//! For tests of the store and of everything above it.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use spinetail_core::{
    DenseSource, ExpertId, ModelConfig, ModelSource, Part, ReadError, RecordLayout, RecordSource, TensorSpec,
};

/// What happens to reads of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// Each takes up to this long, so that they come in another order than they were asked for.
    Delay(Duration),
    /// One in this many fails with an error of the drive, and works when it is tried again.
    Flaky(u64),
    /// Reads of this record fail for good.
    Broken(ExpertId),
    /// This record's file ends before it.
    Short(ExpertId),
}

/// `S`, with faults.
pub struct FaultySource<S: ?Sized> {
    faults: Vec<Fault>,
    seed: u64,
    reads: AtomicU64,
    /// Records whose last read was made to fail: the next one works.
    failed: Mutex<HashSet<ExpertId>>,
    inner: Arc<S>,
}

impl<S: ?Sized> FaultySource<S> {
    /// `inner`, whose reads of records have `faults`.
    pub fn new(inner: Arc<S>, faults: Vec<Fault>, seed: u64) -> Self {
        Self { inner, faults, seed, reads: AtomicU64::new(0), failed: Mutex::default() }
    }

    /// Reads of records so far, failed ones included.
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    fn fault(&self, id: ExpertId, bytes: u64) -> Result<(), ReadError> {
        let n = self.reads.fetch_add(1, Ordering::Relaxed);
        // splitmix64
        let mut z = self.seed.wrapping_add(n.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        let path = || std::path::PathBuf::from("a faulty drive");
        let io = || {
            let error = std::io::Error::other("input/output error");
            ReadError::Io { path: path(), offset: 0, bytes, error }
        };
        for fault in &self.faults {
            match *fault {
                Fault::Delay(most) => {
                    std::thread::sleep(most.mul_f64((z >> 11) as f64 / (1u64 << 53) as f64));
                }
                Fault::Flaky(one_in) => {
                    let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
                    if !failed.remove(&id) && z.is_multiple_of(one_in.max(1)) {
                        failed.insert(id);
                        return Err(io());
                    }
                }
                Fault::Broken(broken) if broken == id => return Err(io()),
                Fault::Short(short) if short == id => {
                    return Err(ReadError::Short { path: path(), offset: 0, bytes, found: bytes / 2 });
                }
                _ => {}
            }
        }
        Ok(())
    }
}

impl<S: RecordSource + ?Sized> RecordSource for FaultySource<S> {
    fn record_layout(&self, layer: u16) -> Option<&RecordLayout> {
        self.inner.record_layout(layer)
    }

    fn expert_count(&self) -> usize {
        self.inner.expert_count()
    }

    fn read_record(&self, id: ExpertId, out: &mut [u8]) -> Result<(), ReadError> {
        self.fault(id, out.len() as u64)?;
        self.inner.read_record(id, out)
    }
}

impl<S: ModelSource + ?Sized> DenseSource for FaultySource<S> {
    fn config(&self) -> &ModelConfig {
        self.inner.config()
    }

    fn dense_spec(&self, name: &str) -> Option<&TensorSpec> {
        self.inner.dense_spec(name)
    }

    fn read_dense(&self, name: &str, part: Part, out: &mut [u8]) -> Result<(), ReadError> {
        self.inner.read_dense(name, part, out)
    }
}
