//! What this machine's memory and the kernels on it can do: rates of reading, of products with packed weights, and of
//! integer products, as rooflines to hold a model's speed against.
//!
//! Each figure is the best of a few rounds of some milliseconds: other programs only ever make one worse. The loops are
//! those of `examples/kernel_rates.rs`, which prints many more of them. Must not decide anything: what is computed does
//! not depend on what is measured.

use std::hint::black_box;
use std::ops::Range;
use std::sync::{Barrier, OnceLock};
use std::thread::Builder;
use std::time::Instant;

use spinetail_core::{Affine, BITS, DType, Format, Part, SlabError, TensorLayout, TensorSpec};

use crate::Precision;
use crate::kernels::{Activations, Isa, Kernels, SharedOut, Weights};
use crate::memory::{HostMemory, Region};

/// Shape of a matrix: rows are those of a projection of the 35B model.
const ROWS: usize = 2048;
const COLUMNS: usize = 2048;

/// Of a matrix, the rows that fit a second-level cache at any width.
const NEAR_ROWS: usize = ROWS / 8;

/// Products of the same rows in a round, when they come from cache.
const REPEATS: usize = 400;

/// More than most processors keep in their caches: what [`memory_bandwidth`] and [`unpack_dot`] take, if they may.
pub const FAR_BYTES: usize = 256 << 20;

/// The least that they need: a matrix or two.
pub const LEAST_BYTES: usize = 8 << 20;

/// Enough rounds for one to be undisturbed.
const ROUNDS: usize = 5;

/// Bytes per second that `threads` threads together read from `bytes` bytes of memory, each its own part.
///
/// Takes that memory ([`FAR_BYTES`] say something about memory, fewer perhaps about caches: see [`cache_bytes`]) and some
/// tenths of a second, as [`unpack_dot`] does; 0 where there is none.
pub fn memory_bandwidth(threads: usize, bytes: usize) -> f64 {
    Memory::new(bytes.max(LEAST_BYTES)).map_or(0.0, |memory| memory.read(threads, ROUNDS).best)
}

/// Bytes of the largest cache of the first processor, which others may share; `None` where the system does not say.
pub fn cache_bytes() -> Option<usize> {
    let size = |index: std::io::Result<std::fs::DirEntry>| {
        let text = std::fs::read_to_string(index.ok()?.path().join("size")).ok()?;
        let kib: usize = text.trim().strip_suffix('K')?.parse().ok()?;
        kib.checked_mul(1024)
    };
    std::fs::read_dir("/sys/devices/system/cpu/cpu0/cache").ok()?.filter_map(size).max()
}

/// Bytes of packed weights (codes, scales and biases, in groups of 64) per second that `threads` threads together
/// multiply with one row of 8-bit activations: the `fast` precision's decode. The weights come from `far_bytes` bytes of
/// memory, or, without, from each thread's own cache.
///
/// 0 where this processor lacks `isa`, `bits` is no width there are kernels for, or there is no such memory.
pub fn unpack_dot(threads: usize, isa: Isa, bits: u8, far_bytes: Option<usize>) -> f64 {
    let (Some(kernels), true) = (Kernels::for_isa(isa), BITS.contains(&bits)) else {
        return 0.0;
    };
    let format = Format::Affine(Affine { bits, group_size: 64, scales: DType::Bf16 });
    let (bytes, place) = match far_bytes {
        Some(bytes) => (bytes.max(LEAST_BYTES), Place::Memory),
        // At the larger widths one matrix; all threads read the same rows, each from its own cache.
        None => (LEAST_BYTES, Place::Cache),
    };
    Memory::new(bytes).map_or(0.0, |mut memory| {
        memory.matrices(format).rate(kernels, Precision::Fast, 1, threads, place, ROUNDS).best
    })
}

/// Multiplications and additions of 8-bit integers per second, two for each weight and input, by `threads` threads
/// together: 4-bit codes from cache against rows of activations, unpacked before where the kernels have panels, summed up
/// and never scaled. No product of a batch is faster.
///
/// 0 where this processor lacks `isa`.
pub fn integer_dot(threads: usize, isa: Isa) -> f64 {
    let Some(kernels) = Kernels::for_isa(isa) else {
        return 0.0;
    };
    // The scalar kernels are some hundred times slower than the others.
    let repeats = if isa == Isa::Scalar { 5 } else { 2_000 };
    let operations = 2 * Kernels::INTEGER_PRODUCTS * repeats * threads.max(1);
    let work = |_| {
        black_box(kernels.integer_products(repeats));
    };
    rate(threads, ROUNDS, operations, work).best
}

