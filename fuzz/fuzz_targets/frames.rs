//! Fuzzes the target `garbage::frames`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ronde_testkit::garbage::frames(bytes));
