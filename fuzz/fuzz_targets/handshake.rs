//! Fuzzes the target `garbage::handshake`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ronde_testkit::garbage::handshake(bytes));
