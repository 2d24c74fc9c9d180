#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    spinetail_fuzz::v1_layout(data);
});
