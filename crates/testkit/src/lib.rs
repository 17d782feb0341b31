//! Worlds for tests: real engines over real sockets and real shared memory, all in one process.
//!
//! Nothing here ships. A [`World`] runs one thread per rank, each with an engine of its own, and a
//! small launcher that they meet at.
#![forbid(unsafe_code)]

mod connection;
mod dice;
mod drill;
mod elastic;
pub mod garbage;
mod launcher;
mod net;
mod tensor;
pub mod theatre;
mod world;

pub use dice::{Dice, effort, seed};
pub use drill::drill;
pub use elastic::{ElasticLauncher, elastic_place};
pub use launcher::{Launcher, Roads};
pub use net::{Fault, Harm, Net, Stream, Way};
pub use tensor::Tensor;
pub use world::{Member, World};
