//! [`Machine`], what this machine has, and [`MachineRates`], what its memory and processor can do, to hold a model's speed
//! against.

use spinetail_cpu::PoolOptions;
use spinetail_cpu::kernels::Kernels;
use spinetail_cpu::probe::{FAR_BYTES, LEAST_BYTES, cache_bytes};
pub use spinetail_cpu::probe::{integer_dot, memory_bandwidth, threads_given, unpack_dot};

use crate::Isa;
use crate::control_group::GroupMemory;
use crate::memory::most_of;

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
    /// Memory that was read from, which is what there was for it.
    pub buffer_bytes: u64,
    /// Whether a cache may have held much of it, so that rates of memory are those of the cache.
    pub cached: bool,
}

/// A cache keeps little of what is read over and over if that is this many times as large.
const BEYOND_CACHE: u64 = 2;

/// What the process takes beside the buffers.
const PROCESS_BYTES: u64 = 16 << 20;

/// Memory to measure with: what [`FAR_BYTES`] says, if `budget_bytes` and most of what is free allow.
fn buffer_bytes(budget_bytes: Option<u64>, free_bytes: Option<u64>) -> u64 {
    let most = [budget_bytes, free_bytes.map(most_of)].into_iter().flatten().min().unwrap_or(u64::MAX);
    most.saturating_sub(PROCESS_BYTES).clamp(LEAST_BYTES as u64, FAR_BYTES as u64)
}

impl Rates {
    /// Measures with `threads` threads, the kernels of `isa` and `buffer_bytes` of memory; what this processor lacks has
    /// rate 0.
    pub fn measure(threads: usize, isa: Isa, buffer_bytes: usize) -> Self {
        Self {
            threads,
            memory_bytes_per_s: memory_bandwidth(threads, buffer_bytes),
            unpack_memory_bytes_per_s: unpack_dot(threads, isa, 4, Some(buffer_bytes)),
            unpack_cache_bytes_per_s: unpack_dot(threads, isa, 4, None),
            integer_ops_per_s: integer_dot(threads, isa),
        }
    }
}

impl MachineRates {
    /// Measures for a second or two, with `threads` threads (as many as an engine would use, where that is left out; fewer
    /// where the system refuses some) and the kernels of `isa` (the best there are), in `budget_bytes` of memory at most.
    pub fn measure(threads: Option<usize>, isa: Option<Isa>, budget_bytes: Option<u64>) -> Self {
        let threads = threads_given(threads.unwrap_or(PoolOptions::default().threads));
        let isa = isa.unwrap_or_else(|| Kernels::detect().isa());
        let buffer_bytes = buffer_bytes(budget_bytes, Machine::look().free_bytes());
        let cached = match cache_bytes() {
            Some(cache) => buffer_bytes < BEYOND_CACHE * cache as u64,
            None => buffer_bytes < FAR_BYTES as u64,
        };
        let buffer = buffer_bytes as usize;
        let one = Rates::measure(1, isa, buffer);
        let all = if threads == 1 { one } else { Rates::measure(threads, isa, buffer) };
        Self { isa, one, all, buffer_bytes, cached }
    }
}

/// What this machine has.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Machine {
    /// Processors that this process may use.
    pub processors: usize,
    /// The instruction sets there are kernels for, the best last.
    pub isas: Vec<Isa>,
    /// Memory in all; `None` where the system does not say, as below.
    pub memory_bytes: Option<u64>,
    /// Memory that is free or can be freed.
    pub available_bytes: Option<u64>,
    /// The most that the control group of this process may use; `None` where there is no limit.
    pub limit_bytes: Option<u64>,
    /// What is left of the limits of the control groups around this process, with page cache that can be taken back.
    pub limit_free_bytes: Option<u64>,
    /// The most address space that this process may have, used or not; `None` where there is no limit.
    pub address_limit_bytes: Option<u64>,
    /// What is left of that.
    pub address_free_bytes: Option<u64>,
}

impl Machine {
    /// Looks, and measures nothing.
    pub fn look() -> Self {
        let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let bytes = |name: &str| {
            let value = meminfo.lines().find_map(|l| l.strip_prefix(name))?;
            value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
        };
        let memory_bytes = bytes("MemTotal:");
        let group = GroupMemory::look(memory_bytes);
        let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
        let address_limit_bytes = address_limit_bytes(&limits);
        Self {
            processors: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            isas: Isa::ALL.into_iter().filter(|isa| isa.is_available()).collect(),
            memory_bytes,
            available_bytes: bytes("MemAvailable:"),
            limit_bytes: group.limit_bytes,
            limit_free_bytes: group.free_bytes,
            address_limit_bytes,
            address_free_bytes: address_limit_bytes.map(|limit| limit.saturating_sub(address_space_bytes())),
        }
    }

    /// Memory that this process can have without taking it from others; `None` where the system does not say.
    pub fn free_bytes(&self) -> Option<u64> {
        [self.available_bytes, self.limit_free_bytes, self.address_free_bytes].into_iter().flatten().min()
    }

    /// Memory that this process may use; `None` where the system does not say.
    pub fn usable_bytes(&self) -> Option<u64> {
        self.memory_bytes.map(|m| self.limit_bytes.map_or(m, |limit| m.min(limit)))
    }
}

/// The soft limit of `/proc/self/limits`.
fn address_limit_bytes(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|l| l.strip_prefix("Max address space"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Address space that this process has; 0 where the system does not say.
fn address_space_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = status
        .lines()
        .find_map(|l| l.strip_prefix("VmSize:")?.trim().strip_suffix("kB")?.trim().parse().ok());
    kib.map_or(0, |kib: u64| kib.saturating_mul(1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_fit_what_there_is() {
        let far = FAR_BYTES as u64;
        assert_eq!(buffer_bytes(None, None), far);
        assert_eq!(buffer_bytes(Some(8 << 30), Some(16 << 30)), far);
        assert_eq!(buffer_bytes(Some(64 << 20), Some(16 << 30)), 48 << 20);
        assert_eq!(buffer_bytes(Some(8 << 30), Some(64 << 20)), 32 << 20);
        assert_eq!(buffer_bytes(None, Some(64 << 20)), 32 << 20);
        assert_eq!(buffer_bytes(Some(1), Some(1)), LEAST_BYTES as u64);
    }

    #[test]
    fn the_soft_limit_of_address_space_counts() {
        let table = |soft: &str| {
            format!(
                "Limit  Soft Limit  Hard Limit  Units\nMax file locks  1  2  locks\nMax address space  {soft}  99  bytes\n"
            )
        };
        assert_eq!(address_limit_bytes(&table("1048576")), Some(1 << 20));
        assert_eq!(address_limit_bytes(&table("unlimited")), None);
        assert_eq!(address_limit_bytes("Max address space"), None);
        assert!(!cfg!(target_os = "linux") || address_space_bytes() > 1 << 20);
    }

    #[test]
    fn a_machine_has_something() {
        let m = Machine::look();
        assert!(m.processors > 0 && m.isas.contains(&Isa::Scalar), "{m:?}");
        if cfg!(target_os = "linux") {
            assert!(m.usable_bytes().is_some_and(|b| b > 1 << 20), "{m:?}");
        }
    }
}
