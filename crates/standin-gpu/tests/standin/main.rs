//! The stand-in behaves as NVIDIA's libraries do where Ronde depends on it, and fails as told.

mod collectives;
mod faults;
mod interface;
mod memory;
mod processes;
mod streams;
