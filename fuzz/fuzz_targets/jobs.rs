//! Fuzzes the target `garbage::jobs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ronde_testkit::garbage::jobs(bytes));
