//! Handles to the memory that a submission reads and writes.

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex};

/// The kind of memory: host or device.
pub trait Space: sealed::Sealed + Send + Sync + 'static {}

/// Memory that the CPU reads and writes.
#[derive(Clone, Copy, Debug)]
pub enum HostMemory {}

/// Memory of a device, whose address means nothing to the CPU.
#[derive(Clone, Copy, Debug)]
pub enum DeviceMemory {}

impl Space for HostMemory {}
impl Space for DeviceMemory {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::HostMemory {}
    impl Sealed for super::DeviceMemory {}
}

/// Keeps memory alive that the caller owns. The engine drops it before a ticket completes.
pub type KeepAlive = Arc<dyn Any + Send + Sync>;

/// Memory that an operation reads, and that nothing writes meanwhile.
#[derive(Clone)]
pub struct Input<S: Space = HostMemory> {
    range: MemoryRange,
    _keep_alive: Option<KeepAlive>,
    space: PhantomData<S>,
}

/// Memory that an operation writes and may read, and that nothing else touches meanwhile.
pub struct Output<S: Space = HostMemory> {
    range: MemoryRange,
    keep_alive: Option<KeepAlive>,
    space: PhantomData<S>,
}

/// The memory of one tensor and of its result.
#[derive(Debug)]
pub enum Operand<S: Space = HostMemory> {
    /// The result overwrites the tensor.
    InPlace(Output<S>),
    /// The result goes to other memory of the same length.
    Apart {
        /// Memory of the tensor.
        input: Input<S>,
        /// Memory of the result.
        output: Output<S>,
    },
}

impl<S: Space> Input<S> {
    /// The `length` bytes at `start`.
    ///
    /// # Safety
    /// The bytes must be valid, and nothing may write to them, until this handle and all its clones
    /// are dropped. The caller may rely on `keep_alive` living that long.
    pub unsafe fn new(start: *const u8, length: usize, keep_alive: Option<KeepAlive>) -> Input<S> {
        let range = MemoryRange { start: start.cast_mut(), length };
        Input { range, _keep_alive: keep_alive, space: PhantomData }
    }

    /// The number of bytes.
    pub fn length(&self) -> usize {
        self.range.length
    }

    /// The start address.
    pub fn start(&self) -> *const u8 {
        self.range.start
    }
}

impl Input<HostMemory> {
    /// The content.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the caller of `new` guarantees that they are valid and unchanged while this
        // handle lives.
        unsafe { self.range.bytes() }
    }
}

impl<S: Space> Output<S> {
    /// The `length` bytes at `start`.
    ///
    /// # Safety
    /// The bytes must be valid, and nothing else may read or write them, until this handle is
    /// dropped. The caller may rely on `keep_alive` living that long.
    pub unsafe fn new(start: *mut u8, length: usize, keep_alive: Option<KeepAlive>) -> Output<S> {
        Output { range: MemoryRange { start, length }, keep_alive, space: PhantomData }
    }

    /// The number of bytes.
    pub fn length(&self) -> usize {
        self.range.length
    }

    /// The start address.
    pub fn start(&self) -> *mut u8 {
        self.range.start
    }
}

impl Output<HostMemory> {
    /// Lends out the memory of `owner`; `back` gets the owner when the operation is over.
    pub fn lent<O: Owner>(mut owner: O, back: impl FnOnce(O) + Send + 'static) -> Output {
        let bytes = owner.bytes_mut();
        let (start, length) = (bytes.as_mut_ptr(), bytes.len());
        let loan: KeepAlive = Arc::new(Loan(Mutex::new(Some((owner, back)))));
        // SAFETY: an owner's bytes stay where they are when it moves, and the loan, which is not
        // accessible to anything else, is the only way to them until this handle drops it.
        unsafe { Output::new(start, length, Some(loan)) }
    }

    /// The content.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the caller of `new` guarantees that they are valid, and only this handle gives
        // access to them.
        unsafe { self.range.bytes() }
    }

    /// The content, for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let MemoryRange { start, length } = self.range;
        if length == 0 {
            return &mut [];
        }
        // SAFETY: as above, and the slice borrows the only handle for as long as it lives.
        unsafe { std::slice::from_raw_parts_mut(start, length) }
    }
}

impl<O: Owner> From<O> for Output {
    /// Memory that is dropped after the operation.
    fn from(owner: O) -> Output {
        Output::lent(owner, drop)
    }
}

