//! Fuzzes the target `garbage::texts`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ronde_testkit::garbage::texts(bytes));
