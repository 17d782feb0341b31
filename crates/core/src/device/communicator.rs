//! Communicators of NCCL: the ranks of a process set that reduce on their GPUs.
//!
//! A communicator has two handles. The first does not block: a call may return before it has been
//! launched, and every wait for it goes through [`Communicator::is_settled`], which the engine calls
//! while it watches the world. Ranks connect with it, and it sends and receives, which connects
//! ranks that have not talked before. NCCL starts a thread for each of its calls, which takes longer
//! than the call. So it is split: the second handle launches collectives from the calling thread.
//! They cannot block there, because all connections that collectives use are made when a
//! communicator is (`NCCL_RUNTIME_CONNECT=0`), and because the engine launches few at a time.
//!
//! A communicator that is dropped without [`Communicator::finish`] is aborted, which also ends
//! whatever it has running on the GPU.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::time::Duration;

use ronde_control::{DType, ReduceOp};

use super::nccl::{self, CommunicatorHandle, Config, IN_PROGRESS, Nccl, SplitConfig, UniqueId};
use super::{DeviceError, Gpu};
use crate::buffer::{DeviceMemory, Input, Output};
use crate::reduce::{Reduction, Term, combine};

/// NCCL's number for bytes.
const BYTES: c_int = 1;
/// A factor that is read when the operation is created.
const IMMEDIATE: c_int = 1;
const SUM: c_int = 0;
const PRODUCT: c_int = 1;
const MAX: c_int = 2;
const MIN: c_int = 3;
const AVERAGE: c_int = 4;

pub(crate) struct Communicator {
    nccl: Arc<Nccl>,
    gpu: Arc<Gpu>,
    /// Does not block.
    handle: CommunicatorHandle,
    /// Launches collectives at once; none with an old NCCL.
    quick: Option<CommunicatorHandle>,
    place: (usize, usize),
    /// Operations to destroy once the calls that use them have returned.
    operations: Vec<c_int>,
}

// SAFETY: a communicator may be used by any thread, by one at a time.
unsafe impl Send for Communicator {}

/// A reduction that NCCL does in one pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct NcclReduction {
    dtype: DType,
    operation: NcclOperation,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum NcclOperation {
    Plain(c_int),
    /// A sum of values that are multiplied by this factor first.
    ScaledSum(f64),
}

impl NcclReduction {
    /// How NCCL does this reduction over so many ranks, if it can. Factors become one factor before
    /// the sum, as NCCL itself averages.
    pub(crate) fn of(reduction: &Reduction, ranks: usize) -> Option<NcclReduction> {
        let Reduction { dtype, op, prescale, postscale } = *reduction;
        nccl::number(dtype)?;
        let factor = prescale * postscale;
        let operation = match op {
            ReduceOp::Adasum => return None,
            ReduceOp::Sum if factor == 1.0 => NcclOperation::Plain(SUM),
            ReduceOp::Sum if !dtype.is_float() => return None,
            ReduceOp::Sum if factor == 1.0 / ranks as f64 => NcclOperation::Plain(AVERAGE),
            ReduceOp::Sum => NcclOperation::ScaledSum(factor),
            _ if factor != 1.0 => return None,
            ReduceOp::Min => NcclOperation::Plain(MIN),
            ReduceOp::Max => NcclOperation::Plain(MAX),
            ReduceOp::Product => NcclOperation::Plain(PRODUCT),
        };
        Some(NcclReduction { dtype, operation })
    }
}

