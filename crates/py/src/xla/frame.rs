//! What XLA hands a handler, read: operands, results and attributes.
#![expect(unsafe_code, reason = "XLA gives addresses of its structures")]

use std::ffi::c_int;
use std::slice;

use ronde_control::DType;

use super::api::{Api, Attributes, Buffer, Buffers, EXECUTE, Extension, Frame, Scalar, Text};
use super::api::{FIRST_MINOR, METADATA, MetadataExtension, NEWEST_MINOR};
use crate::native::{Failure, Reduce};
use crate::tensor::View;

const SCALAR: c_int = 3;
const STRING: c_int = 4;
const INTEGER: c_int = 5;
const FLOAT: c_int = 12;

/// An operand or a result.
pub(super) struct Tensor {
    pub(super) view: View,
    pub(super) numbers: Numbers,
}

/// What may be computed with elements that travel under another type than their own.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Numbers {
    /// Everything: it is their own type.
    All,
    /// Sums and averages: complex numbers travel as pairs.
    Linear,
    /// Sums and products without factors: unsigned integers travel as signed ones.
    Wrapping,
    /// Nothing: they are bits.
    None,
}

/// Whether XLA only asks what this handler is; if so, it is told.
pub(super) fn answer_metadata(frame: &Frame) -> bool {
    let mut next = frame.extensions;
    // SAFETY: extensions are a list that ends with null, and live as long as the call.
    while let Some(extension) = unsafe { next.as_ref() } {
        if extension.kind == METADATA {
            tell(frame, next);
            return true;
        }
        next = extension.next;
    }
    false
}

fn tell(frame: &Frame, extension: *mut Extension) {
    // SAFETY: an extension of this kind is such a structure.
    let extension = unsafe { &*extension.cast::<MetadataExtension>() };
    // SAFETY: XLA made it for the answer, and nobody else looks at it meanwhile.
    let Some(metadata) = (unsafe { extension.metadata.as_mut() }) else { return };
    // XLA refuses handlers of other versions than some around its own. Those that do not say which
    // it is have the first.
    let host = api(frame).map_or(FIRST_MINOR, |api| api.version.minor);
    (metadata.version.major, metadata.version.minor) = (0, host.min(NEWEST_MINOR));
    metadata.traits = 0;
}

/// The table of functions, which lives as long as the library that it is in.
pub(super) fn api(frame: &Frame) -> Option<&'static Api> {
    // SAFETY: XLA's table is a static of it, and XLA is never unloaded.
    unsafe { frame.api.as_ref() }
}

/// Whether this call is one that computes.
pub(super) fn computes(frame: &Frame) -> bool {
    frame.stage == EXECUTE
}

/// Operands or results.
pub(super) fn tensors(buffers: &Buffers) -> Result<Vec<Tensor>, Failure> {
    let each = |buffer: &*const Buffer| {
        // SAFETY: XLA gives the address of a buffer's description, which lives as long as the call.
        tensor(unsafe { &**buffer })
    };
    list(buffers.buffers, buffers.count).iter().map(each).collect()
}

fn tensor(buffer: &Buffer) -> Result<Tensor, Failure> {
    let (dtype, parts, numbers) = element(buffer.kind).ok_or_else(|| {
        let kind = buffer.kind;
        Failure::invalid(&format!("arrays of XLA's element type {kind} are not supported"))
    })?;
    let mut shape: Vec<u64> =
        list(buffer.dimensions, buffer.rank).iter().map(|size| *size as u64).collect();
    if parts > 1 {
        shape.push(parts);
    }
    Ok(Tensor { view: View::at(buffer.data as usize, shape, dtype), numbers })
}

/// The type that elements travel under, how many of it make one, and what may be computed.
fn element(kind: c_int) -> Option<(DType, u64, Numbers)> {
    Some(match kind {
        1 => (DType::Bool, 1, Numbers::All),
        2 => (DType::I8, 1, Numbers::All),
        3 => (DType::I16, 1, Numbers::All),
        4 => (DType::I32, 1, Numbers::All),
        5 => (DType::I64, 1, Numbers::All),
        6 => (DType::U8, 1, Numbers::All),
        7 => (DType::U16, 1, Numbers::All),
        8 => (DType::I32, 1, Numbers::Wrapping),
        9 => (DType::I64, 1, Numbers::Wrapping),
        10 => (DType::F16, 1, Numbers::All),
        11 => (DType::F32, 1, Numbers::All),
        12 => (DType::F64, 1, Numbers::All),
        16 => (DType::BF16, 1, Numbers::All),
        15 => (DType::F32, 2, Numbers::Linear),
        18 => (DType::F64, 2, Numbers::Linear),
        // The kinds of float8.
        19 | 20 | 23..=25 | 28 | 29 => (DType::U8, 1, Numbers::None),
        _ => return None,
    })
}

