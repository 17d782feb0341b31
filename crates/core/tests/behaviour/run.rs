//! Runs cases on every rank of a world, and compares the results with the expected ones.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use ronde_control::negotiate::Request;
use ronde_control::{DeviceKind, SetId};
use ronde_core::Error;
use ronde_core::engine::{AfterSubmit, Outcome, Ticket};
use ronde_testkit::{Tensor, TestRank, TestRng};

use crate::case::{Case, Form, Into};
use crate::worlds::{Setup, make};

/// No call takes longer than this.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// Runs the random cases of these numbers in a world, one after another.
pub(crate) fn run(setup: &Setup, numbers: Range<usize>, seed: u64) {
    let sets = setup.sets();
    let sizes: Vec<usize> = sets.iter().map(Vec::len).collect();
    let case = |number| Case::any(number, &sizes, &mut TestRng::part(seed, number));
    let cases: Vec<(usize, Case)> = numbers.map(|number| (number, case(number))).collect();
    setup.world.run(|member| {
        let ids = make(&sets, member);
        for (number, case) in &cases {
            let rng = TestRng::part(seed ^ member.rank() as u64, *number);
            let circle = Circle { set: ids[case.set], ranks: &sets[case.set] };
            if let Some(trial) = Trial::of(case, &circle, member, rng) {
                let outcome = trial.begin("").and_then(Flight::end);
                let place = format!("{}, rank {}", setup.name, member.rank());
                outcome.unwrap_or_else(|error| {
                    panic!("{place}, seed {seed}, case {number}: {case}: {error}")
                });
            }
        }
        // No rank leaves while others are still busy in one of their sets.
        member.barrier("end").expect("all ranks reach the end");
    });
}

/// A process set.
pub(crate) struct Circle<'a> {
    pub(crate) set: SetId,
    pub(crate) ranks: &'a [u32],
}

/// One case on one rank.
pub(crate) struct Trial<'a> {
    case: &'a Case,
    circle: &'a Circle<'a>,
    me: usize,
    member: &'a TestRank,
    /// The source of this rank's own choices.
    rng: TestRng,
}

/// A case whose tensors are in flight.
pub(crate) struct Flight<'a> {
    trial: Trial<'a>,
    sources: Vec<Tensor>,
    /// The targets of the results, if they differ from the sources.
    others: Vec<Tensor>,
    pending: Vec<(Range<usize>, Pending)>,
}

impl<'a> Trial<'a> {
    /// The case on this rank, if it is a member of the set.
    pub(crate) fn of(
        case: &'a Case,
        circle: &'a Circle<'a>,
        member: &'a TestRank,
        rng: TestRng,
    ) -> Option<Trial<'a>> {
        let me = circle.ranks.iter().position(|rank| *rank as usize == member.rank())?;
        Some(Trial { case, circle, me, member, rng })
    }

    /// Submits all tensors; their names start with `name`.
    pub(crate) fn begin(mut self, name: &str) -> Result<Flight<'a>, String> {
        let count = self.case.tensors.len();
        let source = |tensor| {
            let (shape, bytes) = self.case.input(tensor, self.me);
            Tensor::new(self.case.dtype, &shape, &bytes)
        };
        let sources: Vec<Tensor> = (0..count).map(source).collect();
        let others: Vec<Tensor> = match self.case.into {
            Into::Other => sources.iter().map(blank).collect(),
            Into::Source => Vec::new(),
        };
        let targets = if others.is_empty() { &sources } else { &others };
        let mut parts: Vec<Range<usize>> = match self.case.form {
            Form::Group => std::iter::once(0..count).collect(),
            Form::Crowd => (0..count).map(|at| at..at + 1).collect(),
        };
        self.rng.shuffle(&mut parts);
        let mut pending = Vec::new();
        for part in parts {
            let submitted = self.submit(name, part.clone(), &sources, targets)?;
            pending.push((part, submitted));
        }
        Ok(Flight { trial: self, sources, others, pending })
    }

    fn submit(
        &mut self,
        name: &str,
        part: Range<usize>,
        sources: &[Tensor],
        targets: &[Tensor],
    ) -> Result<Pending, String> {
        let request = Request {
            // Names are reused with other shapes, as in a program with several phases.
            name: format!("{name}t{}", part.start),
            set: self.circle.set,
            kind: self.case.kind(part.start, self.me, self.circle.ranks),
            dtype: self.case.dtype,
            shapes: sources[part.clone()].iter().map(|tensor| tensor.shape().to_vec()).collect(),
            device: DeviceKind::Cpu,
        };
        let pairs = sources[part.clone()].iter().zip(&targets[part.clone()]);
        let (engine, tensors) = (&self.member.engine, Tensor::submission(&request.kind, pairs));
        let Some(next) =
            self.rng.pick(&[Some(AfterSubmit::GoesOn), Some(AfterSubmit::Waits), None])
        else {
            let (sender, outcome) = channel();
            // Nothing receives any more once a trial has failed.
            let done = Box::new(move |outcome| sender.send(outcome).unwrap_or_default());
            engine.submit_then(request, tensors, done);
            return Ok(Pending::Callback(outcome));
        };
        let ticket = engine.submit(request, tensors, next);
        ticket.map(Pending::Ticket).map_err(|error| error.to_string())
    }
}

