//! The structures of XLA's foreign function interface, as its C header has them since JAX 0.4.31.
//!
//! Nothing is linked: each call brings the table of functions along. The layouts only grow at their
//! ends, and every structure says how long it is.

use std::ffi::{c_char, c_int, c_void};

pub(super) type Handle = *mut c_void;

/// The minor version of JAX 0.4.35, the first that asks.
pub(super) const FIRST_MINOR: c_int = 1;
/// The newest minor version of the interface whose layouts stand here.
pub(super) const NEWEST_MINOR: c_int = 3;
/// The stage of a program's life in which a call computes.
pub(super) const EXECUTE: c_int = 3;
/// The extension by which XLA asks what a handler is, without calling it.
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
pub(super) struct Buffer {
    size: usize,
    extensions: *mut Extension,
    pub(super) kind: c_int,
    pub(super) data: Handle,
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
    pub(super) buffers: *const *const Buffer,
}

#[repr(C)]
pub(super) struct Text {
    pub(super) start: *const u8,
    pub(super) length: usize,
}

#[repr(C)]
pub(super) struct Scalar {
    pub(super) kind: c_int,
    pub(super) value: *const c_void,
}

#[repr(C)]
pub(super) struct Attributes {
    size: usize,
    extensions: *mut Extension,
    pub(super) count: i64,
    pub(super) kinds: *const c_int,
    pub(super) names: *const *const Text,
    pub(super) values: *const *const c_void,
}

#[repr(C)]
pub(super) struct Frame {
    pub(super) size: usize,
    pub(super) extensions: *mut Extension,
    pub(super) api: *const Api,
    context: Handle,
    pub(super) stage: c_int,
    pub(super) operands: Buffers,
    pub(super) results: Buffers,
    pub(super) attributes: Attributes,
    /// A handler that completes later puts its future here.
    pub(super) future: Handle,
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
    pub(super) future: Handle,
}

impl FutureArguments {
    pub(super) fn new(future: Handle) -> FutureArguments {
        let (size, extensions) = (size_of::<FutureArguments>(), std::ptr::null_mut());
        FutureArguments { size, extensions, future }
    }
}

#[repr(C)]
pub(super) struct FutureErrorArguments {
    size: usize,
    extensions: *mut Extension,
    future: Handle,
    error: Handle,
}

impl FutureErrorArguments {
    pub(super) fn new(future: Handle, error: Handle) -> FutureErrorArguments {
        let (size, extensions) = (size_of::<FutureErrorArguments>(), std::ptr::null_mut());
        FutureErrorArguments { size, extensions, future, error }
    }
}

/// An error, and room for its text, which is the error's.
#[repr(C)]
pub(super) struct MessageArguments {
    size: usize,
    extensions: *mut Extension,
    error: Handle,
    pub(super) message: *const c_char,
}

impl MessageArguments {
    pub(super) fn new(error: Handle) -> MessageArguments {
        let (size, extensions) = (size_of::<MessageArguments>(), std::ptr::null_mut());
        MessageArguments { size, extensions, error, message: std::ptr::null() }
    }
}

/// The functions of a handler, one for each stage of a program's life.
#[repr(C)]
struct Bundle {
    instantiate: Handle,
    prepare: Handle,
    initialize: Handle,
    execute: Handle,
}

#[repr(C)]
pub(super) struct RegisterArguments {
    size: usize,
    extensions: *mut Extension,
    name: Text,
    platform: Text,
    bundle: Bundle,
    traits: u32,
}

impl RegisterArguments {
    /// A handler that does something only when a program runs.
    pub(super) fn new(name: &'static str, platform: &'static str, execute: Handle) -> Self {
        let nothing = std::ptr::null_mut();
        let text = |text: &'static str| Text { start: text.as_ptr(), length: text.len() };
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
type Register = unsafe extern "C" fn(*mut RegisterArguments) -> Handle;
type ErrorCreate = unsafe extern "C" fn(*mut ErrorArguments) -> Handle;
pub(super) type OfFuture = unsafe extern "C" fn(*mut FutureArguments) -> Handle;
type OfFutureError = unsafe extern "C" fn(*mut FutureErrorArguments) -> Handle;

/// The table of functions, as far as it is used here.
#[repr(C)]
pub(super) struct Api {
    pub(super) size: usize,
    extensions: *mut Extension,
    pub(super) version: Version,
    internal: Handle,
    pub(super) error_create: ErrorCreate,
    pub(super) error_message: OfError,
    error_destroy: Handle,
    pub(super) handler_register: Register,
    stream: Handle,
    type_register: Handle,
    context: Handle,
    state_set: Handle,
    state: Handle,
    memory_allocate: Handle,
    memory_free: Handle,
    pool_schedule: Handle,
    pool_threads: Handle,
    pub(super) future_create: Option<OfFuture>,
    pub(super) future_set_available: Option<OfFuture>,
    pub(super) future_set_error: Option<OfFutureError>,
}
