//! Fuzzes the target `garbage::agent`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ronde_testkit::garbage::agent(bytes));
