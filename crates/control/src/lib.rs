//! Identities, messages and decisions: everything that can be said about a job without doing it.
//!
//! This crate performs no I/O, reads no clock and no environment, and holds no unsafe code. What
//! happens here is a function of what is passed in, so that every decision can be tested alone.
#![forbid(unsafe_code)]

pub mod admission;
pub mod autotune;
pub mod bench;
pub mod cause;
pub mod doctor;
mod dtype;
pub mod event;
mod ids;
pub mod install;
pub mod job;
pub mod launcher;
pub mod liveness;
pub mod muster;
pub mod negotiate;
mod printable;
pub mod seating;
pub mod settings;
pub mod status;
mod tuning;
pub mod watching;
pub mod wire;

pub use dtype::{DType, ReduceOp};
pub use ids::{Connection, Epoch, Rank, SetId, Time, Worker};
pub use printable::printable;
pub use tuning::{Knob, MOST_CONNECTIONS, Tuning};

/// Horovod's API level with Ronde's own version as the local part.
pub const VERSION: &str = concat!("0.28.1+ronde.", env!("CARGO_PKG_VERSION"));

/// Ronde's own version: that of the package `ronde`.
pub const PACKAGE_VERSION: &str = env!("CARGO_PKG_VERSION");
