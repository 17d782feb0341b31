//! Fuzzes the entry `garbage::rendezvous`, which says what it feeds.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ronde_testkit::garbage::rendezvous(bytes));
