//! Worlds for tests: real engines over real sockets and real shared memory, all in one process.
//!
//! Nothing here ships. A [`World`] runs one thread per rank, each with its own engine, and a small
//! launcher as their rendezvous.
#![forbid(unsafe_code)]

mod connection;
mod drill;
mod elastic;
pub mod garbage;
pub mod job_simulation;
mod launcher;
mod net;
mod rng;
mod tensor;
mod world;

pub use drill::drill;
pub use elastic::{ElasticLauncher, elastic_place};
pub use launcher::{Routes, TestLauncher};
pub use net::{Direction, Net, NetFault, NetStream, TimedFault};
pub use rng::{TestRng, effort, seed};
pub use tensor::Tensor;
pub use world::{TestRank, World};
