//! TensorFlow's C interface: the functions that the kernels need, found in the TensorFlow that this
//! process has imported. No header and no library of TensorFlow is there when this is built.
//!
//! Handles are what TensorFlow gives out, and the code of this room hands each back to the functions
//! that it was given for. That is what makes calling them sound, so the table stays in this room.
#![expect(unsafe_code, reason = "functions of a C interface")]
#![expect(clippy::too_many_arguments, reason = "the signatures are TensorFlow's")]

use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;

use crate::native::Library;

/// Something of TensorFlow's.
pub(super) type Handle = *mut c_void;

pub(super) type Create = unsafe extern "C" fn(Handle) -> Handle;
pub(super) type Compute = unsafe extern "C" fn(Handle, Handle);
pub(super) type ComputeAsync = unsafe extern "C" fn(Handle, Handle, Handle);
pub(super) type Delete = unsafe extern "C" fn(Handle);

/// A text that TensorFlow owns.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Text {
    pub(super) start: *const c_char,
    pub(super) length: usize,
}

macro_rules! api {
    ($($name:ident = $symbol:literal ($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        pub(super) struct Api { $($name: unsafe extern "C" fn($($type),*) $(-> $result)?,)* }

        impl Api {
            fn load(library: Library) -> Result<Api, String> {
                Ok(Api { $(
                    // SAFETY: this is its type in TensorFlow's header, in all releases since 2.13.
                    $name: unsafe { library.function($symbol) }?,
                )* })
            }

            $(pub(super) fn $name(&self, $($argument: $type),*) $(-> $result)? {
                // SAFETY: this room passes handles on as TensorFlow gave them, and addresses of
                // its own that live until the call returns.
                unsafe { (self.$name)($($argument),*) }
            })*
        }
    };
}

api! {
    new_status = c"TF_NewStatus"() -> Handle;
    delete_status = c"TF_DeleteStatus"(status: Handle);
    set_status = c"TF_SetStatus"(status: Handle, code: c_int, text: *const c_char);
    code = c"TF_GetCode"(status: Handle) -> c_int;
    message = c"TF_Message"(status: Handle) -> *const c_char;

    new_op = c"TF_NewOpDefinitionBuilder"(name: *const c_char) -> Handle;
    op_attribute = c"TF_OpDefinitionBuilderAddAttr"(op: Handle, spec: *const c_char);
    op_input = c"TF_OpDefinitionBuilderAddInput"(op: Handle, spec: *const c_char);
    op_output = c"TF_OpDefinitionBuilderAddOutput"(op: Handle, spec: *const c_char);
    op_is_stateful = c"TF_OpDefinitionBuilderSetIsStateful"(op: Handle, stateful: bool);
    op_shape = c"TF_OpDefinitionBuilderSetShapeInferenceFunction"(op: Handle, function: Compute);
    register_op = c"TF_RegisterOpDefinition"(op: Handle, status: Handle);

    new_shape = c"TF_NewShapeHandle"() -> Handle;
    delete_shape = c"TF_DeleteShapeHandle"(shape: Handle);
    shape_inputs = c"TF_ShapeInferenceContextNumInputs"(context: Handle) -> i64;
    shape_input = c"TF_ShapeInferenceContextGetInput"(context: Handle, index: c_int, shape: Handle, status: Handle);
    shape_output = c"TF_ShapeInferenceContextSetOutput"(context: Handle, index: c_int, shape: Handle, status: Handle);
    shape_rank = c"TF_ShapeInferenceContextRank"(context: Handle, shape: Handle) -> i64;
    shape_rank_known = c"TF_ShapeInferenceContextRankKnown"(context: Handle, shape: Handle) -> c_int;
    shape_part = c"TF_ShapeInferenceContextSubshape"(context: Handle, shape: Handle, from: i64, to: i64, result: Handle, status: Handle);
    shape_vector = c"TF_ShapeInferenceContextVectorFromSize"(context: Handle, size: usize) -> Handle;
    shape_unknown = c"TF_ShapeInferenceContextSetUnknownShape"(context: Handle, status: Handle);
    shape_scalar = c"TF_ShapeInferenceContextScalar"(context: Handle) -> Handle;
    shape_join = c"TF_ShapeInferenceContextConcatenateShapes"(context: Handle, first: Handle, second: Handle, result: Handle, status: Handle);

    new_kernel = c"TF_NewKernelBuilder"(op: *const c_char, device: *const c_char, create: Option<Create>, compute: Compute, delete: Option<Delete>) -> Handle;
    new_async_kernel = c"TF_NewAsyncKernelBuilder"(op: *const c_char, device: *const c_char, create: Option<Create>, compute: ComputeAsync, delete: Option<Delete>) -> Handle;
    host_memory = c"TF_KernelBuilder_HostMemory"(kernel: Handle, argument: *const c_char);
    register_kernel = c"TF_RegisterKernelBuilder"(name: *const c_char, kernel: Handle, status: Handle);
    run_done = c"TF_RunAsyncOpKernelDoneCallback"(done: Handle);

    kernel_name = c"TF_OpKernelConstruction_GetName"(construction: Handle) -> Text;
    has_attribute = c"TF_OpKernelConstruction_HasAttr"(construction: Handle, name: *const c_char, status: Handle) -> bool;
    int_attribute = c"TF_OpKernelConstruction_GetAttrInt64"(construction: Handle, name: *const c_char, value: *mut i64, status: Handle);
    float_attribute = c"TF_OpKernelConstruction_GetAttrFloat"(construction: Handle, name: *const c_char, value: *mut f32, status: Handle);
    bool_attribute = c"TF_OpKernelConstruction_GetAttrBool"(construction: Handle, name: *const c_char, value: *mut u8, status: Handle);
    attribute_size = c"TF_OpKernelConstruction_GetAttrSize"(construction: Handle, name: *const c_char, list: *mut i32, total: *mut i32, status: Handle);
    text_attribute = c"TF_OpKernelConstruction_GetAttrString"(construction: Handle, name: *const c_char, value: *mut c_char, room: usize, status: Handle);
    construction_fails = c"TF_OpKernelConstruction_Failure"(construction: Handle, status: Handle);

    inputs = c"TF_NumInputs"(context: Handle) -> c_int;
    input = c"TF_GetInput"(context: Handle, index: c_int, tensor: *mut Handle, status: Handle);
    allocate = c"TF_AllocateOutput"(context: Handle, index: c_int, dtype: c_int, sizes: *const i64, dimensions: c_int, bytes: usize, status: Handle) -> Handle;
    forward_or_allocate = c"TF_ForwardInputOrAllocateOutput"(context: Handle, candidates: *const c_int, count: c_int, index: c_int, sizes: *const i64, dimensions: c_int, forwarded: *mut c_int, status: Handle) -> Handle;
    context_fails = c"TF_OpKernelContext_Failure"(context: Handle, status: Handle);

    dtype = c"TF_TensorType"(tensor: Handle) -> c_int;
    dimensions = c"TF_NumDims"(tensor: Handle) -> c_int;
    dimension = c"TF_Dim"(tensor: Handle, index: c_int) -> i64;
    data = c"TF_TensorData"(tensor: Handle) -> Handle;
    delete_tensor = c"TF_DeleteTensor"(tensor: Handle);
}

static API: OnceLock<Api> = OnceLock::new();

/// Finds the functions; an error says what is missing.
pub(super) fn load() -> Result<&'static Api, String> {
    if let Some(api) = API.get() {
        return Ok(api);
    }
    let names = [c"libtensorflow_framework.so.2", c"libtensorflow_framework.2.dylib"];
    let library = Library::loaded(&names).ok_or("TensorFlow is not loaded in this process")?;
    let api = Api::load(library).map_err(|symbol| {
        format!("this TensorFlow has no function `{symbol}` in its C interface")
    })?;
    Ok(API.get_or_init(|| api))
}

/// The functions, for code that TensorFlow calls.
pub(super) fn api() -> &'static Api {
    API.get().expect("what TensorFlow calls was registered through it")
}