impl<S: Space> From<Output<S>> for Input<S> {
    /// Gives up the right to write.
    fn from(Output { range, keep_alive, space }: Output<S>) -> Input<S> {
        Input { range, _keep_alive: keep_alive, space }
    }
}

impl<S: Space> Operand<S> {
    /// The lengths of the tensor and of its result.
    pub(crate) fn lengths(&self) -> (usize, usize) {
        match self {
            Operand::InPlace(output) => (output.length(), output.length()),
            Operand::Apart { input, output } => (input.length(), output.length()),
        }
    }

    /// The start address of the tensor, and the memory of the result.
    pub(crate) fn parts(&self) -> (*const u8, &Output<S>) {
        match self {
            Operand::InPlace(output) => (output.start(), output),
            Operand::Apart { input, output } => (input.start(), output),
        }
    }
}

impl Operand {
    /// The bytes of the tensor, unless its result overwrites them, and those of the result.
    pub(crate) fn pair(&mut self) -> (Option<&[u8]>, &mut [u8]) {
        match self {
            Operand::InPlace(output) => (None, output.bytes_mut()),
            Operand::Apart { input, output } => (Some(input.bytes()), output.bytes_mut()),
        }
    }
}

/// An owner of memory that an operation can use.
///
/// # Safety
/// The bytes must belong to the owner alone, and must not move when it does.
pub unsafe trait Owner: Send + 'static {
    /// The memory that it owns.
    fn bytes_mut(&mut self) -> &mut [u8];
}

/// An owner whose memory is lent out, and what to call when it comes back.
struct Loan<O, B: FnOnce(O)>(Mutex<Option<(O, B)>>);

impl<O, B: FnOnce(O)> Drop for Loan<O, B> {
    fn drop(&mut self) {
        if let Ok(Some((owner, back))) = self.0.get_mut().map(Option::take) {
            back(owner);
        }
    }
}

/// An address and a number of bytes.
#[derive(Clone, Copy)]
struct MemoryRange {
    start: *mut u8,
    length: usize,
}

// SAFETY: an address is just a number; code that dereferences it shows that its thread may.
unsafe impl Send for MemoryRange {}
// SAFETY: as above.
unsafe impl Sync for MemoryRange {}

impl MemoryRange {
    /// # Safety
    /// The bytes must be valid, and nothing may write to them while the slice lives.
    unsafe fn bytes<'a>(self) -> &'a [u8] {
        if self.length == 0 {
            return &[];
        }
        // SAFETY: the caller guarantees that the bytes are valid.
        unsafe { std::slice::from_raw_parts(self.start, self.length) }
    }
}

impl<S: Space> fmt::Debug for Input<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Input").field("length", &self.length()).finish_non_exhaustive()
    }
}

impl<S: Space> fmt::Debug for Output<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Output").field("length", &self.length()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Buffer;
    use super::*;

    #[test]
    fn lent_memory_is_returned_with_its_content_when_the_last_handle_is_dropped() {
        let (sender, receiver) = std::sync::mpsc::channel();
        let back = move |buffer: Buffer| sender.send(buffer).expect("the test receives");
        let mut output = Output::lent(Buffer::new(3), back);
        output.bytes_mut().copy_from_slice(&[1, 2, 3]);
        let input = Input::from(output);
        let clone = input.clone();
        drop(input);
        assert_eq!(clone.bytes(), [1, 2, 3]);
        assert!(receiver.try_recv().is_err());
        drop(clone);
        assert_eq!(receiver.try_recv().expect("it was returned").bytes(), [1, 2, 3]);
    }

    #[test]
    fn keep_alive_lives_as_long_as_its_handles_and_an_empty_tensor_may_be_null() {
        let keep_alive: KeepAlive = Arc::new(());
        // SAFETY: there are no bytes.
        let input: Input = unsafe { Input::new(std::ptr::null(), 0, Some(keep_alive.clone())) };
        // SAFETY: as above.
        let mut output: Output =
            unsafe { Output::new(std::ptr::null_mut(), 0, Some(keep_alive.clone())) };
        assert_eq!((input.bytes(), output.bytes_mut()), (&[][..], &mut [][..]));
        assert_eq!(Arc::strong_count(&keep_alive), 3);
        drop((input, output));
        assert_eq!(Arc::strong_count(&keep_alive), 1);
    }
}
