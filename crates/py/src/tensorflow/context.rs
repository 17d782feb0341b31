//! What TensorFlow gives a kernel: tensors, memory for results, and a way to report errors.
#![expect(unsafe_code, reason = "addresses of tensors, and handles that move between threads")]

use std::ffi::{CStr, CString, c_int};
use std::sync::Arc;

use ronde_control::DType;
use ronde_core::buffer::{KeepAlive, Output};
use ronde_core::engine::{AllocateResult, Tensors};

use super::api::{TfHandle, api};
use crate::native::{ErrorClass, Failure, SubmittedTensors};
use crate::tensor::{View, operands};

const INVALID_ARGUMENT: c_int = 3;
const FAILED_PRECONDITION: c_int = 9;
const UNKNOWN: c_int = 2;
pub(super) const INT32: c_int = 3;

/// A TensorFlow status, ours until it is dropped.
pub(super) struct TfStatus(TfHandle);

impl TfStatus {
    pub(super) fn new() -> TfStatus {
        TfStatus(api().new_status())
    }

    pub(super) fn handle(&self) -> TfHandle {
        self.0
    }

    /// The failure in this status, if it has one.
    pub(super) fn check(&self) -> Result<(), Failure> {
        if api().code(self.0) == 0 {
            return Ok(());
        }
        // SAFETY: the text belongs to the status and is null-terminated.
        let text = unsafe { CStr::from_ptr(api().message(self.0)) };
        Err(Failure::invalid(&text.to_string_lossy()))
    }

    /// The status for a failure. The end of a world is "unknown" to programs written for Horovod,
    /// which restore their last commit when they see that.
    pub(super) fn of(failure: &Failure) -> TfStatus {
        let code = match failure.fault {
            ErrorClass::Invalid => INVALID_ARGUMENT,
            ErrorClass::Precondition => FAILED_PRECONDITION,
            ErrorClass::Aborted | ErrorClass::World => UNKNOWN,
        };
        let text = CString::new(failure.text.replace('\0', " ")).unwrap_or_default();
        let status = TfStatus::new();
        api().set_status(status.0, code, text.as_ptr());
        status
    }
}

impl Drop for TfStatus {
    fn drop(&mut self) {
        api().delete_status(self.0);
    }
}

/// One execution of a kernel; valid until its `done` has run.
#[derive(Clone, Copy)]
pub(super) struct KernelContext(TfHandle);

// SAFETY: TensorFlow lets an asynchronous kernel use its context from any thread until `done`.
unsafe impl Send for KernelContext {}
// SAFETY: as above; the engine calls from one thread at a time.
unsafe impl Sync for KernelContext {}

impl KernelContext {
    pub(super) fn new(handle: TfHandle) -> KernelContext {
        KernelContext(handle)
    }

    pub(super) fn inputs(self) -> c_int {
        api().inputs(self.0)
    }

    pub(super) fn input(self, index: c_int) -> Result<TfTensor, Failure> {
        let (status, mut tensor) = (TfStatus::new(), std::ptr::null_mut());
        api().input(self.0, index, &raw mut tensor, status.handle());
        status.check()?;
        Ok(TfTensor(tensor))
    }

    /// Memory for a result of the size and type of the input with the same number, and the input
    /// itself; `None` for the input if TensorFlow has reused its memory for the result.
    pub(super) fn like_input(self, index: c_int) -> Result<(Option<TfTensor>, TfTensor), Failure> {
        let sizes = self.input(index)?.sizes();
        // The temporary reference to the input is gone here; an input with other references is
        // never forwarded.
        let (status, mut forwarded) = (TfStatus::new(), -1);
        let output = TfTensor(api().forward_or_allocate(
            self.0,
            &raw const index,
            1,
            index,
            sizes.as_ptr(),
            sizes.len() as c_int,
            &raw mut forwarded,
            status.handle(),
        ));
        status.check()?;
        let input = if forwarded < 0 { Some(self.input(index)?) } else { None };
        Ok((input, output))
    }

    pub(super) fn allocate(
        self,
        index: c_int,
        sizes: &[i64],
        dtype: c_int,
    ) -> Result<TfTensor, Failure> {
        let bytes = sizes.iter().product::<i64>() as usize * element(dtype)?.size();
        let (status, count) = (TfStatus::new(), sizes.len() as c_int);
        let handle =
            api().allocate(self.0, index, dtype, sizes.as_ptr(), count, bytes, status.handle());
        status.check()?;
        Ok(TfTensor(handle))
    }

    /// Sets a scalar output.
    pub(super) fn put_number(self, index: c_int, number: i32) -> Result<(), Failure> {
        self.put_numbers(index, &[], &[number])
    }

