//! What kernels compute: each takes what TensorFlow gives it, submits it, and is done when the engine
//! is. Its function returns at once, so that hundreds can be in flight with two threads.

use std::ffi::c_int;

use super::api::Handle;
use super::context::{Context, Tensor};
use super::done::{self, Finish};
use super::node::kernel;
use crate::native::{self, Answer, Call, Failure, Fault, Handed, Wish};
use crate::process;

/// Reductions and broadcasts, of one tensor or of several: every result is like its input.
pub(super) extern "C" fn compute_alike(handle: Handle, context: Handle, done: Handle) {
    let context = Context::new(context);
    done::run(done, |finish| {
        let started = (0..context.inputs()).map(|index| context.like_input(index)).collect();
        match started {
            Ok(pairs) => submit_alike(kernel(handle).call(), context, pairs, finish),
            Err(failure) => end(context, Err(failure), finish),
        }
    });
}

/// A result and its input, unless that is the same.
type Pair = (Option<Tensor>, Tensor);

fn submit_alike(call: Call, context: Context, pairs: Vec<Pair>, finish: Finish) {
    match Tensor::lend_pairs(pairs) {
        Ok(handed) => native::submit(
            call,
            handed,
            Box::new(move |answer| end(context, answer.map(|_| ()), finish)),
        ),
        Err(failure) => end(context, Err(failure), finish),
    }
}

/// Gatherings and scatterings, of one tensor or of several: the first dimension of each result is
/// known when all ranks have spoken.
pub(super) extern "C" fn compute_rows(handle: Handle, context: Handle, done: Handle) {
    let context = Context::new(context);
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

/// An exchange: the second input says how many rows each rank gets, the second result how many came.
pub(super) extern "C" fn compute_alltoall(handle: Handle, context: Handle, done: Handle) {
    let context = Context::new(context);
    done::run(done, |finish| {
        let kernel = kernel(handle);
        let splits = splits(context, kernel.set);
        let tensor = context.input(0).map(|tensor| vec![tensor]);
        let (inputs, splits) = match (tensor, splits) {
            (Ok(tensor), Ok(splits)) => (Ok(tensor), splits),
            (Err(failure), _) | (_, Err(failure)) => (Err(failure), Vec::new()),
        };
        let call = Call { wish: Wish::Alltoall { splits }, ..kernel.call() };
        submit_rows(
            call,
            context,
            inputs,
            Box::new(move |answer| {
                let put = answer.and_then(|answer| match answer {
                    Answer::Placed(rows) => {
                        let rows: Vec<i32> =
                            rows.concat().iter().map(|rows| *rows as i32).collect();
                        context.put_numbers(1, &[rows.len() as i64], &rows)
                    }
                    _ => Err(Failure::invalid("an exchange did not say what came of it")),
                });
                end(context, put, finish);
            }),
        );
    });
}

/// The rows for each member of the set; without any the rows are dealt out evenly.
fn splits(context: Context, set: u32) -> Result<Vec<u64>, Failure> {
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
    call: Call,
    context: Context,
    inputs: Result<Vec<Tensor>, Failure>,
    done: native::Done,
) {
    let kinds = |inputs: &Vec<Tensor>| -> Vec<(Vec<i64>, c_int)> {
        inputs.iter().map(|input| (input.sizes(), input.dtype())).collect()
    };
    let handed = inputs.and_then(|inputs| {
        let kinds = kinds(&inputs);
        let room = Box::new(move |index: usize, rows: &[u64]| {
            let (mut sizes, dtype) = kinds[index].clone();
            sizes[0] = rows.iter().sum::<u64>() as i64;
            let output = context.allocate(index as c_int, &sizes, dtype);
            output.and_then(Tensor::lend).map_err(|failure| failure.text)
        });
        Tensor::lend_rows(inputs, room)
    });
    match handed {
        Ok(handed) => native::submit(call, handed, done),
        Err(failure) => done(Err(failure)),
    }
}

/// Joining: the result is the last one to.
pub(super) extern "C" fn compute_join(_: Handle, context: Handle, done: Handle) {
    let context = Context::new(context);
    done::run(done, |finish| {
        native::join(Box::new(move |answer| {
            let put = answer.and_then(|answer| match answer {
                Answer::Joined(last) => context.put_number(0, last as i32),
                _ => Err(Failure::invalid("joining did not say who was last")),
            });
            end(context, put, finish);
        }));
    });
}

/// What has neither inputs nor results.
pub(super) extern "C" fn compute_command(handle: Handle, context: Handle, done: Handle) {
    let context = Context::new(context);
    done::run(done, |finish| {
        let done = Box::new(move |answer: Result<_, _>| end(context, answer.map(|_| ()), finish));
        native::submit(kernel(handle).call(), Handed::nothing(), done);
    });
}

/// The references to tensors are gone by now, with their memory: `finish` may free the context.
fn end(context: Context, outcome: Result<(), Failure>, finish: Finish) {
    if let Err(failure) = outcome {
        context.fail(&failure);
    }
    finish();
}

fn members(set: u32) -> Result<Vec<ronde_control::Rank>, Failure> {
    let engine = process::arrived().ok_or_else(Failure::not_initialized)?;
    let unknown = || Failure::invalid(&format!("process set {set} does not exist"));
    engine.members(ronde_control::SetId(set)).ok_or_else(unknown)
}

/// Variables are beyond the reach of kernels like ours: TensorFlow's C interface does not have them.
pub(super) extern "C" fn refuse_variables(_: Handle, context: Handle) {
    let text = "TensorFlow gives this op no access to its variables; broadcast them with \
                hvd.broadcast_variables(variables, root_rank=0), and leave the op out of the graph";
    Context::new(context).fail(&Failure { fault: Fault::Precondition, text: text.into() });
}

pub(super) extern "C" fn compute_size(handle: Handle, context: Handle) {
    match kernel(handle).set {
        0 => put_place(context, |place| place.size),
        set => put(context, members(set).map(|members| members.len() as i32)),
    }
}

/// One or zero; without a world -1, and -2 where there is no such set.
pub(super) extern "C" fn compute_included(handle: Handle, context: Handle) {
    let set = ronde_control::SetId(kernel(handle).set);
    let included = process::arrived().map_or(-1, |engine| {
        let me = engine.place().rank;
        engine.members(set).map_or(-2, |members| i32::from(members.contains(&me)))
    });
    put(context, Ok(included));
}

pub(super) extern "C" fn compute_rank(_: Handle, context: Handle) {
    put_place(context, |place| place.rank.0);
}

pub(super) extern "C" fn compute_local_rank(_: Handle, context: Handle) {
    put_place(context, |place| place.local_rank);
}

pub(super) extern "C" fn compute_local_size(_: Handle, context: Handle) {
    put_place(context, |place| place.local_size);
}

fn put_place(context: Handle, read: impl FnOnce(&ronde_control::settings::Place) -> u32) {
    // One that is late joins now; in a child of a rank it is the rank's place that counts.
    let number = match process::arrived() {
        Some(engine) => Ok(read(engine.place())),
        None => process::place(read).map_err(|_| Failure::not_initialized()),
    };
    put(context, number.map(|number| number as i32));
}

fn put(context: Handle, number: Result<i32, Failure>) {
    let context = Context::new(context);
    if let Err(failure) = number.and_then(|number| context.put_number(0, number)) {
        context.fail(&failure);
    }
}
