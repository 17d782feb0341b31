//! `ronde bench --calibrate`: tries algorithms against each other and writes a tuning for this machine.
//!
//! What is tried and what follows from it is decided in `control::bench::calibration`. Here the jobs
//! are run, short ones under one and the other algorithm in turn, and the outcome is told.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::path::Path;

use ronde_control::bench::calibration::{Crossing, EXPERIMENTS, Experiment, Trial, confirmed};
use ronde_control::bench::{Collective, Figures};
use ronde_control::{Tuning, VERSION};

use super::arguments::{Plan, Seating};
use super::job::{self, Failure, Order, Progress};
use super::results::{ENGINE, Machine, Run};
use super::{cannot_write, progress, units, write};
use crate::words::Mistake;

/// How often each side has its turn.
const TURNS: usize = 6;

pub(super) fn run(program: &Path, plan: &Plan, file: &Path) -> Result<(), Failure> {
    let [seats] = plan.seats.as_slice() else {
        let error = "`--calibrate` takes one number of ranks at a time";
        let hint = "give the number that you train with, as in `-np 4`";
        return Err(Failure::Mistake(Mistake::new(error, hint)));
    };
    // Rather now than after a minute.
    let opened = OpenOptions::new().append(true).create(true).open(file);
    opened.map_err(|error| cannot_write(file, &error))?;
    let (mut tuning, mut machine, mut told) = (Tuning::default(), Machine::default(), Vec::new());
    for experiment in EXPERIMENTS {
        let asked = plan.transports.iter().any(|way| way == experiment.transport);
        if !asked || (seats.slots.len() as u32) < experiment.least_ranks {
            continue;
        }
        let (turns, last) = try_out(program, plan, seats, (experiment, tuning))?;
        machine = last.machine;
        let before = tuning.value(&experiment.knob);
        let halves = [0, 1].map(|half| trials(turns.iter().skip(half).step_by(2)));
        let all = trials(turns.iter());
        if let Some(found) = confirmed([&halves[0], &halves[1]], &all, before) {
            tuning = tuning.with(&experiment.knob, found.threshold);
            told.push(words(experiment.knob.name, before, &found));
        }
    }
    write(file, &text(&tuning, &machine, seats.slots.len()))?;
    told.push(format!("Use it: RONDE_TUNING={} horovodrun …", file.display()));
    super::print(&(told.join("\n") + "\n"))
}

/// What one turn gave: the times of all rounds by size, for the one and for the other algorithm.
type Turn = [BTreeMap<u64, Vec<f64>>; 2];

/// Gives both algorithms their turns on every size.
fn try_out(
    program: &Path,
    plan: &Plan,
    seats: &Seating,
    (experiment, tuning): (&Experiment, Tuning),
) -> Result<(Vec<Turn>, Run), Failure> {
    let plan = Plan {
        collectives: vec![Collective::Allreduce],
        sizes: experiment.sizes(),
        // Python between the calls would only add noise.
        systems: vec![ENGINE.into()],
        compare: Vec::new(),
        ..plan.clone()
    };
    let (below, above) = experiment.sides(tuning);
    let (mut turns, mut last) = (Vec::new(), None);
    for turn in 0..TURNS {
        progress(&format!("{}: turn {} of {TURNS}", experiment.knob.name, turn + 1));
        // The first changes from turn to turn, so that a machine that gets busy favours nobody.
        let sides = if turn % 2 == 0 { [(0, below), (1, above)] } else { [(1, above), (0, below)] };
        let mut times = Turn::default();
        for (side, tuning) in sides {
            let tuning = Some(inline(tuning));
            let order =
                Order { program, plan: &plan, seats, transport: experiment.transport, tuning };
            let run = job::run(&order, Progress::Silent)?;
            for row in &run.rows {
                let seconds = row.seconds.get(ENGINE).cloned().unwrap_or_default();
                times[side].insert(row.bytes, seconds);
            }
            last = Some(run);
        }
        turns.push(times);
    }
    let nothing = || Mistake::new("nothing was measured", "run it again with `--verbose`");
    let last = last.ok_or_else(|| Failure::Mistake(nothing()))?;
    Ok((turns, last))
}

/// The times of both algorithms on the sizes that both have measured. The lower decile counts: it is
/// what the machine can do when nobody disturbs.
fn trials<'a>(turns: impl Iterator<Item = &'a Turn>) -> Vec<Trial> {
    let mut pooled = Turn::default();
    for (side, (bytes, rounds)) in turns.flat_map(|turn| {
        turn.iter().enumerate().flat_map(|(side, sizes)| sizes.iter().map(move |size| (side, size)))
    }) {
        pooled[side].entry(*bytes).or_default().extend(rounds);
    }
    let [below, above] = &pooled;
    let quick = |rounds: &[f64]| Figures::of(rounds).map(|figures| figures.p10);
    let trial = |(bytes, rounds): (&u64, &Vec<f64>)| {
        Some(Trial { bytes: *bytes, below: quick(rounds)?, above: quick(above.get(bytes)?)? })
    };
    below.iter().filter_map(trial).collect()
}

/// A tuning as the value of a variable.
fn inline(tuning: Tuning) -> String {
    let values = Tuning::TABLE.iter().map(|knob| format!("{}={}", knob.name, tuning.value(knob)));
    values.collect::<Vec<_>>().join(",")
}

fn words(knob: &str, before: u64, found: &Crossing) -> String {
    match found.threshold == before {
        true => format!("{knob}: {} stays; nothing else is surely faster", units::bytes(before)),
        false => format!(
            "{knob}: {} becomes {}; the sizes tried take {:.1} % less time on average",
            units::bytes(before),
            units::bytes(found.threshold),
            (1.0 - 1.0 / found.gain) * 100.0
        ),
    }
}

fn text(tuning: &Tuning, machine: &Machine, ranks: usize) -> String {
    format!(
        "# Where one algorithm ends and the next begins, found by `ronde bench --calibrate`\n\
         # on {}, {} cores, with {ranks} ranks, by Ronde {VERSION}.\n\
         # Use it with RONDE_TUNING=<this file>.\n{tuning}",
        machine.cpu, machine.cores
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_can_be_read() {
        let tuning = Tuning { one_shot: 12345, ..Tuning::default() };
        let machine = Machine { cpu: "Example CPU".into(), cores: 2, ..Machine::default() };
        let file = text(&tuning, &machine, 4);
        assert!(file.contains("# on Example CPU, 2 cores, with 4 ranks"));
        assert_eq!(Tuning::parse(&file), Ok(tuning));
        assert_eq!(Tuning::parse(&inline(tuning)), Ok(tuning));
    }

    #[test]
    fn a_size_that_one_side_did_not_measure_is_left_out() {
        let turn = |below: f64, above: f64| {
            let both = BTreeMap::from([(1024, vec![below]), (2048, vec![below])]);
            [both, BTreeMap::from([(1024, vec![above])])]
        };
        let turns = [turn(1.0, 4.0), turn(2.0, 4.0)];
        let trials = trials(turns.iter());
        assert_eq!(trials, [Trial { bytes: 1024, below: 1.1, above: 4.0 }]);
    }

    #[test]
    fn what_changed_is_told_with_what_it_gained() {
        let found = Crossing { threshold: 8192, gain: 1.081 };
        let told = words("one_shot", 16384, &found);
        assert_eq!(
            told,
            "one_shot: 16 KiB becomes 8 KiB; the sizes tried take 7.5 % less time on average"
        );
        assert_eq!(
            words("one_shot", 8192, &found),
            "one_shot: 8 KiB stays; nothing else is surely faster"
        );
    }
}
