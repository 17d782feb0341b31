//! Fuzzes the entry `garbage::jobs`, which says what it feeds.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ronde_testkit::garbage::jobs(bytes));
