//! The id of a communicator: the name of its server's socket, and a secret that admits to it.
#![expect(unsafe_code, reason = "exports C symbols")]

use std::ffi::c_int;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use rustix::rand::{GetRandomFlags, getrandom};

use super::errors::{NcclFailure, NcclResult};
use super::{answer, nccl, server};
use crate::config;

const MAGIC: &[u8; 16] = b"ronde-standin-id";

pub(super) type IdToken = [u8; 16];

/// `ncclUniqueId`, which C passes by value.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct FakeUniqueId {
    bytes: [u8; 128],
}

impl FakeUniqueId {
    fn random() -> NcclResult<Self> {
        let mut bytes = [0; 128];
        bytes[..16].copy_from_slice(MAGIC);
        getrandom(&mut bytes[16..48], GetRandomFlags::empty())
            .map_err(|error| NcclFailure::system(format!("no random bytes: {error}")))?;
        Ok(Self { bytes })
    }

    pub(super) fn token(&self) -> IdToken {
        std::array::from_fn(|index| self.bytes[32 + index])
    }

    /// An abstract name: it disappears with its socket.
    pub(super) fn address(&self) -> NcclResult<SocketAddr> {
        if self.bytes[..16] != *MAGIC {
            return Err(NcclFailure::argument("the id was not made by ncclGetUniqueId"));
        }
        let name: String = self.bytes[16..32].iter().map(|byte| format!("{byte:02x}")).collect();
        SocketAddr::from_abstract_name(format!("ronde-standin-{name}"))
            .map_err(|error| NcclFailure::system(format!("no socket address: {error}")))
    }
}

impl FakeUniqueId {
    /// The id of the `number`th communicator that is split off the one with this id.
    pub(super) fn split(&self, number: u64) -> Self {
        let mut child = *self;
        for (byte, salt) in child.bytes[16..24].iter_mut().zip(number.to_le_bytes()) {
            *byte ^= salt;
        }
        child
    }

    /// Starts the server of this id in this process.
    pub(super) fn serve(&self) -> NcclResult {
        let address = self.address()?;
        let listener = UnixListener::bind_addr(&address)
            .map_err(|error| NcclFailure::system(format!("no listening socket: {error}")))?;
        server::start(listener, address, self.token())
    }
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetVersion(version: *mut c_int) -> i32 {
    nccl("ncclGetVersion", |_| answer(version, config::read().nccl))
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetUniqueId(to: *mut FakeUniqueId) -> i32 {
    nccl("ncclGetUniqueId", |_| {
        let id = FakeUniqueId::random()?;
        id.serve()?;
        answer(to, id)
    })
}
