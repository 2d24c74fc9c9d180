#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    spinetail_fuzz::trace(data);
});
