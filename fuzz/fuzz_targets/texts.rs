//! Fuzzes the entry `garbage::texts`, which says what it feeds.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ronde_testkit::garbage::texts(bytes));
