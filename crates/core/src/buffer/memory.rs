//! The handles of what a submission reads and writes.

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex};

/// Where memory is.
pub trait Space: sealed::Sealed + Send + Sync + 'static {}

/// Memory that the processor reads and writes.
#[derive(Clone, Copy, Debug)]
pub enum Host {}

/// Memory of a device, whose address means nothing to the processor.
#[derive(Clone, Copy, Debug)]
pub enum Device {}

impl Space for Host {}
impl Space for Device {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Host {}
    impl Sealed for super::Device {}
}

/// What keeps memory alive that somebody else owns. The engine drops it before a ticket completes.
pub type Keeper = Arc<dyn Any + Send + Sync>;

/// Memory that an operation reads and nobody writes meanwhile.
#[derive(Clone)]
pub struct Input<S: Space = Host> {
    stretch: Stretch,
    _keeper: Option<Keeper>,
    space: PhantomData<S>,
}

/// Memory that an operation writes, and may read, and that nobody else touches meanwhile.
pub struct Output<S: Space = Host> {
    stretch: Stretch,
    keeper: Option<Keeper>,
    space: PhantomData<S>,
}

/// The memory of one tensor and of its result.
#[derive(Debug)]
pub enum Operand {
    /// The result takes the tensor's place.
    InPlace(Output),
    /// The result goes elsewhere, and has as many bytes.
    Apart {
        /// The tensor.
        input: Input,
        /// Its result.
        output: Output,
    },
}

impl<S: Space> Input<S> {
    /// The `length` bytes at `start`.
    ///
    /// # Safety
    /// Until this handle and all its clones are dropped, the bytes are there and nobody writes to
    /// them. They may count on the keeper being alive.
    pub unsafe fn new(start: *const u8, length: usize, keeper: Option<Keeper>) -> Input<S> {
        let stretch = Stretch { start: start.cast_mut(), length };
        Input { stretch, _keeper: keeper, space: PhantomData }
    }

    /// How many bytes it has.
    pub fn length(&self) -> usize {
        self.stretch.length
    }

    /// Where it starts.
    pub fn start(&self) -> *const u8 {
        self.stretch.start
    }
}

impl Input<Host> {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: by the promise of `new` they are there, and unchanged while this handle lives.
        unsafe { self.stretch.bytes() }
    }
}

impl<S: Space> Output<S> {
    /// The `length` bytes at `start`.
    ///
    /// # Safety
    /// Until this handle is dropped, the bytes are there and nobody else reads or writes them. They
    /// may count on the keeper being alive.
    pub unsafe fn new(start: *mut u8, length: usize, keeper: Option<Keeper>) -> Output<S> {
        Output { stretch: Stretch { start, length }, keeper, space: PhantomData }
    }

    /// How many bytes it has.
    pub fn length(&self) -> usize {
        self.stretch.length
    }

    /// Where it starts.
    pub fn start(&self) -> *mut u8 {
        self.stretch.start
    }
}

impl Output<Host> {
    /// Memory of our own; `back` gets it when the operation is over.
    pub fn lent<O: Owner>(mut owner: O, back: impl FnOnce(O) + Send + 'static) -> Output {
        let bytes = owner.bytes_mut();
        let (start, length) = (bytes.as_mut_ptr(), bytes.len());
        let loan: Keeper = Arc::new(Loan(Mutex::new(Some((owner, back)))));
        // SAFETY: an owner's bytes stay where they are when it moves, and the loan, which nobody else
        // can look into, has the only way to them until this handle drops it.
        unsafe { Output::new(start, length, Some(loan)) }
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: by the promise of `new` they are there, and only this handle gives them out.
        unsafe { self.stretch.bytes() }
    }

    /// The bytes, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let Stretch { start, length } = self.stretch;
        if length == 0 {
            return &mut [];
        }
        // SAFETY: as above; the slice borrows the only handle for as long as it lives.
        unsafe { std::slice::from_raw_parts_mut(start, length) }
    }
}

impl<O: Owner> From<O> for Output {
    /// Memory that nobody wants back.
    fn from(owner: O) -> Output {
        Output::lent(owner, drop)
    }
}

impl<S: Space> From<Output<S>> for Input<S> {
    /// Who may write may leave it at reading.
    fn from(Output { stretch, keeper, space }: Output<S>) -> Input<S> {
        Input { stretch, _keeper: keeper, space }
    }
}

impl Operand {
    /// How many bytes the tensor has, and how many its result.
    pub(crate) fn lengths(&self) -> (usize, usize) {
        match self {
            Operand::InPlace(output) => (output.length(), output.length()),
            Operand::Apart { input, output } => (input.length(), output.length()),
        }
    }

    /// The bytes of the tensor, unless its result takes their place, and those of the result.
    pub(crate) fn pair(&mut self) -> (Option<&[u8]>, &mut [u8]) {
        match self {
            Operand::InPlace(output) => (None, output.bytes_mut()),
            Operand::Apart { input, output } => (Some(input.bytes()), output.bytes_mut()),
        }
    }
}

/// Who owns memory of ours.
///
/// # Safety
/// The bytes belong to the owner alone, and stay where they are when it moves.
pub unsafe trait Owner: Send + 'static {
    /// The bytes.
    fn bytes_mut(&mut self) -> &mut [u8];
}

/// An owner whose memory is out, and who gets it back.
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
struct Stretch {
    start: *mut u8,
    length: usize,
}

// SAFETY: an address is a number; whoever follows it proves that this thread may.
unsafe impl Send for Stretch {}
// SAFETY: as above.
unsafe impl Sync for Stretch {}

impl Stretch {
    /// # Safety
    /// The bytes are there, and nobody writes to them for as long as the slice lives.
    unsafe fn bytes<'a>(self) -> &'a [u8] {
        if self.length == 0 {
            return &[];
        }
        // SAFETY: the caller vouches for the bytes.
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
    fn lent_memory_comes_back_with_what_was_written_when_the_last_handle_is_dropped() {
        let (sender, receiver) = std::sync::mpsc::channel();
        let back = move |buffer: Buffer| sender.send(buffer).expect("the test listens");
        let mut output = Output::lent(Buffer::new(3), back);
        output.bytes_mut().copy_from_slice(&[1, 2, 3]);
        let input = Input::from(output);
        let clone = input.clone();
        drop(input);
        assert_eq!(clone.bytes(), [1, 2, 3]);
        assert!(receiver.try_recv().is_err());
        drop(clone);
        assert_eq!(receiver.try_recv().expect("it has come back").bytes(), [1, 2, 3]);
    }

    #[test]
    fn a_keeper_lives_as_long_as_a_handle_and_an_empty_tensor_may_lie_nowhere() {
        let keeper: Keeper = Arc::new(());
        // SAFETY: there are no bytes.
        let input: Input = unsafe { Input::new(std::ptr::null(), 0, Some(keeper.clone())) };
        // SAFETY: as above.
        let mut output: Output =
            unsafe { Output::new(std::ptr::null_mut(), 0, Some(keeper.clone())) };
        assert_eq!((input.bytes(), output.bytes_mut()), (&[][..], &mut [][..]));
        assert_eq!(Arc::strong_count(&keeper), 3);
        drop((input, output));
        assert_eq!(Arc::strong_count(&keeper), 1);
    }
}
