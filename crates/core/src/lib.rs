//! The data plane: combines the tensors of many ranks.
//!
//! A rank [joins](Engine::join) a world, submits tensors, and waits for them. The layers, from the
//! top: the [`engine`] negotiates and drives, a `collective` is an algorithm over a `group` of
//! ranks, a `transport` moves bytes through shared memory or sockets, a [`buffer`] is memory that a
//! caller owns, and [`reduce`] holds the arithmetic. Each layer uses only those below it. `watch`
//! records what happens and makes it visible. The [`tunnel`] for TensorFlow's data service stands
//! apart from these layers.

pub mod buffer;
mod collective;
pub mod device;
pub mod engine;
mod error;
mod group;
pub mod reduce;
mod transport;
pub mod tunnel;
mod watch;

pub use engine::Engine;
pub use error::{Error, Loss};
