//! Reads what XLA passes to a handler: operands, results and attributes.
#![expect(unsafe_code, reason = "XLA passes addresses of its structures")]

use std::ffi::c_int;
use std::slice;

use ronde_control::DType;

use super::api::{
    Buffers, EXECUTE, Extension, Frame, Scalar, XlaApi, XlaAttributes, XlaBuffer, XlaString,
};
use super::api::{FIRST_MINOR, METADATA, MetadataExtension, NEWEST_MINOR};
use crate::native::{Failure, Reduce};
use crate::tensor::View;

const SCALAR: c_int = 3;
const STRING: c_int = 4;
const INTEGER: c_int = 5;
const FLOAT: c_int = 12;

/// An operand or a result.
pub(super) struct XlaTensor {
    pub(super) view: View,
    pub(super) numbers: NumberSupport,
}

/// Which reductions work for elements that travel as another type.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum NumberSupport {
    /// All: the elements travel as their own type.
    All,
    /// Sums and averages: complex numbers travel as pairs.
    Linear,
    /// Sums and products without factors: unsigned integers travel as signed ones.
    Wrapping,
    /// None: the elements travel as bits.
    None,
}

/// Answers a query of XLA for this handler's metadata; returns whether this call is such a query.
pub(super) fn answer_metadata(frame: &Frame) -> bool {
    let mut next = frame.extensions;
    // SAFETY: extensions are a null-terminated list, and live as long as the call.
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
    // SAFETY: XLA created it for the answer, and nobody else accesses it meanwhile.
    let Some(metadata) = (unsafe { extension.metadata.as_mut() }) else { return };
    // XLA accepts handlers only of versions close to its own. An XLA that does not report its
    // version has the first one.
    let host = api(frame).map_or(FIRST_MINOR, |api| api.version.minor);
    (metadata.version.major, metadata.version.minor) = (0, host.min(NEWEST_MINOR));
    metadata.traits = 0;
}

/// The table of functions, which lives as long as its library.
pub(super) fn api(frame: &Frame) -> Option<&'static XlaApi> {
    // SAFETY: the table is a static of XLA, and XLA is never unloaded.
    unsafe { frame.api.as_ref() }
}

/// Whether this call is one that computes.
pub(super) fn computes(frame: &Frame) -> bool {
    frame.stage == EXECUTE
}

/// Operands or results.
pub(super) fn tensors(buffers: &Buffers) -> Result<Vec<XlaTensor>, Failure> {
    let each = |buffer: &*const XlaBuffer| {
        // SAFETY: XLA passes the address of a buffer's description, which lives as long as the
        // call.
        tensor(unsafe { &**buffer })
    };
    list(buffers.buffers, buffers.count).iter().map(each).collect()
}

fn tensor(buffer: &XlaBuffer) -> Result<XlaTensor, Failure> {
    let (dtype, parts, numbers) = element(buffer.kind).ok_or_else(|| {
        let kind = buffer.kind;
        Failure::invalid(&format!("arrays of XLA's element type {kind} are not supported"))
    })?;
    let mut shape: Vec<u64> =
        list(buffer.dimensions, buffer.rank).iter().map(|size| *size as u64).collect();
    if parts > 1 {
        shape.push(parts);
    }
    Ok(XlaTensor { view: View::at(buffer.data as usize, shape, dtype), numbers })
}

/// The type that elements travel as, how many of it make one element, and the supported reductions.
fn element(kind: c_int) -> Option<(DType, u64, NumberSupport)> {
    Some(match kind {
        1 => (DType::Bool, 1, NumberSupport::All),
        2 => (DType::I8, 1, NumberSupport::All),
        3 => (DType::I16, 1, NumberSupport::All),
        4 => (DType::I32, 1, NumberSupport::All),
        5 => (DType::I64, 1, NumberSupport::All),
        6 => (DType::U8, 1, NumberSupport::All),
        7 => (DType::U16, 1, NumberSupport::All),
        8 => (DType::I32, 1, NumberSupport::Wrapping),
        9 => (DType::I64, 1, NumberSupport::Wrapping),
        10 => (DType::F16, 1, NumberSupport::All),
        11 => (DType::F32, 1, NumberSupport::All),
        12 => (DType::F64, 1, NumberSupport::All),
        16 => (DType::BF16, 1, NumberSupport::All),
        15 => (DType::F32, 2, NumberSupport::Linear),
        18 => (DType::F64, 2, NumberSupport::Linear),
        // The variants of float8.
        19 | 20 | 23..=25 | 28 | 29 => (DType::U8, 1, NumberSupport::None),
        _ => return None,
    })
}

impl NumberSupport {
    /// Refuses a reduction that would be wrong for the elements.
    pub(super) fn check(self, reduce: Reduce) -> Result<(), Failure> {
        let Reduce { op, prescale, postscale } = reduce;
        let fits = match self {
            NumberSupport::All => true,
            NumberSupport::Linear => matches!(op, 0 | 1),
            NumberSupport::Wrapping => matches!(op, 1 | 5) && prescale == 1.0 && postscale == 1.0,
            NumberSupport::None => false,
        };
        let text = match self {
            _ if fits => return Ok(()),
            NumberSupport::Linear => "complex numbers can be summed and averaged only",
            NumberSupport::Wrapping => {
                "uint32 and uint64 can be summed and multiplied only, without factors; convert the \
                 array to a signed or floating-point type"
            }
            _ => "float8 cannot be reduced; convert the array to bfloat16",
        };
        Err(Failure::invalid(text))
    }
}

/// The attributes of a call; an error names the missing one.
pub(super) struct CallAttributes<'a>(pub(super) &'a XlaAttributes);

impl CallAttributes<'_> {
    pub(super) fn text(&self, name: &str) -> Result<String, Failure> {
        let value = self.find(name, STRING)?.cast::<XlaString>();
        // SAFETY: an attribute of this kind is such a structure.
        let text = unsafe { &*value };
        Ok(String::from_utf8_lossy(bytes(text)).into_owned())
    }

    pub(super) fn integer(&self, name: &str) -> Result<i64, Failure> {
        let value = self.scalar(name, INTEGER)?.value.cast::<i64>();
        // SAFETY: the scalar's kind is a 64-bit integer.
        Ok(unsafe { *value })
    }

    pub(super) fn float(&self, name: &str) -> Result<f64, Failure> {
        let value = self.scalar(name, FLOAT)?.value.cast::<f64>();
        // SAFETY: the scalar's kind is a 64-bit float.
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
        let XlaAttributes { count, kinds, names, values, .. } = *self.0;
        let is_it = |text: &*const XlaString| {
            // SAFETY: XLA passes the address of a name, which lives as long as the call.
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
    Failure::invalid(&format!("the call has no attribute `{name}` of the right type"))
}

fn bytes(text: &XlaString) -> &[u8] {
    list(text.start, text.length as i64)
}

fn list<'a, T>(start: *const T, count: i64) -> &'a [T] {
    if count <= 0 || start.is_null() {
        return &[];
    }
    // SAFETY: XLA passes the start and length of an array that lives as long as the call.
    unsafe { slice::from_raw_parts(start, count as usize) }
}