impl Numbers {
    /// Refuses a reduction that would not be that of the elements.
    pub(super) fn check(self, reduce: Reduce) -> Result<(), Failure> {
        let Reduce { op, prescale, postscale } = reduce;
        let fits = match self {
            Numbers::All => true,
            Numbers::Linear => matches!(op, 0 | 1),
            Numbers::Wrapping => matches!(op, 1 | 5) && prescale == 1.0 && postscale == 1.0,
            Numbers::None => false,
        };
        let text = match self {
            _ if fits => return Ok(()),
            Numbers::Linear => "complex numbers can be summed and averaged only",
            Numbers::Wrapping => {
                "uint32 and uint64 can be summed and multiplied only, without factors; convert the \
                 array to a signed or floating-point type"
            }
            _ => "float8 cannot be reduced; convert the array to bfloat16",
        };
        Err(Failure::invalid(text))
    }
}

/// The attributes of a call; an error names the one that is missing.
pub(super) struct Wanted<'a>(pub(super) &'a Attributes);

impl Wanted<'_> {
    pub(super) fn text(&self, name: &str) -> Result<String, Failure> {
        let value = self.find(name, STRING)?.cast::<Text>();
        // SAFETY: an attribute of this kind is such a structure.
        let text = unsafe { &*value };
        Ok(String::from_utf8_lossy(bytes(text)).into_owned())
    }

    pub(super) fn integer(&self, name: &str) -> Result<i64, Failure> {
        let value = self.scalar(name, INTEGER)?.value.cast::<i64>();
        // SAFETY: the scalar says that it is an integer of 64 bits.
        Ok(unsafe { *value })
    }

    pub(super) fn float(&self, name: &str) -> Result<f64, Failure> {
        let value = self.scalar(name, FLOAT)?.value.cast::<f64>();
        // SAFETY: the scalar says that it is a float of 64 bits.
        Ok(unsafe { *value })
    }

    pub(super) fn reduce(&self) -> Result<Reduce, Failure> {
        let (prescale, postscale) = (self.float("prescale")?, self.float("postscale")?);
        Ok(Reduce { op: self.integer("op")?, prescale, postscale })
    }

    fn scalar(&self, name: &str, kind: c_int) -> Result<&Scalar, Failure> {
        let value = self.find(name, SCALAR)?.cast::<Scalar>();
        // SAFETY: an attribute of this kind is such a structure.
        let scalar = unsafe { &*value };
        match scalar.kind == kind {
            true => Ok(scalar),
            false => Err(missing(name)),
        }
    }

    fn find(&self, name: &str, kind: c_int) -> Result<*const std::ffi::c_void, Failure> {
        let Attributes { count, kinds, names, values, .. } = *self.0;
        let is_it = |text: &*const Text| {
            // SAFETY: XLA gives the address of a name, which lives as long as the call.
            bytes(unsafe { &**text }) == name.as_bytes()
        };
        let place = list(names, count).iter().position(is_it);
        place
            .filter(|place| list(kinds, count)[*place] == kind)
            .map(|place| list(values, count)[place])
            .ok_or_else(|| missing(name))
    }
}

fn missing(name: &str) -> Failure {
    Failure::invalid(&format!("the call has no attribute `{name}`, or not of the right type"))
}

fn bytes(text: &Text) -> &[u8] {
    list(text.start, text.length as i64)
}

fn list<'a, T>(start: *const T, count: i64) -> &'a [T] {
    if count <= 0 || start.is_null() {
        return &[];
    }
    // SAFETY: XLA gives the start and the number of what lies there, for as long as the call lasts.
    unsafe { slice::from_raw_parts(start, count as usize) }
}
