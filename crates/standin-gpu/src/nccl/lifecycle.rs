//! Making and ending communicators.
#![expect(unsafe_code, reason = "exports C symbols")]

use std::ffi::c_int;
use std::sync::Arc;
use std::thread;

use super::communicator::{FakeCommunicator, NcclMembership};
use super::errors::{IN_PROGRESS, NcclFailure, NcclResult, SUCCESS};
use super::id::FakeUniqueId;
use super::{answer, group, nccl, nccl_on};
use crate::driver::devices;
use crate::pointers;

const MAGIC: u32 = 0xcafe_beef;

/// The beginning of `ncclConfig_t`; later versions only add to it.
#[derive(Clone, Copy)]
#[repr(C)]
struct NcclSettings {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
}

fn is_blocking(settings: *const NcclSettings) -> NcclResult<bool> {
    let Some(settings) = pointers::value(settings) else { return Ok(true) };
    if settings.magic != MAGIC || settings.size < size_of::<NcclSettings>() {
        return Err(NcclFailure::argument("ncclConfig_t was not initialized"));
    }
    match settings.blocking {
        // `NCCL_CONFIG_UNDEF_INT`.
        1 | c_int::MIN => Ok(true),
        0 => Ok(false),
        other => Err(NcclFailure::argument(format!("blocking is {other}"))),
    }
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommInitRankConfig(
    to: *mut usize,
    size: c_int,
    id: FakeUniqueId,
    rank: c_int,
    settings: *const NcclSettings,
) -> i32 {
    nccl("ncclCommInitRankConfig", |call| {
        let is_blocking = is_blocking(settings)?;
        if size < 1 || rank < 0 || rank >= size {
            return Err(NcclFailure::argument(format!("rank {rank} of {size}")));
        }
        // Without a context, the CUDA runtime uses the first device.
        let device = devices::current().unwrap_or(0);
        let physical = devices::physical(device).ok_or(crate::driver::CuCode::NOT_INITIALIZED)?;
        let own = NcclMembership { rank: rank as u64, size: size as u64, device, physical };
        let (handle, communicator) = FakeCommunicator::join(&id, own, is_blocking, (call, false))?;
        answer(to, handle)?;
        group::begin_setup(communicator)
    })
}

/// Only with one color, and in the order of the ranks.
#[unsafe(no_mangle)]
extern "C" fn ncclCommSplit(
    parent: usize,
    color: c_int,
    key: c_int,
    to: *mut usize,
    settings: *const NcclSettings,
) -> i32 {
    nccl_on("ncclCommSplit", parent, |call| {
        let is_blocking = is_blocking(settings)?;
        let parent = FakeCommunicator::ready(parent)?;
        if color != 0 || key as u64 != parent.rank {
            return Err(NcclFailure::argument("the stand-in splits off all ranks, in their order"));
        }
        let id = parent.id_of_split();
        if parent.rank == 0 {
            id.serve()?;
        }
        let device = parent.device;
        let physical = devices::physical(device).ok_or(crate::driver::CuCode::NOT_INITIALIZED)?;
        let own = NcclMembership { rank: parent.rank, size: parent.size, device, physical };
        let (handle, communicator) = FakeCommunicator::join(&id, own, is_blocking, (call, true))?;
        answer(to, handle)?;
        group::begin_setup(communicator)
    })
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommGetAsyncError(communicator: usize, to: *mut i32) -> i32 {
    nccl("ncclCommGetAsyncError", |_| answer(to, FakeCommunicator::find(communicator)?.status()))
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommCount(communicator: usize, to: *mut c_int) -> i32 {
    nccl_on("ncclCommCount", communicator, |_| {
        answer(to, FakeCommunicator::ready(communicator)?.size as c_int)
    })
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommFinalize(communicator: usize) -> i32 {
    nccl_on("ncclCommFinalize", communicator, |_| {
        let communicator = FakeCommunicator::ready(communicator)?;
        if communicator.is_blocking {
            communicator.drain();
            return Ok(());
        }
        communicator.set_in_progress();
        let waiting = Arc::clone(&communicator);
        let named = thread::Builder::new().name("standin-nccl-finalize".into());
        named
            .spawn(move || {
                waiting.drain();
                waiting.set_done();
            })
            .map_err(|error| NcclFailure::system(format!("no thread: {error}")))?;
        Err(NcclFailure::in_progress())
    })
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommDestroy(handle: usize) -> i32 {
    nccl("ncclCommDestroy", |_| {
        if handle == 0 {
            return Ok(());
        }
        let communicator = FakeCommunicator::find(handle)?;
        match communicator.status() {
            SUCCESS => {}
            IN_PROGRESS => {
                return Err(NcclFailure::argument("the communicator is still in progress"));
            }
            code => {
                let text = "the communicator has failed and must be aborted".into();
                return Err(NcclFailure { code, text });
            }
        }
        communicator.drain();
        communicator.leave();
        FakeCommunicator::forget(handle);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommAbort(handle: usize) -> i32 {
    nccl("ncclCommAbort", |_| {
        if handle == 0 {
            return Ok(());
        }
        FakeCommunicator::find(handle)?.abort();
        FakeCommunicator::forget(handle);
        Ok(())
    })
}
