//! What a tokenizer costs: `tokenizer_memory PATH/tokenizer.json [TEXT]` prints load time and resident size (Linux).
//! Put `stock` before the path to measure the `tokenizers` crate in the same way.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::time::Instant;

use spinetail_engine::text::{SpecialTokens, Tokenizer, Tokens};

fn kib(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).unwrap_or(0)
}

fn measure<T>(path: &str, text: &str, load: impl Fn(&[u8]) -> T, encode: impl Fn(&T, &str) -> usize) {
    let (before, start) = (kib("VmRSS"), Instant::now());
    let file = std::fs::read(path).unwrap();
    let tokenizer = load(&file);
    drop(file);
    let (load, loaded, peak) = (start.elapsed(), kib("VmRSS"), kib("VmHWM"));
    let start = Instant::now();
    let tokens = encode(&tokenizer, text);
    println!("load {load:.1?}: {} KiB resident, {} KiB at the peak", loaded - before, peak - before);
    println!("{} bytes to {tokens} tokens in {:.1?}", text.len(), start.elapsed());
    println!("afterwards {} KiB resident, {} KiB at the peak", kib("VmRSS") - before, kib("VmHWM") - before);
}

fn main() {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let stock = arguments.first().is_some_and(|first| first == "stock");
    if stock {
        arguments.remove(0);
    }
    let path = arguments.first().expect("usage: tokenizer_memory [stock] tokenizer.json [text]");
    let text = arguments.get(1).map(|path| std::fs::read_to_string(path).unwrap()).unwrap_or_default();
    if stock {
        let load = |file: &[u8]| tokenizers::Tokenizer::from_bytes(file).unwrap();
        measure(path, &text, load, |t, text| t.encode_fast(text, false).unwrap().len());
    } else {
        let load = |file: &[u8]| Tokenizer::from_json(file, None).unwrap();
        measure(path, &text, load, |t, text| t.encode(text, SpecialTokens::Recognise).unwrap().len());
    }
}
