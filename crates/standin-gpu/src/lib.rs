//! A stand-in for hardware that CI cannot have: NVIDIA's driver and NCCL as one shared library,
//! over host memory.
//!
//! It exports the C symbols of `libcuda.so.1` and `libnccl.so.2` that Ronde uses; [`SYMBOLS`] lists
//! them. Device memory is ordinary process memory. Each stream is a queue with a thread of its own,
//! and copies, kernels and collectives run only there, in the order that events enforce: reading
//! data without waiting for the right event gives wrong data here, as it does on a GPU.
//! Communicators connect threads and processes on one machine through Unix sockets.
//!
//! `config.rs` documents how a test sets the number of devices, versions, delays and faults. This
//! library never ships.

mod config;
mod driver;
mod handles;
mod nccl;
mod pointers;
mod symbols;

use std::path::{Path, PathBuf};

pub use symbols::{ALL as SYMBOLS, StandinSymbol};

/// The path of the shared library, given the path of a test's executable. Cargo puts the library
/// next to the tests that depend on this crate, and one folder up when it builds this crate itself.
///
/// Load this one file in place of both of NVIDIA's libraries: two copies would not share their
/// state.
pub fn library(test: &Path) -> Option<PathBuf> {
    let folders = test.ancestors().skip(1).take(2);
    folders.map(|folder| folder.join("libronde_standin_gpu.so")).find(|file| file.exists())
}
