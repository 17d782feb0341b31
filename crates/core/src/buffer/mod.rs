//! Memory that tensors lie in: what a framework lends us, and what we own.
//!
//! A submission brings [`Input`]s and [`Output`]s: handles that say by their type where the memory is
//! ([`Host`] or [`Device`]) and that nobody else touches it while they live. Only host memory can be
//! looked at, and only as a slice that borrows its handle; so the algorithms work on ordinary slices,
//! and the compiler sees that none outlives its memory and that no byte has two writers. `Row`s
//! string slices together, so that an algorithm sees a fused bucket as one row of bytes without
//! copying it into one.
//!
//! A slice ends before its memory does:
//!
//! ```compile_fail,E0505
//! use ronde_core::buffer::{Buffer, Output};
//! let output = Output::from(Buffer::new(4));
//! let bytes = output.bytes();
//! drop(output);
//! assert_eq!(bytes, [0; 4]);
//! ```
//!
//! Nobody makes a second handle to write through, or a second slice:
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
//! Nor does somebody read what is written:
//!
//! ```compile_fail,E0502
//! use ronde_core::buffer::{Buffer, Output};
//! use ronde_core::reduce::{Reduction, Term, combine};
//! fn sum(mut output: Output, reduction: &Reduction) {
//!     combine(output.bytes_mut(), [Term::Of(output.bytes())], reduction);
//! }
//! ```
//!
//! The processor does not reach into the memory of a device:
//!
//! ```compile_fail,E0599
//! use ronde_core::buffer::{Device, Input, Output};
//! use ronde_core::reduce::{Reduction, Term, combine};
//! fn sum(input: Input<Device>, mut output: Output, reduction: &Reduction) {
//!     combine(output.bytes_mut(), [Term::Of(input.bytes())], reduction);
//! }
//! ```
//!
//! Of host memory the same compiles, as far as input and output are apart:
//!
//! ```
//! use ronde_core::buffer::{Input, Output};
//! use ronde_core::reduce::{Reduction, Term, combine};
//! fn sum(input: Input, mut output: Output, reduction: &Reduction) {
//!     combine(output.bytes_mut(), [Term::Target, Term::Of(input.bytes())], reduction);
//! }
//! ```
#![expect(unsafe_code, reason = "this room holds the raw memory of tensors")]

mod memory;
mod operands;
mod own;
mod pool;
mod row;

pub use self::memory::{Device, Host, Input, Keeper, Operand, Output, Owner, Space};
pub(crate) use self::operands::Operands;
pub use self::own::Buffer;
pub(crate) use self::row::{Row, RowMut};