/// Best and worst of several rounds, per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// Of the round that was disturbed least.
    pub best: f64,
    /// Of the one that was disturbed most.
    pub worst: f64,
}

impl std::fmt::Display for Rate {
    /// In thousand millions.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:5.1} ({:4.1})", self.best / 1e9, self.worst / 1e9)
    }
}

/// Where weights come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Matrices beyond what caches hold, each once a round; threads share the rows of each.
    Memory,
    /// Some rows, over and over, from each thread's own cache.
    Cache,
}

/// How many of `threads` threads the system gives at once, this one among them.
pub fn threads_given(threads: usize) -> usize {
    let enough = OnceLock::new();
    std::thread::scope(|s| {
        let wait = || {
            enough.wait();
        };
        let others = (1..threads).take_while(|_| Builder::new().spawn_scoped(s, wait).is_ok()).count();
        enough.get_or_init(|| ());
        1 + others
    })
}

/// Runs `work(thread)`, which does `amount / threads` of something, on `threads` threads (or as many of them as the system
/// gives) that start together, `rounds` times and once before they count.
fn rate(threads: usize, rounds: usize, amount: usize, work: impl Fn(usize) + Sync) -> Rate {
    let threads = threads.max(1);
    // Known once it is known how many the system gives: a thread too few would leave the others waiting for ever.
    let barrier = OnceLock::new();
    let seconds = |thread: usize| -> Vec<f64> {
        let barrier: &Barrier = barrier.wait();
        (0..=rounds)
            .map(|_| {
                barrier.wait();
                let start = Instant::now();
                work(thread);
                barrier.wait();
                start.elapsed().as_secs_f64()
            })
            .skip(1)
            .collect()
    };
    let (all, started) = std::thread::scope(|s| {
        let mut started = 1;
        while started < threads {
            let (seconds, thread) = (&seconds, started);
            if Builder::new().spawn_scoped(s, move || drop(seconds(thread))).is_err() {
                break;
            }
            started += 1;
        }
        barrier.get_or_init(|| Barrier::new(started));
        (seconds(0), started)
    });
    let done = amount as f64 * started as f64 / threads as f64;
    let rates = all.into_iter().map(|seconds| done / seconds.max(1e-9));
    rates.fold(Rate { best: 0.0, worst: f64::INFINITY }, |r, found| Rate {
        best: r.best.max(found),
        worst: r.worst.min(found),
    })
}

/// Sums words: what reading costs when nothing is computed.
fn read(bytes: &[u8]) -> u64 {
    let mut sums = [0u64; 8];
    for words in bytes.chunks_exact(64) {
        for (sum, word) in sums.iter_mut().zip(words.as_chunks::<8>().0) {
            *sum = sum.wrapping_add(u64::from_le_bytes(*word));
        }
    }
    sums.iter().fold(0, |a, b| a ^ b)
}

/// Memory full of finite numbers, whatever it is taken for. It goes back to the system when it is dropped, and lies in pages
/// as the weights of a model do.
pub struct Memory(Region);

impl Memory {
    /// Takes and fills `bytes` bytes.
    pub fn new(bytes: usize) -> Result<Self, SlabError> {
        let mut memory = HostMemory::default().region(bytes)?;
        let mut state = 1u64;
        // The top bit of an exponent is never set, in bf16, f16 or f32.
        for word in memory.as_chunks_mut::<8>().0 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *word = (state >> 11 & 0xbfff_bfff_bfff_bfff).to_le_bytes();
        }
        Ok(Self(memory))
    }

    /// The rate of reading all of it, in bytes.
    pub fn read(&self, threads: usize, rounds: usize) -> Rate {
        let each = self.0.len() / threads.max(1);
        rate(threads, rounds, each * threads.max(1), |t| {
            black_box(read(&self.0[t * each..(t + 1) * each]));
        })
    }

    /// As many matrices as fit, one after another, each as in a container: codes, then scales, then biases.
    pub fn matrices(&mut self, format: Format) -> Matrices<'_> {
        let spec = TensorSpec { shape: vec![ROWS, COLUMNS], format };
        let (layout, bytes) = TensorLayout::packed(spec, 0);
        let stride = bytes.next_multiple_of(64) as usize;
        for place in self.0.chunks_exact_mut(stride) {
            // Scales of ordinary size: products of random bytes are often denormal, which costs ten times as much.
            for part in layout.spec.parts().iter().skip(1) {
                for (i, bytes) in place[layout.range(*part)].chunks_exact_mut(2).enumerate() {
                    bytes.copy_from_slice(&[(i * 37 % 251) as u8, 0x3c | (i as u8 & 1) << 7]);
                }
            }
        }
        let parts = self.0.chunks_exact(stride).map(|m| Part::ALL.map(|part| layout.slice(m, part)));
        Matrices {
            weights: parts.map(|parts| Weights::new(&layout.spec, parts)).collect(),
            spec: layout.spec,
        }
    }
}

