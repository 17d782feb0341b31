//! NCCL, `libnccl.so.2`: communicators between threads and processes of one machine.
//!
//! The process that makes a communicator's id runs its server, which collects what all ranks have
//! sent for a collective, computes, and answers each. A rank sends and receives on the thread of
//! the stream that the collective was queued on.

mod calls;
mod communicator;
mod elements;
mod errors;
mod group;
mod id;
mod lifecycle;
mod operators;
mod server;
mod wire;

use crate::config::{self, CallPlan};

use communicator::FakeCommunicator;
use errors::{NcclFailure, NcclResult};

/// Runs a function of NCCL and returns its code; the text of an error is kept.
fn nccl(symbol: &'static str, body: impl FnOnce(&CallPlan) -> NcclResult) -> i32 {
    let call = config::call(symbol);
    let result = match call.failure {
        Some(code) => {
            let text = format!("{symbol} was configured to fail");
            Err(NcclFailure { code: code.unwrap_or(errors::INTERNAL_ERROR), text })
        }
        None => body(&call),
    };
    match result {
        Ok(()) => errors::SUCCESS,
        Err(failure) => {
            group::note(&failure);
            failure.tell()
        }
    }
}

/// Runs a function on a communicator. An error becomes the status of a non-blocking one, as with
/// NCCL: then only an abort helps.
fn nccl_on(symbol: &'static str, handle: usize, body: impl FnOnce(&CallPlan) -> NcclResult) -> i32 {
    let code = nccl(symbol, body);
    if !matches!(code, errors::SUCCESS | errors::IN_PROGRESS)
        && let Ok(communicator) = FakeCommunicator::find(handle)
        && !communicator.is_blocking
    {
        communicator.fail(code);
    }
    code
}

/// Writes a result; null is an invalid argument.
fn answer<T>(to: *mut T, value: T) -> NcclResult {
    if crate::pointers::put(to, value) {
        return Ok(());
    }
    Err(NcclFailure::argument("the pointer for the result is null"))
}
