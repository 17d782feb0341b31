//! The computations of kernels: each submits the tensors that TensorFlow passes, and is done when
//! the engine is. Its function returns at once, so that hundreds can be in flight with two threads.

use std::ffi::c_int;

use super::api::TfHandle;
use super::context::{KernelContext, TfTensor};
use super::done::{self, Finish};
use super::node::kernel;
use crate::native::{
    self, CallOutcome, CollectiveCall, CollectiveRequest, ErrorClass, Failure, SubmittedTensors,
};
use crate::process;

/// Allreduce and broadcast, of one or more tensors: every result has the shape of its input.
pub(super) extern "C" fn compute_alike(handle: TfHandle, context: TfHandle, done: TfHandle) {
    let context = KernelContext::new(context);
    done::run(done, |finish| {
        let started = (0..context.inputs()).map(|index| context.like_input(index)).collect();
        match started {
            Ok(pairs) => submit_alike(kernel(handle).call(), context, pairs, finish),
            Err(failure) => end(context, Err(failure), finish),
        }
    });
}

/// A result and its input, unless both are the same tensor.
type Pair = (Option<TfTensor>, TfTensor);

fn submit_alike(call: CollectiveCall, context: KernelContext, pairs: Vec<Pair>, finish: Finish) {
    match TfTensor::lend_pairs(pairs) {
        Ok(submitted) => native::submit(
            call,
            submitted,
            Box::new(move |answer| end(context, answer.map(|_| ()), finish)),
        ),
        Err(failure) => end(context, Err(failure), finish),
    }
}

/// Allgather and reducescatter, of one or more tensors: the first dimension of each result is known
/// only after all ranks have submitted.
pub(super) extern "C" fn compute_rows(handle: TfHandle, context: TfHandle, done: TfHandle) {
    let context = KernelContext::new(context);
    done::run(done, |finish| {
        let inputs = (0..context.inputs()).map(|index| context.input(index)).collect();
        let call = kernel(handle).call();
        submit_rows(
            call,
            context,
            inputs,
            Box::new(move |answer| {
                end(context, answer.map(|_| ()), finish);
            }),
        );
    });
}

/// Alltoall: the second input says how many rows each rank gets, the second result how many
/// arrived.
pub(super) extern "C" fn compute_alltoall(handle: TfHandle, context: TfHandle, done: TfHandle) {
    let context = KernelContext::new(context);
    done::run(done, |finish| {
        let kernel = kernel(handle);
        let splits = splits(context, kernel.set);
        let tensor = context.input(0).map(|tensor| vec![tensor]);
        let (inputs, splits) = match (tensor, splits) {
            (Ok(tensor), Ok(splits)) => (Ok(tensor), splits),
            (Err(failure), _) | (_, Err(failure)) => (Err(failure), Vec::new()),
        };
        let call = CollectiveCall {
            collective_request: CollectiveRequest::Alltoall { splits },
            ..kernel.call()
        };
        submit_rows(
            call,
            context,
            inputs,
            Box::new(move |answer| {
                let put = answer.and_then(|answer| match answer {
                    CallOutcome::Placed(rows) => {
                        let rows: Vec<i32> =
                            rows.concat().iter().map(|rows| *rows as i32).collect();
                        context.put_numbers(1, &[rows.len() as i64], &rows)
                    }
                    _ => Err(Failure::invalid("an alltoall returned no row counts")),
                });
                end(context, put, finish);
            }),
        );
    });
}

/// The rows for each member of the process set; without any the rows are split evenly.
fn splits(context: KernelContext, set: u32) -> Result<Vec<u64>, Failure> {
    let given = context.input(1)?.numbers()?;
    if !given.is_empty() {
        let number = |rows: &i32| {
            u64::try_from(*rows).map_err(|_| Failure::invalid("splits must not be negative"))
        };
        return given.iter().map(number).collect();
    }
    let rows = context.input(0)?.sizes().first().copied().unwrap_or(0) as u64;
    let members = members(set)?.len() as u64;
    match rows % members.max(1) {
        0 => Ok(vec![rows / members.max(1); members as usize]),
        _ => Err(Failure::invalid(
            "splits not provided, but first dimension of tensor is not an even multiple of the \
             number of workers.",
        )),
    }
}

