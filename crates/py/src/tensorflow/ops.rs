//! The table of ops: their names, attributes and arguments are those that graphs, saved models and
//! programs for Horovod use.
//!
//! Ops that compute a value are stateless, because TensorFlow runs the stateful nodes of a function
//! one after the other; ops that only look something up are stateful, because they must not be
//! folded into constants.

use std::ffi::{CStr, CString, c_char};

use super::api::{Compute, ComputeAsync, TfApi, TfHandle};
use super::context::TfStatus;
use super::node::Make;
use super::{kernel, node, shape};

const ELEMENTS: &CStr =
    c"T: {uint8, int8, uint16, int16, int32, int64, half, bfloat16, float, double, bool}";
/// Also the types that are only moved, and never computed with.
const MOVED: &CStr = c"T: {uint8, int8, uint16, int16, uint32, int32, uint64, int64, half, bfloat16, float, double, bool}";
/// The name that ranks match the node by, if it is not the node's own: in eager mode nodes have
/// none.
const NAME: &CStr = c"tensor_name: string = ''";
const SCOPE: &CStr = c"ignore_name_scope: bool = false";
const SET: &CStr = c"process_set_id: int = 0";
const OP: &CStr = c"reduce_op: int";
const PRESCALE: &CStr = c"prescale_factor: float";
const POSTSCALE: &CStr = c"postscale_factor: float";
/// For reducescatter: the first releases of Horovod that had it did not have these factors.
const SCATTER_PRESCALE: &CStr = c"prescale_factor: float = 1.0";
const SCATTER_POSTSCALE: &CStr = c"postscale_factor: float = 1.0";
const COUNT: &CStr = c"num_tensors: int >= 1";
const ROOT: &CStr = c"root_rank: int";
const VARIABLES: &CStr = c"num_variables: int";
const VARIABLE_NAMES: &CStr = c"variable_names: list(string)";

struct OpDef {
    name: &'static CStr,
    attributes: &'static [&'static CStr],
    inputs: &'static [&'static CStr],
    outputs: &'static [&'static CStr],
    shape: Compute,
    make: Option<Make>,
    compute: OpWork,
}

enum OpWork {
    Collective(ComputeAsync),
    /// An op that must run even if its result is not used.
    Command(ComputeAsync),
    LookUp(Compute),
}

const REDUCE: &[&CStr] = &[ELEMENTS, OP, PRESCALE, POSTSCALE, SCOPE, SET, NAME];
const REDUCE_GROUP: &[&CStr] = &[ELEMENTS, COUNT, OP, PRESCALE, POSTSCALE, SCOPE, SET, NAME];
const SCATTER: &[&CStr] = &[ELEMENTS, OP, SCATTER_PRESCALE, SCATTER_POSTSCALE, SCOPE, SET, NAME];
const SCATTER_GROUP: &[&CStr] =
    &[ELEMENTS, COUNT, OP, SCATTER_PRESCALE, SCATTER_POSTSCALE, SCOPE, SET, NAME];
const MANY: &[&CStr] = &[c"tensors: num_tensors * T"];
const ONE: &[&CStr] = &[c"tensor: T"];