/// A submission, by how its outcome is received.
pub(crate) enum Pending {
    Ticket(Arc<Ticket>),
    Callback(Receiver<Result<Outcome, Error>>),
}

impl Pending {
    fn wait(&self, member: &TestRank) -> Result<Outcome, String> {
        let outcome = match self {
            Pending::Ticket(ticket) => member.wait(ticket),
            Pending::Callback(outcome) => {
                outcome.recv_timeout(TIME_LIMIT).map_err(|_| "a call that never ended")?
            }
        };
        outcome.map_err(|error| error.to_string())
    }
}

impl Flight<'_> {
    /// Waits for all tensors and compares.
    pub(crate) fn end(self) -> Result<(), String> {
        let Flight { trial, sources, others, pending } = &self;
        let targets = if others.is_empty() { sources } else { others };
        for (part, submitted) in pending {
            let results: Vec<Vec<u8>> = match submitted.wait(trial.member)? {
                Outcome::Made(made) => {
                    made.iter().map(|made| made.buffer.bytes().to_vec()).collect()
                }
                Outcome::Done => targets[part.clone()].iter().map(Tensor::bytes).collect(),
                other => return Err(format!("unexpected outcome: {other:?}")),
            };
            for (tensor, result) in part.clone().zip(&results) {
                compare(tensor, result, &trial.case.output(tensor, trial.me))?;
            }
        }
        if trial.case.into == Into::Other {
            for (tensor, source) in sources.iter().enumerate() {
                let (_, before) = trial.case.input(tensor, trial.me);
                compare(tensor, &source.bytes(), &before)
                    .map_err(|error| format!("the input has changed: {error}"))?;
            }
        }
        Ok(())
    }
}

/// Memory like that of a tensor, with other content.
fn blank(tensor: &Tensor) -> Tensor {
    Tensor::new(tensor.dtype(), tensor.shape(), &vec![0xA5; tensor.bytes().len()])
}

fn compare(tensor: usize, seen: &[u8], expected: &[u8]) -> Result<(), String> {
    if seen == expected {
        return Ok(());
    }
    let at = seen
        .iter()
        .zip(expected)
        .position(|(a, b)| a != b)
        .unwrap_or(seen.len().min(expected.len()));
    let near = |row: &[u8]| row[at.min(row.len())..(at + 16).min(row.len())].to_vec();
    let (lengths, near) = ((seen.len(), expected.len()), (near(seen), near(expected)));
    Err(format!(
        "tensor {tensor} differs from byte {at} on; (seen, expected): lengths {lengths:?}, bytes {near:?}"
    ))
}
