#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| silt_hostile::targets::run("repair", data));
