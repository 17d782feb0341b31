//! Fuzzes the target `garbage::negotiation`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ronde_testkit::garbage::negotiation(bytes));
