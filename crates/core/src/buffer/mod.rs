//! Memory of tensors: borrowed from a framework, or owned by the engine.
//!
//! A submission brings [`Input`]s and [`Output`]s: handles whose types say where the memory is
//! ([`HostMemory`] or [`DeviceMemory`]) and that guarantee that nothing else touches it while they
//! live. Only host memory can be accessed, and only as a slice that borrows its handle. So the
//! algorithms work on ordinary slices, and the compiler ensures that no slice outlives its memory
//! and that no byte has two writers. A `Row` joins several slices, so that an algorithm sees a
//! fused bucket as one row of bytes without copying it.
//!
//! A slice cannot outlive its memory:
//!
//! ```compile_fail,E0505
//! use ronde_core::buffer::{Buffer, Output};
//! let output = Output::from(Buffer::new(4));
//! let bytes = output.bytes();
//! drop(output);
//! assert_eq!(bytes, [0; 4]);
//! ```
//!
//! There is no second handle to write through, and no second slice:
//!
//! ```compile_fail,E0599
//! use ronde_core::buffer::{Buffer, Output};
//! let output = Output::from(Buffer::new(4));
//! let other = output.clone();
//! ```
//!
//! ```compile_fail,E0499
//! use ronde_core::buffer::{Buffer, Output};
//! let mut output = Output::from(Buffer::new(4));
//! let (one, two) = (output.bytes_mut(), output.bytes_mut());
//! one.copy_from_slice(two);
//! ```
//!
//! Memory cannot be read while it is written:
//!
//! ```compile_fail,E0502
//! use ronde_core::buffer::{Buffer, Output};
//! use ronde_core::reduce::{Reduction, Term, combine};
//! fn sum(mut output: Output, reduction: &Reduction) {
//!     combine(output.bytes_mut(), [Term::Of(output.bytes())], reduction);
//! }
//! ```
//!
//! The CPU cannot access the memory of a device:
//!
//! ```compile_fail,E0599
//! use ronde_core::buffer::{DeviceMemory, Input, Output};
//! use ronde_core::reduce::{Reduction, Term, combine};
//! fn sum(input: Input<DeviceMemory>, mut output: Output, reduction: &Reduction) {
//!     combine(output.bytes_mut(), [Term::Of(input.bytes())], reduction);
//! }
//! ```
//!
//! With host memory the same compiles, as long as input and output are distinct:
//!
//! ```
//! use ronde_core::buffer::{Input, Output};
//! use ronde_core::reduce::{Reduction, Term, combine};
//! fn sum(input: Input, mut output: Output, reduction: &Reduction) {
//!     combine(output.bytes_mut(), [Term::Target, Term::Of(input.bytes())], reduction);
//! }
//! ```
#![expect(unsafe_code, reason = "this module handles the raw memory of tensors")]

mod memory;
mod operands;
mod own;
mod pool;
mod row;

pub use self::memory::{DeviceMemory, HostMemory, Input, KeepAlive, Operand, Output, Owner, Space};
pub(crate) use self::operands::Operands;
pub use self::own::Buffer;
pub(crate) use self::row::{Row, RowMut};