impl Communicator {
    /// Starts to connect the ranks that have this id; see [`Communicator::is_settled`].
    pub(crate) fn start(
        nccl: &Arc<Nccl>,
        gpu: &Arc<Gpu>,
        id: UniqueId,
        (me, size): (usize, usize),
    ) -> Result<Communicator, DeviceError> {
        let mut handle = std::ptr::null_mut();
        let config = Config::NON_BLOCKING;
        gpu.inside(|| {
            let (me, size) = (me as c_int, size as c_int);
            // SAFETY: it writes one handle and reads the configuration before it returns.
            let status =
                unsafe { (nccl.functions.init)(&raw mut handle, size, id, me, &raw const config) };
            nccl.check(status, "ncclCommInitRankConfig")
        })?;
        let (nccl, gpu, place) = (nccl.clone(), gpu.clone(), (me, size));
        Ok(Communicator { nccl, gpu, handle, quick: None, place, operations: Vec::new() })
    }

    /// Splits off the handle that launches at once. This blocks until all ranks have come here, so
    /// it is not for the engine's thread.
    pub(crate) fn split(mut self) -> Result<Communicator, DeviceError> {
        let Some(split) = self.nccl.split else { return Ok(self) };
        let (mut quick, config) = (std::ptr::null_mut(), SplitConfig::BLOCKING);
        self.gpu.inside(|| {
            let me = self.place.0 as c_int;
            // SAFETY: it writes one handle and reads the configuration before it returns.
            let status = unsafe { split(self.handle, 0, me, &raw mut quick, &raw const config) };
            self.nccl.check(status, "ncclCommSplit")
        })?;
        while !self.is_settled()? {
            std::thread::yield_now();
        }
        self.quick = Some(quick);
        Ok(self)
    }

    /// Whether everything that was called has been launched; an error that occurred since.
    pub(crate) fn is_settled(&self) -> Result<bool, DeviceError> {
        let mut is_settled = true;
        for handle in self.quick.iter().chain([&self.handle]) {
            let mut state = 0;
            // SAFETY: the communicator exists until it is dropped; it writes one number.
            let status = unsafe { (self.nccl.functions.async_error)(*handle, &raw mut state) };
            self.nccl.check(status, "ncclCommGetAsyncError")?;
            self.nccl.check(state, "a collective")?;
            is_settled &= state != IN_PROGRESS;
        }
        Ok(is_settled)
    }

    /// What collectives are called on.
    fn collectives(&self) -> CommunicatorHandle {
        self.quick.unwrap_or(self.handle)
    }

