//! What TensorFlow gives a kernel: tensors, room for results, and a place to say what went wrong.
#![expect(unsafe_code, reason = "addresses of tensors, and handles that change threads")]

use std::ffi::{CStr, CString, c_int};
use std::sync::Arc;

use ronde_control::DType;
use ronde_core::buffer::{Keeper, Output};
use ronde_core::engine::{Room, Tensors};

use super::api::{Handle, api};
use crate::native::{Failure, Fault, Handed};
use crate::tensor::{View, operands};

const INVALID_ARGUMENT: c_int = 3;
const FAILED_PRECONDITION: c_int = 9;
const UNKNOWN: c_int = 2;
pub(super) const INT32: c_int = 3;

/// A status of TensorFlow's, ours until it is dropped.
pub(super) struct Status(Handle);

impl Status {
    pub(super) fn new() -> Status {
        Status(api().new_status())
    }

    pub(super) fn handle(&self) -> Handle {
        self.0
    }

    /// The failure that it holds, if it holds one.
    pub(super) fn check(&self) -> Result<(), Failure> {
        if api().code(self.0) == 0 {
            return Ok(());
        }
        // SAFETY: the text belongs to the status and ends with a zero.
        let text = unsafe { CStr::from_ptr(api().message(self.0)) };
        Err(Failure::invalid(&text.to_string_lossy()))
    }

    /// A status that says what a failure says. What ended the world is "unknown" to programs that
    /// were written for Horovod, and they restore their last commit when they see that.
    pub(super) fn of(failure: &Failure) -> Status {
        let code = match failure.fault {
            Fault::Invalid => INVALID_ARGUMENT,
            Fault::Precondition => FAILED_PRECONDITION,
            Fault::Aborted | Fault::World => UNKNOWN,
        };
        let text = CString::new(failure.text.replace('\0', " ")).unwrap_or_default();
        let status = Status::new();
        api().set_status(status.0, code, text.as_ptr());
        status
    }
}

impl Drop for Status {
    fn drop(&mut self) {
        api().delete_status(self.0);
    }
}

/// One execution of a kernel; valid until its `done` has run.
#[derive(Clone, Copy)]
pub(super) struct Context(Handle);

// SAFETY: TensorFlow lets an asynchronous kernel use its context from any thread until `done`.
unsafe impl Send for Context {}
// SAFETY: as above; the engine calls from one thread at a time.
unsafe impl Sync for Context {}

impl Context {
    pub(super) fn new(handle: Handle) -> Context {
        Context(handle)
    }

    pub(super) fn inputs(self) -> c_int {
        api().inputs(self.0)
    }

    pub(super) fn input(self, index: c_int) -> Result<Tensor, Failure> {
        let (status, mut tensor) = (Status::new(), std::ptr::null_mut());
        api().input(self.0, index, &raw mut tensor, status.handle());
        status.check()?;
        Ok(Tensor(tensor))
    }

