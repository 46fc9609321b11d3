#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tokentap_fuzz::calls(bytes));
