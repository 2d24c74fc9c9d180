//! Rates of the matrix kernels: gigabytes of packed weights (codes, scales and biases) per second, from memory and
//! from cache, for each width, instruction set and number of threads, beside the rate of reading alone.
//!
//! `cargo run --release -p spinetail-cpu --example kernel_rates -- [--isa NAME] [--bits N] [--group N] [--batch N]
//! [--mib N] [--rounds N]`. Give it a quiet machine; the spread says whether it was one.
#![allow(clippy::print_stdout)]

use spinetail_core::{Affine, BITS, DType, Format};
use spinetail_cpu::Precision;
use spinetail_cpu::kernels::{Isa, Kernels};
use spinetail_cpu::probe::{Memory, Place, integer_dot};

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

/// One line of the table: a format on an instruction set.
fn measure(o: &Options, k: Kernels, format: Format, memory: &mut Memory) {
    let matrices = memory.matrices(format);
    print!("{:12} {:8}", k.isa().name(), name(format));
    for (precision, name) in [(Precision::Exact, "exact"), (Precision::Fast, "fast")] {
        for threads in [1, 2] {
            let [far, near] = [Place::Memory, Place::Cache]
                .map(|place| matrices.rate(k, precision, o.batch, threads, place, o.rounds));
            print!(" | {name} {threads}T {far} {near}");
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
    let mut memory = Memory::new(o.bytes).map_err(|e| e.to_string())?;
    println!(
        "GB/s of packed weights, best (worst) of {} rounds, batch {}; each: from memory, from cache",
        o.rounds, o.batch
    );
    for threads in [1, 2] {
        println!("reading alone, {threads} threads: {}", memory.read(threads, o.rounds));
    }
    for isa in Isa::ALL.into_iter().filter(|&isa| o.isa.map_or(isa != Isa::Scalar, |only| only == isa)) {
        let Some(k) = Kernels::for_isa(isa) else { continue };
        let [one, two] = [1, 2].map(|threads| integer_dot(threads, isa) / 1e9);
        println!("{:12} integer products: {one:.0} GOPS with one thread, {two:.0} with two", isa.name());
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
