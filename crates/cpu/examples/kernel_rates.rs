//! Rates of the matrix kernels: gigabytes of packed weights (codes, scales and biases) per second, from memory and
//! from cache, for each width, instruction set and number of threads, beside the rate of reading alone.
//!
//! `cargo run --release -p spinetail-cpu --example kernel_rates -- [--isa NAME] [--bits N] [--group N] [--batch N]
//! [--mib N] [--rounds N]`. Give it a quiet machine; the spread says whether it was one.
#![allow(clippy::print_stdout)]

use std::hint::black_box;
use std::ops::Range;
use std::sync::Barrier;
use std::time::Instant;

use spinetail_core::{Affine, BITS, DType, Format, Part, TensorLayout, TensorSpec};
use spinetail_cpu::kernels::{Activations, Isa, Kernels, SharedOut, Weights};

/// Shape of one matrix: rows are those of a projection of the 35B model.
const ROWS: usize = 2048;
const COLUMNS: usize = 2048;

/// Products of one small matrix in a round.
const REPEATS: usize = 400;

struct Options {
    isa: Option<Isa>,
    bits: Option<u8>,
    group: usize,
    batch: usize,
    bytes: usize,
    rounds: usize,
}

fn options() -> Result<Options, String> {
    let mut o = Options { isa: None, bits: None, group: 64, batch: 1, bytes: 1 << 30, rounds: 5 };
    let mut args = std::env::args().skip(1);
    while let Some(flag) = args.next() {
        let value = args.next().ok_or_else(|| format!("{flag} needs a value"))?;
        let number = || value.parse::<usize>().map_err(|e| format!("{flag} {value}: {e}"));
        match flag.as_str() {
            "--isa" => o.isa = Some(value.parse().map_err(|e| format!("{e}"))?),
            "--bits" => o.bits = Some(number()? as u8),
            "--group" => o.group = number()?,
            "--batch" => o.batch = number()?,
            "--mib" => o.bytes = number()? << 20,
            "--rounds" => o.rounds = number()?,
            _ => return Err(format!("unknown flag {flag}")),
        }
    }
    Ok(o)
}

/// Best and worst rate of several rounds, in GB/s.
struct Rate {
    best: f64,
    worst: f64,
}

/// Runs `work(thread)` on `threads` threads, all starting together, `rounds` times.
fn rate(threads: usize, rounds: usize, bytes: usize, work: impl Fn(usize) + Sync) -> Rate {
    let barrier = Barrier::new(threads);
    let mut r = Rate { best: 0.0, worst: f64::INFINITY };
    let seconds = |thread: usize| -> Vec<f64> {
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
    let all = std::thread::scope(|s| {
        let others: Vec<_> = (1..threads).map(|t| s.spawn(move || seconds(t))).collect();
        let own = seconds(0);
        others.into_iter().for_each(|o| drop(o.join()));
        own
    });
    for seconds in all {
        let found = bytes as f64 / seconds / 1e9;
        (r.best, r.worst) = (r.best.max(found), r.worst.min(found));
    }
    r
}

impl std::fmt::Display for Rate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:5.1} ({:4.1})", self.best, self.worst)
    }
}

/// Sums words: what reading costs when nothing is computed.
fn read(bytes: &[u8]) -> u64 {
    let mut sums = [0u64; 8];
    for words in bytes.chunks_exact(64) {
        for (sum, word) in sums.iter_mut().zip(words.chunks_exact(8)) {
            *sum = sum.wrapping_add(u64::from_le_bytes([
                word[0], word[1], word[2], word[3], word[4], word[5], word[6], word[7],
            ]));
        }
    }
    sums.iter().fold(0, |a, b| a ^ b)
}

