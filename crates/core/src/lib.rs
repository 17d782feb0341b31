//! The data plane: how tensors of many ranks become one.
//!
//! A rank [joins](Engine::join) a world, submits tensors, and waits for them. Inside, from the top:
//! the [`engine`] negotiates and drives, a `collective` is an algorithm over a `group` of ranks, a
//! `transport` moves bytes through shared memory or sockets, a [`buffer`] is memory that somebody
//! else owns, and [`reduce`] holds the arithmetic. Arrows go down only. `watch` is told what happens,
//! and lets others see it. Beside all that stands the [`tunnel`] of TensorFlow's data service.

pub mod buffer;
mod collective;
pub mod engine;
mod error;
mod group;
pub mod reduce;
mod transport;
pub mod tunnel;
mod watch;

pub use engine::Engine;
pub use error::{Error, Loss};
