//! The structures of XLA's foreign function interface, as in its C header since JAX 0.4.31.
//!
//! Nothing is linked: each call passes the table of functions. The structures only grow at their
//! ends, and each contains its own size.

use std::ffi::{c_char, c_int, c_void};

pub(super) type XlaHandle = *mut c_void;

/// The minor version of JAX 0.4.35, the first that asks for it.
pub(super) const FIRST_MINOR: c_int = 1;
/// The newest minor version of the interface that these structures match.
pub(super) const NEWEST_MINOR: c_int = 3;
/// The stage of a program's life in which a call computes.
pub(super) const EXECUTE: c_int = 3;
/// The extension with which XLA queries a handler's metadata instead of calling it.
pub(super) const METADATA: c_int = 1;

#[repr(C)]
pub(super) struct Extension {
    pub(super) size: usize,
    pub(super) kind: c_int,
    pub(super) next: *mut Extension,
}

#[repr(C)]
pub(super) struct Version {
    size: usize,
    extensions: *mut Extension,
    pub(super) major: c_int,
    pub(super) minor: c_int,
}

#[repr(C)]
pub(super) struct Metadata {
    size: usize,
    pub(super) version: Version,
    pub(super) traits: u32,
}

#[repr(C)]
pub(super) struct MetadataExtension {
    base: Extension,
    pub(super) metadata: *mut Metadata,
}

#[repr(C)]
pub(super) struct XlaBuffer {
    size: usize,
    extensions: *mut Extension,
    pub(super) kind: c_int,
    pub(super) data: XlaHandle,
    pub(super) rank: i64,
    pub(super) dimensions: *const i64,
}

/// Operands or results.
#[repr(C)]
pub(super) struct Buffers {
    size: usize,
    extensions: *mut Extension,
    pub(super) count: i64,
    kinds: *const c_int,
    pub(super) buffers: *const *const XlaBuffer,
}

#[repr(C)]
pub(super) struct XlaString {
    pub(super) start: *const u8,
    pub(super) length: usize,
}

#[repr(C)]
pub(super) struct Scalar {
    pub(super) kind: c_int,
    pub(super) value: *const c_void,
}

#[repr(C)]
pub(super) struct XlaAttributes {
    size: usize,
    extensions: *mut Extension,
    pub(super) count: i64,
    pub(super) kinds: *const c_int,
    pub(super) names: *const *const XlaString,
    pub(super) values: *const *const c_void,
}

#[repr(C)]
pub(super) struct Frame {
    pub(super) size: usize,
    pub(super) extensions: *mut Extension,
    pub(super) api: *const XlaApi,
    pub(super) context: XlaHandle,
    pub(super) stage: c_int,
    pub(super) operands: Buffers,
    pub(super) results: Buffers,
    pub(super) attributes: XlaAttributes,
    /// A handler that completes later puts its future here.
    pub(super) future: XlaHandle,
}

#[repr(C)]
pub(super) struct ErrorArguments {
    size: usize,
    extensions: *mut Extension,
    message: *const c_char,
    code: c_int,
}

impl ErrorArguments {
    pub(super) fn new(message: *const c_char, code: c_int) -> ErrorArguments {
        let (size, extensions) = (size_of::<ErrorArguments>(), std::ptr::null_mut());
        ErrorArguments { size, extensions, message, code }
    }
}

#[repr(C)]
pub(super) struct FutureArguments {
    size: usize,
    extensions: *mut Extension,
    pub(super) future: XlaHandle,
}

impl FutureArguments {
    pub(super) fn new(future: XlaHandle) -> FutureArguments {
        let (size, extensions) = (size_of::<FutureArguments>(), std::ptr::null_mut());
        FutureArguments { size, extensions, future }
    }
}

#[repr(C)]
pub(super) struct FutureErrorArguments {
    size: usize,
    extensions: *mut Extension,
    future: XlaHandle,
    error: XlaHandle,
}