const OPS: &[OpDef] = &[
    OpDef {
        name: c"HorovodAllreduce",
        attributes: REDUCE,
        inputs: ONE,
        outputs: &[c"sum: T"],
        shape: shape::same,
        make: Some(node::ALLREDUCE),
        compute: OpWork::Collective(kernel::compute_alike),
    },
    OpDef {
        name: c"HorovodGroupedAllreduce",
        attributes: REDUCE_GROUP,
        inputs: MANY,
        outputs: &[c"sum: num_tensors * T"],
        shape: shape::same,
        make: Some(node::ALLREDUCE),
        compute: OpWork::Collective(kernel::compute_alike),
    },
    OpDef {
        name: c"HorovodAllgather",
        attributes: &[MOVED, SCOPE, SET, NAME],
        inputs: ONE,
        outputs: &[c"output: T"],
        shape: shape::rows_unknown,
        make: Some(node::ALLGATHER),
        compute: OpWork::Collective(kernel::compute_rows),
    },
    OpDef {
        name: c"HorovodGroupedAllgather",
        attributes: &[MOVED, COUNT, SCOPE, SET, NAME],
        inputs: MANY,
        outputs: &[c"outputs: num_tensors * T"],
        shape: shape::rows_unknown,
        make: Some(node::ALLGATHER),
        compute: OpWork::Collective(kernel::compute_rows),
    },
    OpDef {
        name: c"HorovodBroadcast",
        attributes: &[MOVED, ROOT, SCOPE, SET, NAME],
        inputs: ONE,
        outputs: &[c"output: T"],
        shape: shape::same,
        make: Some(node::BROADCAST),
        compute: OpWork::Collective(kernel::compute_alike),
    },
    // A graph saved with one of these two can be loaded; only running it is an error.
    OpDef {
        name: c"HorovodBroadcastInplace",
        attributes: &[ELEMENTS, ROOT, SET, VARIABLES, VARIABLE_NAMES],
        inputs: &[c"tensor_refs: Ref(num_variables * T)"],
        outputs: &[c"output_refs: Ref(num_variables * T)"],
        shape: shape::same,
        make: None,
        compute: OpWork::LookUp(kernel::refuse_variables),
    },
    OpDef {
        name: c"HorovodBroadcastInplaceResource",
        attributes: &[ROOT, SET, VARIABLES, VARIABLE_NAMES],
        inputs: &[c"resources: num_variables * resource"],
        outputs: &[],
        shape: shape::nothing,
        make: None,
        compute: OpWork::LookUp(kernel::refuse_variables),
    },
    OpDef {
        name: c"HorovodAlltoall",
        attributes: &[MOVED, SCOPE, SET, NAME],
        inputs: &[c"tensor: T", c"splits: int32"],
        outputs: &[c"output: T", c"received_splits: int32"],
        shape: shape::exchanged,
        make: Some(node::ALLTOALL),
        compute: OpWork::Collective(kernel::compute_alltoall),
    },
    OpDef {
        name: c"HorovodReducescatter",
        attributes: SCATTER,
        inputs: ONE,
        outputs: &[c"output: T"],
        shape: shape::rows_unknown,
        make: Some(node::REDUCESCATTER),
        compute: OpWork::Collective(kernel::compute_rows),
    },
    OpDef {
        name: c"HorovodGroupedReducescatter",
        attributes: SCATTER_GROUP,
        inputs: MANY,
        outputs: &[c"outputs: num_tensors * T"],
        shape: shape::rows_unknown,
        make: Some(node::REDUCESCATTER),
        compute: OpWork::Collective(kernel::compute_rows),
    },
    OpDef {
        name: c"HorovodJoin",
        attributes: &[],
        inputs: &[],
        outputs: &[c"output: int32"],
        shape: shape::number,
        make: None,
        compute: OpWork::Command(kernel::compute_join),
    },
    OpDef {
        name: c"HorovodBarrier",
        attributes: &[SCOPE, SET],
        inputs: &[],
        outputs: &[],
        shape: shape::nothing,
        make: Some(node::COMMAND),
        compute: OpWork::Command(kernel::compute_command),
    },
    OpDef {
        name: c"HorovodSize",
        attributes: &[SET],
        inputs: &[],
        outputs: &[c"size: int32"],
        shape: shape::number,
        make: Some(node::COMMAND),
        compute: OpWork::LookUp(kernel::compute_size),
    },
    OpDef {
        name: c"HorovodProcessSetIncluded",
        attributes: &[SET],
        inputs: &[],
        outputs: &[c"included: int32"],
        shape: shape::number,
        make: Some(node::COMMAND),
        compute: OpWork::LookUp(kernel::compute_included),
    },
    OpDef {
        name: c"HorovodRank",
        attributes: &[],
        inputs: &[],
        outputs: &[c"rank: int32"],
        shape: shape::number,
        make: None,
        compute: OpWork::LookUp(kernel::compute_rank),
    },
    OpDef {
        name: c"HorovodLocalRank",
        attributes: &[],
        inputs: &[],
        outputs: &[c"local_rank: int32"],
        shape: shape::number,
        make: None,
        compute: OpWork::LookUp(kernel::compute_local_rank),
    },
    OpDef {
        name: c"HorovodLocalSize",
        attributes: &[],
        inputs: &[],
        outputs: &[c"local_size: int32"],
        shape: shape::number,
        make: None,
        compute: OpWork::LookUp(kernel::compute_local_size),
    },
];

/// Registers all ops and their kernels with TensorFlow.
pub(super) fn register(api: &TfApi) -> Result<(), String> {
    for op in OPS {
        define(api, op)?;
        // A kernel on a GPU would need TensorFlow's stream, which `TF_GetStream` returns only for
        // pluggable devices. So TensorFlow copies the tensors to host memory and back.
        for device in [c"CPU", c"GPU"] {
            add_kernel(api, op, device)?;
        }
    }
    Ok(())
}

fn define(api: &TfApi, op: &OpDef) -> Result<(), String> {
    let (status, builder) = (TfStatus::new(), api.new_op(op.name.as_ptr()));
    op.attributes.iter().for_each(|spec| api.op_attribute(builder, spec.as_ptr()));
    op.inputs.iter().for_each(|spec| api.op_input(builder, spec.as_ptr()));
    op.outputs.iter().for_each(|spec| api.op_output(builder, spec.as_ptr()));
    if !matches!(op.compute, OpWork::Collective(_)) {
        // TensorFlow ignores the argument: the call itself marks the op.
        api.op_is_stateful(builder, true);
    }
    api.op_shape(builder, op.shape);
    api.register_op(builder, status.handle());
    status.check().map_err(|failure| failure.text)
}

fn add_kernel(api: &TfApi, op: &OpDef, device: &CStr) -> Result<(), String> {
    let (name, place) = (op.name.as_ptr(), device.as_ptr());
    let create = op.make.map(|make| if device == c"GPU" { make.on_gpu } else { make.on_cpu });
    let delete = op.make.map(|_| node::delete as unsafe extern "C" fn(TfHandle));
    let builder = match op.compute {
        OpWork::Collective(compute) | OpWork::Command(compute) => {
            api.new_async_kernel(name, place, create, compute, delete)
        }
        OpWork::LookUp(compute) => api.new_kernel(name, place, create, compute, delete),
    };
    for spec in op.inputs.iter().chain(op.outputs) {
        let argument = spec.to_bytes().split(|byte| *byte == b':').next().unwrap_or_default();
        let argument = CString::new(argument).unwrap_or_default();
        let argument: *const c_char = argument.as_ptr();
        if device == c"GPU" {
            api.host_memory(builder, argument);
        }
    }
    let status = TfStatus::new();
    api.register_kernel(name, builder, status.handle());
    status.check().map_err(|failure| failure.text)
}
