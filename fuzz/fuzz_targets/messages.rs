//! Fuzzes the target `garbage::messages`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ronde_testkit::garbage::messages(bytes));
