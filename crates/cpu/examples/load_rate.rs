//! How fast the dense weights of a model are read into memory.
//!
//! `cargo run --release -p spinetail-cpu --example load_rate -- MODEL [direct|buffered]`. Make the system forget the file
//! first, or a buffered reading comes from memory; `dd iflag=direct bs=8M` on `dense.bin` is what to hold it against.
#![allow(clippy::print_stdout)]

use std::time::Instant;

use spinetail_checkpoint::{OpenOptions, open_model_with};
use spinetail_core::ReadMode;
use spinetail_cpu::{CpuBackend, CpuOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let model = args.next().ok_or("a model is expected")?;
    let read_mode = match args.next().as_deref() {
        None | Some("direct") => ReadMode::Direct,
        Some("buffered") => ReadMode::Buffered,
        Some(other) => return Err(format!("{other}: expected direct or buffered").into()),
    };
    let source = open_model_with(model.as_ref(), &OpenOptions { read_mode, ..OpenOptions::default() })?;
    let (mut bytes, mut steps) = (0, 0);
    let start = Instant::now();
    let loaded = CpuBackend::load(&*source, &CpuOptions::default(), &mut |n| {
        bytes += n;
        steps += 1;
    })?;
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{bytes} bytes in {steps} steps, {:.0} ms, {:.2} GB/s, {}",
        seconds * 1e3,
        bytes as f64 / seconds / 1e9,
        source.read_mode()
    );
    drop(loaded);
    Ok(())
}
