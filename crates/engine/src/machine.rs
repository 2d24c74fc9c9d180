//! [`MachineRates`]: what this machine's memory and processor can do, to hold a model's speed against.

use spinetail_cpu::PoolOptions;
use spinetail_cpu::kernels::Kernels;
pub use spinetail_cpu::probe::{integer_dot, memory_bandwidth, unpack_dot};

use crate::Isa;

/// Rates of some threads together.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Rates {
    /// How many threads.
    pub threads: usize,
    /// Reading memory, in bytes per second.
    pub memory_bytes_per_s: f64,
    /// Products of 4-bit weights from memory with one row of 8-bit activations, in bytes of packed weights per second.
    pub unpack_memory_bytes_per_s: f64,
    /// The same with weights from cache.
    pub unpack_cache_bytes_per_s: f64,
    /// Multiplications and additions of 8-bit integers from cache, two for each weight and input, per second.
    pub integer_ops_per_s: f64,
}

/// What the processor and its memory do at best, with nothing else running.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct MachineRates {
    /// The instruction set that was measured.
    pub isa: Isa,
    /// One thread.
    pub one: Rates,
    /// All threads that an engine would use.
    pub all: Rates,
}

impl Rates {
    /// Measures with `threads` threads and the kernels of `isa`; what this processor lacks has rate 0.
    pub fn measure(threads: usize, isa: Isa) -> Self {
        Self {
            threads,
            memory_bytes_per_s: memory_bandwidth(threads),
            unpack_memory_bytes_per_s: unpack_dot(threads, isa, 4, true),
            unpack_cache_bytes_per_s: unpack_dot(threads, isa, 4, false),
            integer_ops_per_s: integer_dot(threads, isa),
        }
    }
}

impl MachineRates {
    /// Measures for a second or two, with `threads` threads (as many as an engine would use, where that is left out)
    /// and the kernels of `isa` (the best there are).
    pub fn measure(threads: Option<usize>, isa: Option<Isa>) -> Self {
        let threads = threads.unwrap_or(PoolOptions::default().threads).max(1);
        let isa = isa.unwrap_or_else(|| Kernels::detect().isa());
        let one = Rates::measure(1, isa);
        Self { isa, one, all: if threads == 1 { one } else { Rates::measure(threads, isa) } }
    }
}