impl FutureErrorArguments {
    pub(super) fn new(future: XlaHandle, error: XlaHandle) -> FutureErrorArguments {
        let (size, extensions) = (size_of::<FutureErrorArguments>(), std::ptr::null_mut());
        FutureErrorArguments { size, extensions, future, error }
    }
}

/// An error, and a place for its text, which the error owns.
#[repr(C)]
pub(super) struct MessageArguments {
    size: usize,
    extensions: *mut Extension,
    error: XlaHandle,
    pub(super) message: *const c_char,
}

impl MessageArguments {
    pub(super) fn new(error: XlaHandle) -> MessageArguments {
        let (size, extensions) = (size_of::<MessageArguments>(), std::ptr::null_mut());
        MessageArguments { size, extensions, error, message: std::ptr::null() }
    }
}

/// A call's context, and a place for the stream that its program runs on.
#[repr(C)]
pub(super) struct StreamArguments {
    size: usize,
    extensions: *mut Extension,
    context: XlaHandle,
    pub(super) stream: XlaHandle,
}

impl StreamArguments {
    pub(super) fn new(context: XlaHandle) -> StreamArguments {
        let (size, extensions) = (size_of::<StreamArguments>(), std::ptr::null_mut());
        StreamArguments { size, extensions, context, stream: std::ptr::null_mut() }
    }
}

/// The functions of a handler, one for each stage of a program's life.
#[repr(C)]
struct Bundle {
    instantiate: XlaHandle,
    prepare: XlaHandle,
    initialize: XlaHandle,
    execute: XlaHandle,
}

#[repr(C)]
pub(super) struct RegisterArguments {
    size: usize,
    extensions: *mut Extension,
    name: XlaString,
    platform: XlaString,
    bundle: Bundle,
    traits: u32,
}

impl RegisterArguments {
    /// A handler that acts only when a program runs.
    pub(super) fn new(name: &'static str, platform: &'static str, execute: XlaHandle) -> Self {
        let nothing = std::ptr::null_mut();
        let text = |text: &'static str| XlaString { start: text.as_ptr(), length: text.len() };
        RegisterArguments {
            size: size_of::<RegisterArguments>(),
            extensions: std::ptr::null_mut(),
            name: text(name),
            platform: text(platform),
            bundle: Bundle { instantiate: nothing, prepare: nothing, initialize: nothing, execute },
            traits: 0,
        }
    }
}

type OfError = unsafe extern "C" fn(*mut MessageArguments);
type Register = unsafe extern "C" fn(*mut RegisterArguments) -> XlaHandle;
type OfStream = unsafe extern "C" fn(*mut StreamArguments) -> XlaHandle;
type ErrorCreate = unsafe extern "C" fn(*mut ErrorArguments) -> XlaHandle;
pub(super) type OfFuture = unsafe extern "C" fn(*mut FutureArguments) -> XlaHandle;
type OfFutureError = unsafe extern "C" fn(*mut FutureErrorArguments) -> XlaHandle;

/// The table of functions, up to the last one used here.
#[repr(C)]
pub(super) struct XlaApi {
    pub(super) size: usize,
    extensions: *mut Extension,
    pub(super) version: Version,
    internal: XlaHandle,
    pub(super) error_create: ErrorCreate,
    pub(super) error_message: OfError,
    error_destroy: XlaHandle,
    pub(super) handler_register: Register,
    pub(super) stream: OfStream,
    type_register: XlaHandle,
    context: XlaHandle,
    state_set: XlaHandle,
    state: XlaHandle,
    memory_allocate: XlaHandle,
    memory_free: XlaHandle,
    pool_schedule: XlaHandle,
    pool_threads: XlaHandle,
    pub(super) future_create: Option<OfFuture>,
    pub(super) future_set_available: Option<OfFuture>,
    pub(super) future_set_error: Option<OfFutureError>,
}