    /// Launches the calls that `calls` makes together, on our stream.
    pub(crate) fn together(
        &mut self,
        calls: impl FnOnce(&mut NcclGroup<'_>) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let (nccl, gpu) = (self.nccl.clone(), self.gpu.clone());
        gpu.inside(|| {
            // SAFETY: it takes nothing, and is ended below whatever happens.
            nccl.check(unsafe { (nccl.functions.group_start)() }, "ncclGroupStart")?;
            let called = calls(&mut NcclGroup(self));
            // SAFETY: it ends the group that was started above.
            let ended = nccl.check(unsafe { (nccl.functions.group_end)() }, "ncclGroupEnd");
            called.and(ended)
        })
    }

    /// Frees what only the calls so far needed; all of them must have settled.
    pub(crate) fn tidy(&mut self) {
        for operation in self.operations.drain(..) {
            // SAFETY: it was created with this communicator, and its calls have returned.
            unsafe {
                (self.nccl.functions.destroy_operation)(
                    operation,
                    self.quick.unwrap_or(self.handle),
                )
            };
        }
    }

    /// An orderly end: what other ranks still need is sent. This blocks until they have it, so it
    /// is not for the engine's thread.
    pub(crate) fn finish(self) {
        let finalize = self.nccl.functions.finalize;
        let is_ended = |handle: &CommunicatorHandle| {
            // SAFETY: the communicator exists, and nothing is called on it after this but `drop`.
            self.nccl.check(unsafe { finalize(*handle) }, "ncclCommFinalize").is_ok()
        };
        if self.gpu.inside(|| Ok(self.quick.iter().chain([&self.handle]).all(is_ended))) == Ok(true)
        {
            while self.is_settled() == Ok(false) {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
    }

    fn operation(&mut self, reduction: &NcclReduction) -> Result<c_int, DeviceError> {
        let factor = match reduction.operation {
            NcclOperation::Plain(number) => return Ok(number),
            NcclOperation::ScaledSum(factor) => factor,
        };
        let (mut scalar, dtype) = (one(reduction.dtype), reduction.dtype);
        let scaling = Reduction { dtype, op: ReduceOp::Sum, prescale: factor, postscale: 1.0 };
        combine(&mut scalar[..dtype.size()], [Term::Target], &scaling);
        let mut operation = 0;
        let number = number_of(dtype)?;
        // SAFETY: it writes one number, and reads a factor of this type before it returns.
        let status = unsafe {
            (self.nccl.functions.create_scaled_sum)(
                &raw mut operation,
                scalar.as_mut_ptr().cast(),
                number,
                IMMEDIATE,
                self.collectives(),
            )
        };
        self.nccl.check(status, "ncclRedOpCreatePreMulSum")?;
        self.operations.push(operation);
        Ok(operation)
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        let abort = self.nccl.functions.abort;
        for handle in self.quick.iter().chain([&self.handle]) {
            // SAFETY: the handle is not used again; aborting also ends a communicator that is done.
            let _ = self.gpu.inside(|| Ok(unsafe { abort(*handle) }));
        }
    }
}

/// Calls that are launched together. The memory that they use must stay valid, and be touched by
/// nothing else, until an event behind them on our stream is done.
pub(crate) struct NcclGroup<'a>(&'a mut Communicator);

impl NcclGroup<'_> {
    /// Reduces a tensor; in place if input and output start at the same address.
    pub(crate) fn all_reduce(
        &mut self,
        (input, output): (*const u8, &Output<DeviceMemory>),
        reduction: &NcclReduction,
    ) -> Result<(), DeviceError> {
        let operation = self.0.operation(reduction)?;
        let (number, count) =
            (number_of(reduction.dtype)?, output.length() / reduction.dtype.size());
        let handle = self.0.collectives();
        let Communicator { nccl, gpu, .. } = &*self.0;
        // SAFETY: both have this length, and stay valid as `NcclGroup` requires.
        let status = unsafe {
            (nccl.functions.all_reduce)(
                input.cast(),
                output.start().cast(),
                count,
                number,
                operation,
                handle,
                gpu.stream(),
            )
        };
        nccl.check(status, "ncclAllReduce")
    }

    /// Sends the bytes of one rank to all.
    pub(crate) fn broadcast(
        &mut self,
        (input, output, bytes): (*const u8, *mut u8, usize),
        root: usize,
    ) -> Result<(), DeviceError> {
        let handle = self.0.collectives();
        let Communicator { nccl, gpu, .. } = &*self.0;
        // SAFETY: as above.
        let status = unsafe {
            (nccl.functions.broadcast)(
                input.cast(),
                output.cast(),
                bytes,
                BYTES,
                root as c_int,
                handle,
                gpu.stream(),
            )
        };
        nccl.check(status, "ncclBroadcast")
    }

    /// Concatenates equally long inputs.
    pub(crate) fn all_gather(
        &mut self,
        input: &Input<DeviceMemory>,
        output: &Output<DeviceMemory>,
    ) -> Result<(), DeviceError> {
        let handle = self.0.collectives();
        let Communicator { nccl, gpu, .. } = &*self.0;
        // SAFETY: as above.
        let status = unsafe {
            (nccl.functions.all_gather)(
                input.start().cast(),
                output.start().cast(),
                input.length(),
                BYTES,
                handle,
                gpu.stream(),
            )
        };
        nccl.check(status, "ncclAllGather")
    }

    /// Reduces, and leaves each rank an equally long part.
    pub(crate) fn reduce_scatter(
        &mut self,
        input: &Input<DeviceMemory>,
        output: &Output<DeviceMemory>,
        reduction: &NcclReduction,
    ) -> Result<(), DeviceError> {
        let operation = self.0.operation(reduction)?;
        let (number, count) =
            (number_of(reduction.dtype)?, output.length() / reduction.dtype.size());
        let handle = self.0.collectives();
        let Communicator { nccl, gpu, .. } = &*self.0;
        // SAFETY: as above.
        let status = unsafe {
            (nccl.functions.reduce_scatter)(
                input.start().cast(),
                output.start().cast(),
                count,
                number,
                operation,
                handle,
                gpu.stream(),
            )
        };
        nccl.check(status, "ncclReduceScatter")
    }

    /// Sends bytes to one rank.
    pub(crate) fn send(
        &mut self,
        (input, bytes): (*const u8, usize),
        to: usize,
    ) -> Result<(), DeviceError> {
        let Communicator { nccl, gpu, handle, .. } = &*self.0;
        let input = input.cast::<c_void>();
        // SAFETY: as above.
        let status = unsafe {
            (nccl.functions.send)(input, bytes, BYTES, to as c_int, *handle, gpu.stream())
        };
        nccl.check(status, "ncclSend")
    }

    /// Receives bytes from one rank.
    pub(crate) fn receive(
        &mut self,
        (output, bytes): (*mut u8, usize),
        from: usize,
    ) -> Result<(), DeviceError> {
        let Communicator { nccl, gpu, handle, .. } = &*self.0;
        let output = output.cast::<c_void>();
        // SAFETY: as above.
        let status = unsafe {
            (nccl.functions.receive)(output, bytes, BYTES, from as c_int, *handle, gpu.stream())
        };
        nccl.check(status, "ncclRecv")
    }
}

fn number_of(dtype: DType) -> Result<c_int, DeviceError> {
    nccl::number(dtype).ok_or_else(|| DeviceError(format!("NCCL has no type {dtype}")))
}

/// The number one, as a float of this type.
fn one(dtype: DType) -> [u8; 8] {
    let mut bytes = [0; 8];
    match dtype {
        DType::F16 => bytes[..2].copy_from_slice(&0x3c00u16.to_ne_bytes()),
        DType::BF16 => bytes[..2].copy_from_slice(&0x3f80u16.to_ne_bytes()),
        DType::F32 => bytes[..4].copy_from_slice(&1f32.to_ne_bytes()),
        _ => bytes.copy_from_slice(&1f64.to_ne_bytes()),
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_are_folded_into_one_pass_where_that_means_the_same() {
        let of = |dtype, op, prescale, postscale| {
            let reduction = Reduction { dtype, op, prescale, postscale };
            NcclReduction::of(&reduction, 4).map(|reduction| reduction.operation)
        };
        let plain = |number| Some(NcclOperation::Plain(number));
        assert_eq!(of(DType::F32, ReduceOp::Sum, 1.0, 1.0), plain(SUM));
        assert_eq!(of(DType::BF16, ReduceOp::Sum, 1.0, 0.25), plain(AVERAGE));
        assert_eq!(of(DType::F16, ReduceOp::Sum, 0.5, 0.5), plain(AVERAGE));
        let scaled = Some(NcclOperation::ScaledSum(3.0));
        assert_eq!(of(DType::F64, ReduceOp::Sum, 6.0, 0.5), scaled);
        assert_eq!(of(DType::I32, ReduceOp::Max, 1.0, 1.0), plain(MAX));
        for (dtype, op, factor) in [
            (DType::I32, ReduceOp::Sum, 0.25),
            (DType::F32, ReduceOp::Max, 2.0),
            (DType::F32, ReduceOp::Adasum, 1.0),
            (DType::Bool, ReduceOp::Sum, 1.0),
            (DType::I16, ReduceOp::Sum, 1.0),
        ] {
            assert_eq!(of(dtype, op, factor, 1.0), None, "{dtype} {op}");
        }
    }
}