/// Matrices of one format.
pub struct Matrices<'m> {
    spec: TensorSpec,
    weights: Vec<Weights<'m>>,
}

impl Matrices<'_> {
    /// The rate of products with `batch` rows of activations, in bytes of weights.
    ///
    /// From cache, threads have matrices of their own as far as there are any; without one the rate is 0.
    pub fn rate(
        &self,
        kernels: Kernels,
        precision: Precision,
        batch: usize,
        threads: usize,
        place: Place,
        rounds: usize,
    ) -> Rate {
        let threads = threads.max(1);
        let mut acts = Activations::new();
        let x = (0..COLUMNS * batch.max(1)).map(|i| ((i * 7919 % 997) as f32 - 498.0) / 498.0);
        acts.set(&x.collect::<Vec<_>>(), COLUMNS);
        if let Format::Affine(a) = self.spec.format {
            acts.prepare(&kernels, a);
        }
        let run = |matrices: &[Weights<'_>], rows: Range<usize>, repeats: usize| {
            let mut out = vec![0.0f32; ROWS * acts.rows()];
            let out = SharedOut::new(&mut out, ROWS);
            for w in std::iter::repeat_n(matrices, repeats).flatten() {
                match precision {
                    Precision::Exact => kernels.exact(w, rows.clone(), acts.x(), &out),
                    Precision::Fast => kernels.fast(w, rows.clone(), &acts, &out),
                }
            }
        };
        let bytes = self.spec.bytes();
        match place {
            Place::Memory => rate(threads, rounds, self.weights.len() * bytes, |t| {
                run(&self.weights, ROWS * t / threads..ROWS * (t + 1) / threads, 1);
            }),
            _ if self.weights.is_empty() => Rate { best: 0.0, worst: 0.0 },
            Place::Cache => rate(threads, rounds, bytes * NEAR_ROWS / ROWS * REPEATS * threads, |t| {
                let t = t % self.weights.len();
                run(&self.weights[t..=t], 0..NEAR_ROWS, REPEATS);
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rate_there_is_can_be_measured() {
        let best = Kernels::detect();
        let mut memory = Memory::new(8 << 20).unwrap();
        assert!(memory.read(2, 1).best > 0.0);
        for format in [4, 8].map(|bits| Format::Affine(Affine { bits, group_size: 64, scales: DType::Bf16 }))
        {
            let matrices = memory.matrices(format);
            for (precision, place) in [(Precision::Fast, Place::Memory), (Precision::Exact, Place::Memory)] {
                let r = matrices.rate(best, precision, 1, 1, place, 1);
                assert!(r.best >= r.worst && r.worst > 0.0, "{r:?}");
            }
            let shared = matrices.rate(best, Precision::Fast, 1, 5, Place::Cache, 1);
            assert!(shared.best > 0.0, "{shared:?}");
            let mut small = Memory::new(1000).unwrap();
            for place in [Place::Cache, Place::Memory] {
                let none = small.matrices(format).rate(best, Precision::Fast, 1, 1, place, 1);
                assert_eq!(none, Rate { best: 0.0, worst: 0.0 });
            }
        }
        for bits in BITS {
            assert!(unpack_dot(1, best.isa(), bits, Some(0)) > 0.0, "{bits} bits in the least memory");
            assert!(unpack_dot(1, best.isa(), bits, None) > 0.0, "{bits} bits");
        }
        assert!(memory_bandwidth(1, 0) > 0.0);
        assert!(integer_dot(1, best.isa()) > 0.0);
        assert!(integer_dot(1, Isa::Scalar) > 0.0);
    }

    #[test]
    fn what_this_processor_lacks_has_no_rate() {
        let lacking =
            Isa::ALL.into_iter().find(|isa| !isa.is_available()).expect("no processor has all of them");
        assert_eq!(integer_dot(1, lacking), 0.0);
        assert_eq!(unpack_dot(1, lacking, 4, None), 0.0);
        assert_eq!(unpack_dot(1, Isa::Scalar, 7, None), 0.0);
    }
}
