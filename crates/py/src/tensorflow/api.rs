//! TensorFlow's C interface: the functions that the kernels need, looked up in the TensorFlow that
//! this process has imported. Building this needs neither headers nor libraries of TensorFlow.
//!
//! This module passes each handle from TensorFlow back to the functions that it is meant for. That
//! makes calling them sound, so the table is private to this module.
#![expect(unsafe_code, reason = "calls functions of a C interface")]
#![expect(clippy::too_many_arguments, reason = "the signatures are TensorFlow's")]

use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;

use crate::native::Library;

/// A pointer to an object of TensorFlow.
pub(super) type TfHandle = *mut c_void;

pub(super) type Create = unsafe extern "C" fn(TfHandle) -> TfHandle;
pub(super) type Compute = unsafe extern "C" fn(TfHandle, TfHandle);
pub(super) type ComputeAsync = unsafe extern "C" fn(TfHandle, TfHandle, TfHandle);
pub(super) type Delete = unsafe extern "C" fn(TfHandle);

/// A text that TensorFlow owns.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct TfString {
    pub(super) start: *const c_char,
    pub(super) length: usize,
}

macro_rules! api {
    ($($name:ident = $symbol:literal ($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        pub(super) struct TfApi { $($name: unsafe extern "C" fn($($type),*) $(-> $result)?,)* }

        impl TfApi {
            fn load(library: Library) -> Result<TfApi, String> {
                Ok(TfApi { $(
                    // SAFETY: this is its type in TensorFlow's header, in all releases since 2.13.
                    $name: unsafe { library.function($symbol) }?,
                )* })
            }

            $(pub(super) fn $name(&self, $($argument: $type),*) $(-> $result)? {
                // SAFETY: this module passes handles on as TensorFlow returned them, and its own
                // addresses, which live until the call returns.
                unsafe { (self.$name)($($argument),*) }
            })*
        }
    };
}

api! {
    new_status = c"TF_NewStatus"() -> TfHandle;
    delete_status = c"TF_DeleteStatus"(status: TfHandle);
    set_status = c"TF_SetStatus"(status: TfHandle, code: c_int, text: *const c_char);
    code = c"TF_GetCode"(status: TfHandle) -> c_int;
    message = c"TF_Message"(status: TfHandle) -> *const c_char;

    new_op = c"TF_NewOpDefinitionBuilder"(name: *const c_char) -> TfHandle;
    op_attribute = c"TF_OpDefinitionBuilderAddAttr"(op: TfHandle, spec: *const c_char);
    op_input = c"TF_OpDefinitionBuilderAddInput"(op: TfHandle, spec: *const c_char);
    op_output = c"TF_OpDefinitionBuilderAddOutput"(op: TfHandle, spec: *const c_char);
    op_is_stateful = c"TF_OpDefinitionBuilderSetIsStateful"(op: TfHandle, stateful: bool);
    op_shape = c"TF_OpDefinitionBuilderSetShapeInferenceFunction"(op: TfHandle, function: Compute);
    register_op = c"TF_RegisterOpDefinition"(op: TfHandle, status: TfHandle);

    new_shape = c"TF_NewShapeHandle"() -> TfHandle;
    delete_shape = c"TF_DeleteShapeHandle"(shape: TfHandle);
    shape_inputs = c"TF_ShapeInferenceContextNumInputs"(context: TfHandle) -> i64;
    shape_input = c"TF_ShapeInferenceContextGetInput"(context: TfHandle, index: c_int, shape: TfHandle, status: TfHandle);
    shape_output = c"TF_ShapeInferenceContextSetOutput"(context: TfHandle, index: c_int, shape: TfHandle, status: TfHandle);
    shape_rank = c"TF_ShapeInferenceContextRank"(context: TfHandle, shape: TfHandle) -> i64;
    shape_rank_known = c"TF_ShapeInferenceContextRankKnown"(context: TfHandle, shape: TfHandle) -> c_int;
    shape_part = c"TF_ShapeInferenceContextSubshape"(context: TfHandle, shape: TfHandle, from: i64, to: i64, result: TfHandle, status: TfHandle);
    shape_vector = c"TF_ShapeInferenceContextVectorFromSize"(context: TfHandle, size: usize) -> TfHandle;
    shape_unknown = c"TF_ShapeInferenceContextSetUnknownShape"(context: TfHandle, status: TfHandle);
    shape_scalar = c"TF_ShapeInferenceContextScalar"(context: TfHandle) -> TfHandle;
    shape_join = c"TF_ShapeInferenceContextConcatenateShapes"(context: TfHandle, first: TfHandle, second: TfHandle, result: TfHandle, status: TfHandle);

    new_kernel = c"TF_NewKernelBuilder"(op: *const c_char, device: *const c_char, create: Option<Create>, compute: Compute, delete: Option<Delete>) -> TfHandle;
    new_async_kernel = c"TF_NewAsyncKernelBuilder"(op: *const c_char, device: *const c_char, create: Option<Create>, compute: ComputeAsync, delete: Option<Delete>) -> TfHandle;
    host_memory = c"TF_KernelBuilder_HostMemory"(kernel: TfHandle, argument: *const c_char);
    register_kernel = c"TF_RegisterKernelBuilder"(name: *const c_char, kernel: TfHandle, status: TfHandle);
    run_done = c"TF_RunAsyncOpKernelDoneCallback"(done: TfHandle);

    kernel_name = c"TF_OpKernelConstruction_GetName"(construction: TfHandle) -> TfString;
    has_attribute = c"TF_OpKernelConstruction_HasAttr"(construction: TfHandle, name: *const c_char, status: TfHandle) -> bool;
    int_attribute = c"TF_OpKernelConstruction_GetAttrInt64"(construction: TfHandle, name: *const c_char, value: *mut i64, status: TfHandle);
    float_attribute = c"TF_OpKernelConstruction_GetAttrFloat"(construction: TfHandle, name: *const c_char, value: *mut f32, status: TfHandle);
    bool_attribute = c"TF_OpKernelConstruction_GetAttrBool"(construction: TfHandle, name: *const c_char, value: *mut u8, status: TfHandle);
    attribute_size = c"TF_OpKernelConstruction_GetAttrSize"(construction: TfHandle, name: *const c_char, list: *mut i32, total: *mut i32, status: TfHandle);
    text_attribute = c"TF_OpKernelConstruction_GetAttrString"(construction: TfHandle, name: *const c_char, value: *mut c_char, room: usize, status: TfHandle);
    construction_fails = c"TF_OpKernelConstruction_Failure"(construction: TfHandle, status: TfHandle);

    inputs = c"TF_NumInputs"(context: TfHandle) -> c_int;
    input = c"TF_GetInput"(context: TfHandle, index: c_int, tensor: *mut TfHandle, status: TfHandle);
    allocate = c"TF_AllocateOutput"(context: TfHandle, index: c_int, dtype: c_int, sizes: *const i64, dimensions: c_int, bytes: usize, status: TfHandle) -> TfHandle;
    forward_or_allocate = c"TF_ForwardInputOrAllocateOutput"(context: TfHandle, candidates: *const c_int, count: c_int, index: c_int, sizes: *const i64, dimensions: c_int, forwarded: *mut c_int, status: TfHandle) -> TfHandle;
    context_fails = c"TF_OpKernelContext_Failure"(context: TfHandle, status: TfHandle);

    dtype = c"TF_TensorType"(tensor: TfHandle) -> c_int;
    dimensions = c"TF_NumDims"(tensor: TfHandle) -> c_int;
    dimension = c"TF_Dim"(tensor: TfHandle, index: c_int) -> i64;
    data = c"TF_TensorData"(tensor: TfHandle) -> TfHandle;
    delete_tensor = c"TF_DeleteTensor"(tensor: TfHandle);
}

static API: OnceLock<TfApi> = OnceLock::new();

/// Looks up the functions; the error names the missing one.
pub(super) fn load() -> Result<&'static TfApi, String> {
    if let Some(api) = API.get() {
        return Ok(api);
    }
    let names = [c"libtensorflow_framework.so.2", c"libtensorflow_framework.2.dylib"];
    let library = Library::loaded(&names).ok_or("TensorFlow is not loaded in this process")?;
    let api = TfApi::load(library).map_err(|symbol| {
        format!("this TensorFlow has no function `{symbol}` in its C interface")
    })?;
    Ok(API.get_or_init(|| api))
}

/// The functions, for code that TensorFlow calls.
pub(super) fn api() -> &'static TfApi {
    API.get().expect("callbacks are registered through it")
}
