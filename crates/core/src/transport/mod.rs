//! How bytes get from rank to rank: through shared memory on one host, through sockets otherwise,
//! with waits that end when a peer dies.

mod accept;
mod atomic;
pub(crate) mod bell;
mod depth;
pub(crate) mod dial;
pub(crate) mod failure_detector;
pub(crate) mod handover;
pub(crate) mod link;
pub(crate) mod ports;
pub(crate) mod rank_listener;
pub(crate) mod shm;
pub(crate) mod socket;
pub(crate) mod spin_limit;
pub(crate) mod traffic;
pub(crate) mod updates;
pub(crate) mod waiter;
pub(crate) mod wire;
pub(crate) mod world_state;
