//! Runs cases on every rank of a world, and compares what comes with what should.

use std::sync::Arc;

use ronde_control::SetId;
use ronde_control::negotiate::Request;
use ronde_core::engine::{Next, Outcome, Ticket};
use ronde_testkit::{Dice, Member, Tensor};

use crate::case::{Case, Form, Into};
use crate::worlds::{Setup, make};

/// Runs that many random cases in a world.
pub(crate) fn run(setup: &Setup, count: usize, seed: u64) {
    let sets = setup.sets();
    let sizes: Vec<usize> = sets.iter().map(Vec::len).collect();
    let case = |number| Case::any(number, &sizes, &mut Dice::part(seed, number));
    let cases: Vec<Case> = (0..count).map(case).collect();
    setup.world.run(|member| {
        let ids = make(&sets, member);
        for (number, case) in cases.iter().enumerate() {
            let ranks = &sets[case.set];
            let Some(me) = ranks.iter().position(|rank| *rank as usize == member.rank()) else {
                continue;
            };
            let dice = Dice::part(seed, member.rank() * count + number);
            let trial = Trial { case, ranks, me, set: ids[case.set], dice };
            if let Err(error) = trial.run(member) {
                let rank = member.rank();
                panic!("{}, rank {rank}, seed {seed}, case {number}: {case}: {error}", setup.name);
            }
        }
        // Nobody leaves while others are still busy in a set of theirs.
        member.barrier("end").unwrap();
    });
}

/// One case on one rank.
struct Trial<'a> {
    case: &'a Case,
    ranks: &'a [u32],
    me: usize,
    set: SetId,
    /// What this rank chooses by itself.
    dice: Dice,
}

impl Trial<'_> {
    fn run(mut self, member: &Member) -> Result<(), String> {
        let count = self.case.tensors.len();
        let sources: Vec<Tensor> = (0..count).map(|tensor| self.source(tensor)).collect();
        let others: Vec<Tensor> = match self.case.into {
            Into::Other => sources.iter().map(blank).collect(),
            Into::Source => Vec::new(),
        };
        let targets = if others.is_empty() { &sources } else { &others };
        let results = match self.case.form {
            Form::Group => {
                let ticket = self.submit(member, 0..count, &sources, targets)?;
                self.results(member, &ticket, 0..count, targets)?
            }
            Form::Crowd => {
                let mut order: Vec<usize> = (0..count).collect();
                self.dice.shuffle(&mut order);
                let mut tickets: Vec<(usize, Arc<Ticket>)> = Vec::new();
                for at in order {
                    tickets.push((at, self.submit(member, at..at + 1, &sources, targets)?));
                }
                let mut results = vec![Vec::new(); count];
                for (at, ticket) in tickets {
                    results[at] = self.results(member, &ticket, at..at + 1, targets)?.remove(0);
                }
                results
            }
        };
        for (tensor, result) in results.iter().enumerate() {
            compare(tensor, result, &self.case.output(tensor, self.me))?;
            if self.case.into == Into::Other {
                let (_, before) = self.case.input(tensor, self.me);
                compare(tensor, &sources[tensor].bytes(), &before)
                    .map_err(|error| format!("the input has changed: {error}"))?;
            }
        }
        Ok(())
    }

    fn source(&self, tensor: usize) -> Tensor {
        let (shape, bytes) = self.case.input(tensor, self.me);
        Tensor::new(self.case.dtype, &shape, &bytes)
    }

    fn submit(
        &mut self,
        member: &Member,
        which: std::ops::Range<usize>,
        sources: &[Tensor],
        targets: &[Tensor],
    ) -> Result<Arc<Ticket>, String> {
        let request = Request {
            // Names come again with other shapes, as they do when a program has several phases.
            name: format!("t{}", which.start % 7 + 100 * (which.start / 7)),
            set: self.set,
            kind: self.case.kind(which.start, self.me, self.ranks),
            dtype: self.case.dtype,
            shapes: sources[which.clone()].iter().map(|tensor| tensor.shape().to_vec()).collect(),
        };
        let regions = |row: &[Tensor]| row[which.clone()].iter().map(Tensor::region).collect();
        let next = self.dice.pick(&[Next::GoesOn, Next::Waits]);
        let ticket = member.engine.submit(request, regions(sources), regions(targets), next);
        ticket.map_err(|error| error.to_string())
    }

    fn results(
        &self,
        member: &Member,
        ticket: &Ticket,
        which: std::ops::Range<usize>,
        targets: &[Tensor],
    ) -> Result<Vec<Vec<u8>>, String> {
        match member.wait(ticket).map_err(|error| error.to_string())? {
            Outcome::Made(made) => Ok(made.iter().map(|made| made.buffer.bytes()).collect()),
            Outcome::Done => Ok(targets[which].iter().map(Tensor::bytes).collect()),
            other => Err(format!("another outcome: {other:?}")),
        }
    }
}

/// Memory like that of a tensor, with something else in it.
fn blank(tensor: &Tensor) -> Tensor {
    let length = tensor.region().length();
    Tensor::new(tensor.dtype(), tensor.shape(), &vec![0xA5; length])
}

fn compare(tensor: usize, seen: &[u8], right: &[u8]) -> Result<(), String> {
    if seen == right {
        return Ok(());
    }
    let at =
        seen.iter().zip(right).position(|(a, b)| a != b).unwrap_or(seen.len().min(right.len()));
    let near = |row: &[u8]| row[at.min(row.len())..(at + 16).min(row.len())].to_vec();
    let (lengths, near) = ((seen.len(), right.len()), (near(seen), near(right)));
    Err(format!(
        "tensor {tensor} differs from byte {at} on; (seen, right): lengths {lengths:?}, there {near:?}"
    ))
}