    /// Sets an output of several numbers.
    pub(super) fn put_numbers(
        self,
        index: c_int,
        sizes: &[i64],
        numbers: &[i32],
    ) -> Result<(), Failure> {
        let tensor = self.allocate(index, sizes, INT32)?;
        let target = api().data(tensor.0).cast::<i32>();
        for (place, number) in numbers.iter().enumerate() {
            // SAFETY: the output was just allocated for this many numbers.
            let target = unsafe { target.add(place) };
            // SAFETY: as above.
            unsafe { target.write(*number) };
        }
        Ok(())
    }

    pub(super) fn fail(self, failure: &Failure) {
        api().context_fails(self.0, TfStatus::of(failure).handle());
    }
}

/// A reference to a TensorFlow tensor, ours until it is dropped.
pub(super) struct TfTensor(TfHandle);

// SAFETY: the reference count of a tensor is atomic, and its memory belongs to the kernel that
// computes.
unsafe impl Send for TfTensor {}
// SAFETY: a shared reference exposes only type, shape and address, which do not change.
unsafe impl Sync for TfTensor {}

impl TfTensor {
    pub(super) fn dtype(&self) -> c_int {
        api().dtype(self.0)
    }

    pub(super) fn sizes(&self) -> Vec<i64> {
        let dimensions = api().dimensions(self.0);
        (0..dimensions).map(|index| api().dimension(self.0, index)).collect()
    }

    /// Lends inputs and their results to the engine; without an input, the result is reduced in
    /// place.
    pub(super) fn lend_pairs(
        pairs: Vec<(Option<TfTensor>, TfTensor)>,
    ) -> Result<SubmittedTensors, Failure> {
        let (mut sources, mut targets) = (Vec::new(), Vec::new());
        for (input, output) in &pairs {
            sources.push(input.as_ref().unwrap_or(output).view()?);
            targets.push(output.view()?);
        }
        let keeper: KeepAlive = Arc::new(pairs);
        // SAFETY: the keeper has the references, and until the kernel is done its inputs do not
        // change and its outputs belong to it.
        let operands = unsafe { operands(&sources, &targets, Some(&keeper)) };
        SubmittedTensors::new(&sources, Tensors::Given(operands.map_err(Failure::invalid)?))
    }

    /// Lends inputs whose results are allocated later.
    pub(super) fn lend_rows(
        inputs: Vec<TfTensor>,
        allocate: AllocateResult,
    ) -> Result<SubmittedTensors, Failure> {
        let views = inputs.iter().map(TfTensor::view).collect::<Result<Vec<View>, _>>()?;
        let keeper: KeepAlive = Arc::new(inputs);
        // SAFETY: the keeper has the references, and until the kernel is done its inputs do not
        // change.
        let input = |view: &View| unsafe { view.input(Some(keeper.clone())) };
        let inputs = views.iter().map(input).collect();
        SubmittedTensors::new(&views, Tensors::Placed(inputs, allocate))
    }

    /// Lends an output that was just allocated.
    pub(super) fn lend(self) -> Result<Output, Failure> {
        let view = self.view()?;
        // SAFETY: the keeper has the reference, and the output belongs to the kernel.
        Ok(unsafe { view.output(Some(Arc::new(self))) })
    }

    fn view(&self) -> Result<View, Failure> {
        let shape = self.sizes().into_iter().map(|size| size as u64).collect();
        Ok(View::at(api().data(self.0) as usize, shape, element(self.dtype())?))
    }

    /// Its elements, if they are 32-bit integers.
    pub(super) fn numbers(&self) -> Result<Vec<i32>, Failure> {
        if self.dtype() != INT32 {
            return Err(Failure::invalid("expected a tensor of type int32"));
        }
        let count = self.sizes().iter().product::<i64>() as usize;
        let start = api().data(self.0).cast::<i32>();
        if count == 0 {
            return Ok(Vec::new());
        }
        // SAFETY: the tensor has this many elements of this type, and is alive.
        Ok(unsafe { std::slice::from_raw_parts(start, count) }.to_vec())
    }
}

impl Drop for TfTensor {
    fn drop(&mut self) {
        if !self.0.is_null() {
            api().delete_tensor(self.0);
        }
    }
}

/// The element type for TensorFlow's number. Elements of `uint32` and `uint64` are only moved, so
/// they travel as signed integers of the same size.
fn element(dtype: c_int) -> Result<DType, Failure> {
    Ok(match dtype {
        1 => DType::F32,
        2 => DType::F64,
        3 => DType::I32,
        4 => DType::U8,
        5 => DType::I16,
        6 => DType::I8,
        9 => DType::I64,
        10 => DType::Bool,
        14 => DType::BF16,
        17 => DType::U16,
        19 => DType::F16,
        22 => DType::I32,
        23 => DType::I64,
        other => {
            let text = format!("TensorFlow's element type {other} is not supported");
            return Err(Failure::invalid(&text));
        }
    })
}