    /// Room for a result of the size and type of the input with the same number, and the input
    /// itself: the same memory where nobody else needs it.
    pub(super) fn like_input(self, index: c_int) -> Result<(Option<Tensor>, Tensor), Failure> {
        let sizes = self.input(index)?.sizes();
        // The look at the sizes is over; while somebody holds the input, it is never forwarded.
        let (status, mut forwarded) = (Status::new(), -1);
        let output = Tensor(api().forward_or_allocate(
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
    ) -> Result<Tensor, Failure> {
        let bytes = sizes.iter().product::<i64>() as usize * element(dtype)?.size();
        let (status, count) = (Status::new(), sizes.len() as c_int);
        let handle =
            api().allocate(self.0, index, dtype, sizes.as_ptr(), count, bytes, status.handle());
        status.check()?;
        Ok(Tensor(handle))
    }

    /// An output of one number.
    pub(super) fn put_number(self, index: c_int, number: i32) -> Result<(), Failure> {
        self.put_numbers(index, &[], &[number])
    }

    /// An output of numbers.
    pub(super) fn put_numbers(
        self,
        index: c_int,
        sizes: &[i64],
        numbers: &[i32],
    ) -> Result<(), Failure> {
        let tensor = self.allocate(index, sizes, INT32)?;
        let target = api().data(tensor.0).cast::<i32>();
        for (place, number) in numbers.iter().enumerate() {
            // SAFETY: the output was just allocated for so many numbers.
            let target = unsafe { target.add(place) };
            // SAFETY: as above.
            unsafe { target.write(*number) };
        }
        Ok(())
    }

    pub(super) fn fail(self, failure: &Failure) {
        api().context_fails(self.0, Status::of(failure).handle());
    }
}

/// A reference to a tensor of TensorFlow's, ours until it is dropped.
pub(super) struct Tensor(Handle);

// SAFETY: the reference count of a tensor is atomic, and its memory belongs to whoever computes.
unsafe impl Send for Tensor {}
// SAFETY: a shared reference gives out what the tensor is and where; neither changes.
unsafe impl Sync for Tensor {}

impl Tensor {
    pub(super) fn dtype(&self) -> c_int {
        api().dtype(self.0)
    }

    pub(super) fn sizes(&self) -> Vec<i64> {
        let dimensions = api().dimensions(self.0);
        (0..dimensions).map(|index| api().dimension(self.0, index)).collect()
    }

    /// Inputs and their results, each the input itself where there is none, handed over.
    pub(super) fn lend_pairs(pairs: Vec<(Option<Tensor>, Tensor)>) -> Result<Handed, Failure> {
        let (mut sources, mut targets) = (Vec::new(), Vec::new());
        for (input, output) in &pairs {
            sources.push(input.as_ref().unwrap_or(output).view()?);
            targets.push(output.view()?);
        }
        let keeper: Keeper = Arc::new(pairs);
        // SAFETY: the keeper has the references, and until the kernel is done inputs do not change
        // and outputs are its own.
        let operands = unsafe { operands(&sources, &targets, Some(&keeper)) };
        Handed::new(&sources, Tensors::Given(operands.map_err(Failure::invalid)?))
    }

    /// Inputs handed over, whose results get their memory later.
    pub(super) fn lend_rows(inputs: Vec<Tensor>, room: Room) -> Result<Handed, Failure> {
        let views = inputs.iter().map(Tensor::view).collect::<Result<Vec<View>, _>>()?;
        let keeper: Keeper = Arc::new(inputs);
        // SAFETY: the keeper has the references, and until the kernel is done inputs do not change.
        let input = |view: &View| unsafe { view.input(Some(keeper.clone())) };
        let inputs = views.iter().map(input).collect();
        Handed::new(&views, Tensors::Placed(inputs, room))
    }

    /// An output that was just allocated, handed over.
    pub(super) fn lend(self) -> Result<Output, Failure> {
        let view = self.view()?;
        // SAFETY: the keeper has the reference, and the output is the kernel's own.
        Ok(unsafe { view.output(Some(Arc::new(self))) })
    }

    /// Where it lies.
    fn view(&self) -> Result<View, Failure> {
        let shape = self.sizes().into_iter().map(|size| size as u64).collect();
        Ok(View::at(api().data(self.0) as usize, shape, element(self.dtype())?))
    }

    /// Its elements, if they are 32-bit integers.
    pub(super) fn numbers(&self) -> Result<Vec<i32>, Failure> {
        if self.dtype() != INT32 {
            return Err(Failure::invalid("a tensor of type int32 is needed here"));
        }
        let count = self.sizes().iter().product::<i64>() as usize;
        let start = api().data(self.0).cast::<i32>();
        if count == 0 {
            return Ok(Vec::new());
        }
        // SAFETY: the tensor has so many elements of this type, and lives.
        Ok(unsafe { std::slice::from_raw_parts(start, count) }.to_vec())
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        if !self.0.is_null() {
            api().delete_tensor(self.0);
        }
    }
}

/// The type by TensorFlow's number of it. The two that have none are moved only, and travel as
/// what is as long.
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
