#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| red_candle_fuzz::fuzz("ggml", bytes));