fn submit_rows(
    call: CollectiveCall,
    context: KernelContext,
    inputs: Result<Vec<TfTensor>, Failure>,
    done: native::NativeCallback,
) {
    let kinds = |inputs: &Vec<TfTensor>| -> Vec<(Vec<i64>, c_int)> {
        inputs.iter().map(|input| (input.sizes(), input.dtype())).collect()
    };
    let submitted = inputs.and_then(|inputs| {
        let kinds = kinds(&inputs);
        let allocate = Box::new(move |index: usize, rows: &[u64]| {
            let (mut sizes, dtype) = kinds[index].clone();
            sizes[0] = rows.iter().sum::<u64>() as i64;
            let output = context.allocate(index as c_int, &sizes, dtype);
            output.and_then(TfTensor::lend).map_err(|failure| failure.text)
        });
        TfTensor::lend_rows(inputs, allocate)
    });
    match submitted {
        Ok(submitted) => native::submit(call, submitted, done),
        Err(failure) => done(Err(failure)),
    }
}

/// Join: the result is the last rank to join.
pub(super) extern "C" fn compute_join(_: TfHandle, context: TfHandle, done: TfHandle) {
    let context = KernelContext::new(context);
    done::run(done, |finish| {
        native::join(Box::new(move |answer| {
            let put = answer.and_then(|answer| match answer {
                CallOutcome::Joined(last) => context.put_number(0, last as i32),
                _ => Err(Failure::invalid("a join did not return the last rank")),
            });
            end(context, put, finish);
        }));
    });
}

/// Ops with neither inputs nor results.
pub(super) extern "C" fn compute_command(handle: TfHandle, context: TfHandle, done: TfHandle) {
    let context = KernelContext::new(context);
    done::run(done, |finish| {
        let done = Box::new(move |answer: Result<_, _>| end(context, answer.map(|_| ()), finish));
        native::submit(kernel(handle).call(), SubmittedTensors::nothing(), done);
    });
}

/// All references to tensors have been dropped by now: `finish` may free the context.
fn end(context: KernelContext, outcome: Result<(), Failure>, finish: Finish) {
    if let Err(failure) = outcome {
        context.fail(&failure);
    }
    finish();
}

fn members(set: u32) -> Result<Vec<ronde_control::Rank>, Failure> {
    let engine = process::native_engine().ok_or_else(Failure::not_initialized)?;
    let unknown = || Failure::invalid(&format!("process set {set} does not exist"));
    engine.members(ronde_control::SetId(set)).ok_or_else(unknown)
}

/// Kernels registered through TensorFlow's C interface have no access to variables.
pub(super) extern "C" fn refuse_variables(_: TfHandle, context: TfHandle) {
    let text = "TensorFlow gives this op no access to its variables; broadcast them with \
                hvd.broadcast_variables(variables, root_rank=0), and leave the op out of the graph";
    KernelContext::new(context)
        .fail(&Failure { fault: ErrorClass::Precondition, text: text.into() });
}

pub(super) extern "C" fn compute_size(handle: TfHandle, context: TfHandle) {
    match kernel(handle).set {
        0 => put_place(context, |place| place.size),
        set => put(context, members(set).map(|members| members.len() as i32)),
    }
}

/// One or zero; -1 without a world, and -2 if there is no such process set.
pub(super) extern "C" fn compute_included(handle: TfHandle, context: TfHandle) {
    let set = ronde_control::SetId(kernel(handle).set);
    let included = process::native_engine().map_or(-1, |engine| {
        let me = engine.place().rank;
        engine.members(set).map_or(-2, |members| i32::from(members.contains(&me)))
    });
    put(context, Ok(included));
}

pub(super) extern "C" fn compute_rank(_: TfHandle, context: TfHandle) {
    put_place(context, |place| place.rank.0);
}

pub(super) extern "C" fn compute_local_rank(_: TfHandle, context: TfHandle) {
    put_place(context, |place| place.local_rank);
}

pub(super) extern "C" fn compute_local_size(_: TfHandle, context: TfHandle) {
    put_place(context, |place| place.local_size);
}

fn put_place(context: TfHandle, read: impl FnOnce(&ronde_control::settings::RankInfo) -> u32) {
    // A pending join happens now; in a child of a rank, the rank's place counts.
    let number = match process::native_engine() {
        Some(engine) => Ok(read(engine.place())),
        None => process::place(read).map_err(|_| Failure::not_initialized()),
    };
    put(context, number.map(|number| number as i32));
}

fn put(context: TfHandle, number: Result<i32, Failure>) {
    let context = KernelContext::new(context);
    if let Err(failure) = number.and_then(|number| context.put_number(0, number)) {
        context.fail(&failure);
    }
}
