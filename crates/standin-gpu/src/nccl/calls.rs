//! Collectives and messages: what a call asks for, and what it does to memory when it runs.
#![expect(unsafe_code, reason = "exports C symbols")]

use std::ffi::c_int;

use super::communicator::FakeCommunicator;
use super::elements::{self, NcclType, ReduceOperator};
use super::errors::{NcclFailure, NcclResult};
use super::operators::{self, PreMulFactor};
use super::wire::{NcclHeader, NcclKind};
use super::{group, nccl_on};
use crate::config::CallPlan;
use crate::driver::{CuResult, memory, streams};
use crate::pointers;

/// One collective or message, ready to be queued on a stream.
pub(super) struct FakeOperation {
    pub(super) header: NcclHeader,
    dtype: NcclType,
    send: DeviceRange,
    receive: DeviceRange,
    factor: Option<PreMulFactor>,
}

#[derive(Clone, Copy)]
struct DeviceRange {
    address: usize,
    size: usize,
}

impl DeviceRange {
    const NONE: DeviceRange = DeviceRange { address: 0, size: 0 };
}

impl FakeOperation {
    /// The bytes to send, read when the operation runs.
    pub(super) fn payload(&self) -> CuResult<Vec<u8>> {
        let _held = memory::hold(self.send.address, self.send.size)?;
        let mut bytes = pointers::bytes(self.send.address, self.send.size);
        if let Some(factor) = &self.factor {
            elements::scale(self.dtype, &mut bytes, &factor.read(self.dtype)?);
        }
        Ok(bytes)
    }

    /// Writes the answer to the receive buffer.
    pub(super) fn finish(&self, answer: &[u8]) -> CuResult {
        let _held = memory::hold(self.receive.address, self.receive.size)?;
        pointers::put_bytes(self.receive.address, &answer[..answer.len().min(self.receive.size)]);
        Ok(())
    }
}

/// The arguments that all of these calls have.
struct NcclArguments {
    kind: NcclKind,
    send: usize,
    receive: usize,
    count: usize,
    dtype: c_int,
    /// A reduction operator, a root or a peer.
    role: c_int,
    communicator: usize,
    stream: usize,
}

fn submit(symbol: &'static str, arguments: &NcclArguments) -> i32 {
    nccl_on(symbol, arguments.communicator, |call| try_submit(arguments, call))
}

fn try_submit(arguments: &NcclArguments, call: &CallPlan) -> NcclResult {
    let communicator = FakeCommunicator::ready(arguments.communicator)?;
    let stream = match arguments.stream {
        0..=2 => streams::default_of(communicator.device)?,
        handle => streams::find(handle)?,
    };
    if stream.device != communicator.device {
        return Err(NcclFailure::argument("the stream belongs to another device"));
    }
    let operation = arguments.operation(&communicator)?;
    for range in [operation.send, operation.receive] {
        memory::hold(range.address, range.size)
            .map_err(|_| NcclFailure::argument("the buffer is not memory of a device"))?;
    }
    group::submit(communicator, stream, operation, call)
}

impl NcclArguments {
    fn operation(&self, communicator: &FakeCommunicator) -> NcclResult<FakeOperation> {
        let dtype = NcclType::from_number(self.dtype as u64)?;
        let too_large = || NcclFailure::argument("the count is too large");
        let one = self.count.checked_mul(dtype.size()).ok_or_else(too_large)?;
        let all = one.checked_mul(communicator.size as usize).ok_or_else(too_large)?;
        let (mut reduction, mut factor, mut peer) = (ReduceOperator::Sum, None, 0);
        if matches!(self.kind, NcclKind::AllReduce | NcclKind::ReduceScatter) {
            (reduction, factor) = operators::find(communicator, self.role, dtype)?;
        } else {
            peer = u64::try_from(self.role).unwrap_or(u64::MAX);
            if peer >= communicator.size {
                return Err(NcclFailure::argument(format!("no rank {}", self.role)));
            }
        }
        let (sends, receives) = match self.kind {
            NcclKind::AllGather => (one, all),
            NcclKind::ReduceScatter => (all, one),
            NcclKind::Broadcast if peer != communicator.rank => (0, one),
            NcclKind::Send => (one, 0),
            NcclKind::Receive => (0, one),
            _ => (one, one),
        };
        let range = |address, size| {
            if size == 0 { DeviceRange::NONE } else { DeviceRange { address, size } }
        };
        let header = NcclHeader {
            kind: self.kind,
            sequence: 0,
            dtype: dtype as u64,
            operator: reduction as u64,
            peer,
            count: self.count as u64,
        };
        let (send, receive) = (range(self.send, sends), range(self.receive, receives));
        Ok(FakeOperation { header, dtype, send, receive, factor })
    }
}

#[unsafe(no_mangle)]
extern "C" fn ncclAllReduce(
    send: usize,
    receive: usize,
    count: usize,
    dtype: c_int,
    operator: c_int,
    communicator: usize,
    stream: usize,
) -> i32 {
    let (kind, role) = (NcclKind::AllReduce, operator);
    let arguments = NcclArguments { kind, send, receive, count, dtype, role, communicator, stream };
    submit("ncclAllReduce", &arguments)
}

#[unsafe(no_mangle)]
extern "C" fn ncclBroadcast(
    send: usize,
    receive: usize,
    count: usize,
    dtype: c_int,
    root: c_int,
    communicator: usize,
    stream: usize,
) -> i32 {
    let (kind, role) = (NcclKind::Broadcast, root);
    let arguments = NcclArguments { kind, send, receive, count, dtype, role, communicator, stream };
    submit("ncclBroadcast", &arguments)
}

#[unsafe(no_mangle)]
extern "C" fn ncclAllGather(
    send: usize,
    receive: usize,
    count: usize,
    dtype: c_int,
    communicator: usize,
    stream: usize,
) -> i32 {
    let (kind, role) = (NcclKind::AllGather, 0);
    let arguments = NcclArguments { kind, send, receive, count, dtype, role, communicator, stream };
    submit("ncclAllGather", &arguments)
}

#[unsafe(no_mangle)]
extern "C" fn ncclReduceScatter(
    send: usize,
    receive: usize,
    count: usize,
    dtype: c_int,
    operator: c_int,
    communicator: usize,
    stream: usize,
) -> i32 {
    let (kind, role) = (NcclKind::ReduceScatter, operator);
    let arguments = NcclArguments { kind, send, receive, count, dtype, role, communicator, stream };
    submit("ncclReduceScatter", &arguments)
}

#[unsafe(no_mangle)]
extern "C" fn ncclSend(
    send: usize,
    count: usize,
    dtype: c_int,
    peer: c_int,
    communicator: usize,
    stream: usize,
) -> i32 {
    let (kind, role, receive) = (NcclKind::Send, peer, 0);
    let arguments = NcclArguments { kind, send, receive, count, dtype, role, communicator, stream };
    submit("ncclSend", &arguments)
}

#[unsafe(no_mangle)]
extern "C" fn ncclRecv(
    receive: usize,
    count: usize,
    dtype: c_int,
    peer: c_int,
    communicator: usize,
    stream: usize,
) -> i32 {
    let (kind, role, send) = (NcclKind::Receive, peer, 0);
    let arguments = NcclArguments { kind, send, receive, count, dtype, role, communicator, stream };
    submit("ncclRecv", &arguments)
}