/// Products of a range of rows of all `matrices`, `repeat` times.
fn products(
    k: Kernels,
    precision: &str,
    matrices: &[Weights<'_>],
    rows: Range<usize>,
    acts: &Activations,
    repeat: usize,
) {
    let mut out = vec![0.0f32; ROWS * acts.rows()];
    let out = SharedOut::new(&mut out, ROWS);
    for w in std::iter::repeat_n(matrices, repeat).flatten() {
        match precision {
            "exact" => k.exact(w, rows.clone(), acts.x(), &out),
            _ => k.fast(w, rows.clone(), acts, &out),
        }
    }
}

/// One line of the table: a format on an instruction set. Matrices lie in memory as in a container: codes, then scales,
/// then biases.
fn measure(o: &Options, k: Kernels, format: Format, memory: &mut [u8]) {
    let spec = TensorSpec { shape: vec![ROWS, COLUMNS], format };
    let whole = TensorLayout::packed(spec, 0);
    let stride = whole.1.next_multiple_of(64) as usize;
    for place in memory.chunks_exact_mut(stride) {
        // Scales of ordinary size: products of random bytes are often denormal, which costs ten times as much.
        for part in whole.0.spec.parts().iter().skip(1) {
            let small = place[whole.0.range(*part)].chunks_exact_mut(2).enumerate();
            for (i, bytes) in small {
                bytes.copy_from_slice(&[(i * 37 % 251) as u8, 0x3c | (i as u8 & 1) << 7]);
            }
        }
    }
    let memory = &*memory;
    let parts = memory.chunks_exact(stride).map(|m| Part::ALL.map(|part| whole.0.slice(m, part)));
    let matrices: Vec<_> = parts.map(|parts| Weights::new(&whole.0.spec, parts)).collect();
    let mut acts = Activations::new();
    let x: Vec<f32> = (0..COLUMNS * o.batch).map(|i| ((i * 7919 % 997) as f32 - 498.0) / 498.0).collect();
    acts.set(&x, COLUMNS);
    if let Format::Affine(a) = format {
        acts.prepare(&k, a);
    }
    print!("{:12} {:8}", k.isa().name(), name(format));
    for precision in ["exact", "fast"] {
        for threads in [1, 2] {
            let bytes = matrices.len() * whole.0.spec.bytes();
            let far = rate(threads, o.rounds, bytes, |t| {
                products(k, precision, &matrices, ROWS * t / threads..ROWS * (t + 1) / threads, &acts, 1);
            });
            // A matrix would not fit the second-level cache at 8 bits: an eighth of its rows does.
            let near = rate(threads, o.rounds, whole.0.spec.bytes() / 8 * REPEATS * threads, |t| {
                products(k, precision, &matrices[t..=t], 0..ROWS / 8, &acts, REPEATS);
            });
            print!(" | {precision} {threads}T {far} {near}");
        }
    }
    println!();
}

fn name(format: Format) -> String {
    match format {
        Format::Plain(dtype) => dtype.to_string(),
        Format::Affine(a) => format!("{} g{}", a.bits, a.group_size),
    }
}

fn main() -> Result<(), String> {
    let o = options()?;
    let mut memory = vec![0u8; o.bytes];
    let mut state = 1u64;
    for word in memory.chunks_exact_mut(8) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        word.copy_from_slice(&(state >> 11).to_le_bytes());
    }
    // Finite plain weights too: the top bit of an exponent is never set, in bf16, f16 or f32.
    memory.iter_mut().skip(1).step_by(2).for_each(|b| *b &= 0xbf);
    println!(
        "GB/s of packed weights, best (worst) of {} rounds, batch {}; each: from memory, from cache",
        o.rounds, o.batch
    );
    for threads in [1, 2] {
        let r = rate(threads, o.rounds, memory.len(), |t| {
            let each = memory.len() / threads;
            black_box(read(&memory[t * each..(t + 1) * each]));
        });
        println!("reading alone, {threads} threads: {r}");
    }
    for isa in Isa::ALL.into_iter().filter(|&isa| o.isa.map_or(isa != Isa::Scalar, |only| only == isa)) {
        let Some(k) = Kernels::for_isa(isa) else { continue };
        for bits in BITS.into_iter().filter(|&bits| o.bits.is_none_or(|only| only == bits)) {
            let affine = Affine { bits, group_size: o.group, scales: DType::Bf16 };
            measure(&o, k, Format::Affine(affine), &mut memory);
        }
        if o.bits.is_none_or(|only| only == 16) {
            measure(&o, k, Format::Plain(DType::Bf16), &mut memory);
        }
    }
    Ok(())
}
