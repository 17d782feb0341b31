//! How bytes get from rank to rank: shared memory on one host, sockets otherwise, and the means to
//! wait for them without ever waiting for the dead.

mod accept;
mod atomic;
pub(crate) mod bell;
mod depth;
pub(crate) mod dial;
pub(crate) mod door;
pub(crate) mod fate;
pub(crate) mod handover;
pub(crate) mod link;
pub(crate) mod patience;
pub(crate) mod sentinel;
pub(crate) mod shm;
pub(crate) mod socket;
pub(crate) mod traffic;
pub(crate) mod updates;
pub(crate) mod vigil;
pub(crate) mod wire;
