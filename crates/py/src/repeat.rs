//! The engine without Python between the calls: `repeat_allreduce` is for benchmarks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use ronde_control::negotiate::{CollectiveKind, Request};
use ronde_control::{DeviceKind, ReduceOp, SetId};
use ronde_core::Error;
use ronde_core::engine::{AfterSubmit, Engine, Tensors, Ticket};

use super::errors;
use super::process::{SIGNAL_CHECK, engine, park_at_exit};
use super::tensor::{PyTensor, Repeated};

/// Sums a tensor over all ranks, in place, `times` times, and returns the seconds that each took.
#[pyfunction]
pub(crate) fn repeat_allreduce(
    py: Python<'_>,
    tensor: &Bound<'_, PyAny>,
    name: String,
    times: usize,
) -> PyResult<Vec<f64>> {
    let engine = engine()?;
    let tensor = PyTensor::of_target(tensor)?;
    let kind = CollectiveKind::Allreduce { op: ReduceOp::Sum, prescale: 1.0, postscale: 1.0 };
    let (dtype, shapes) = (tensor.dtype(), vec![tensor.shape().to_vec()]);
    let request = Request { name, set: SetId::WORLD, kind, dtype, shapes, device: DeviceKind::Cpu };
    let mut tensor = Repeated::new(tensor);
    let mut seconds = Vec::with_capacity(times);
    while seconds.len() < times {
        let next = Instant::now() + SIGNAL_CHECK;
        let (call, again, so_far) = ((&*engine, &request), &mut tensor, &mut seconds);
        let late = py.detach(move || {
            let late = some(call, again, (so_far, times), next);
            park_at_exit();
            late
        });
        let late = late.map_err(|error| errors::raise(py, &error))?;
        if let Some((ticket, start)) = late {
            match finish(py, &engine, &ticket, start) {
                Ok(time) => seconds.push(time.as_secs_f64()),
                Err(problem) => {
                    tensor.leave();
                    return Err(problem);
                }
            }
        }
        py.check_signals()?;
    }
    Ok(seconds)
}

/// Continues until there are enough times or signals must be checked; returns the call that has not
/// completed by then, if any.
fn some(
    (engine, request): (&Engine, &Request),
    tensor: &mut Repeated,
    (seconds, enough): (&mut Vec<f64>, usize),
    until: Instant,
) -> Result<Option<(Arc<Ticket>, Instant)>, Error> {
    while seconds.len() < enough {
        let start = Instant::now();
        if start >= until {
            break;
        }
        let operand = tensor.lend().expect("the previous call has ended");
        let tensors = Tensors::Given(vec![operand]);
        let ticket = engine.submit(request.clone(), tensors, AfterSubmit::Waits)?;
        engine.wait(&ticket, until);
        match ticket.take() {
            Some(outcome) => drop(outcome?),
            None => return Ok(Some((ticket, start))),
        }
        seconds.push(start.elapsed().as_secs_f64());
    }
    Ok(None)
}

/// Waits for a long call, checking signals meanwhile.
fn finish(py: Python<'_>, engine: &Engine, ticket: &Ticket, start: Instant) -> PyResult<Duration> {
    loop {
        py.detach(|| {
            engine.wait(ticket, Instant::now() + SIGNAL_CHECK);
            park_at_exit();
        });
        if let Some(outcome) = ticket.take() {
            outcome.map_err(|error| errors::raise(py, &error))?;
            return Ok(start.elapsed());
        }
        py.check_signals()?;
    }
}
