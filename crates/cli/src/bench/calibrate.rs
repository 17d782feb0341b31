//! `ronde bench --calibrate`: compares algorithms and writes a tuning for this machine.
//!
//! `control::bench::calibration` decides what to try and what follows from it. This module runs
//! short jobs, alternating between two algorithms, and reports the result.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::path::Path;

use ronde_control::Collective;
use ronde_control::bench::calibration::{Crossing, EXPERIMENTS, Experiment, SizeTrial, confirmed};
use ronde_control::bench::{Benchmark, Figures};
use ronde_control::{Tuning, VERSION};

use super::arguments::{BenchPlan, RankPlacement};
use super::job::{self, BenchFailure, BenchJob, TableProgress};
use super::results::{BenchRun, ENGINE, MachineInfo};
use super::{cannot_write, progress, units, write};
use crate::messages::UserError;

/// Number of turns for each algorithm.
const TURNS: usize = 6;

pub(super) fn run(program: &Path, plan: &BenchPlan, file: &Path) -> Result<(), BenchFailure> {
    let [placements] = plan.placements.as_slice() else {
        let error = "`--calibrate` takes a single number of ranks";
        let hint = "pass the number that you train with, as in `-np 4`";
        return Err(BenchFailure::Unreported(UserError::new(error, hint)));
    };
    // Fail now rather than after a minute of measuring.
    let opened = OpenOptions::new().append(true).create(true).open(file);
    opened.map_err(|error| cannot_write(file, &error))?;
    let (mut tuning, mut machine, mut lines) =
        (Tuning::default(), MachineInfo::default(), Vec::new());
    for experiment in EXPERIMENTS {
        let asked = plan.transports.iter().any(|transport| transport == experiment.transport);
        if !asked || (placements.slots.len() as u32) < experiment.least_ranks {
            continue;
        }
        let (turns, last) = try_out(program, plan, placements, (experiment, tuning))?;
        machine = last.machine;
        let before = tuning.value(&experiment.knob);
        let halves = [0, 1].map(|half| trials(turns.iter().skip(half).step_by(2)));
        let all = trials(turns.iter());
        if let Some(found) = confirmed([&halves[0], &halves[1]], &all, before) {
            tuning = tuning.with(&experiment.knob, found.threshold);
            lines.push(summary(experiment.knob.name, before, &found));
        }
    }
    write(file, &text(&tuning, &machine, placements.slots.len()))?;
    lines.push(format!("To use it: RONDE_TUNING={} horovodrun …", file.display()));
    super::print(&(lines.join("\n") + "\n"))
}

/// Result of one turn: the times of all rounds by size, for each of the two algorithms.
type TurnTimes = [BTreeMap<u64, Vec<f64>>; 2];

/// Gives both algorithms their turns on every size.
fn try_out(
    program: &Path,
    plan: &BenchPlan,
    placements: &RankPlacement,
    (experiment, tuning): (&Experiment, Tuning),
) -> Result<(Vec<TurnTimes>, BenchRun), BenchFailure> {
    let plan = BenchPlan {
        collectives: vec![Benchmark::Collective(Collective::Allreduce)],
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
        // The order alternates, so that a machine that gets busy favors neither side.
        let sides = if turn % 2 == 0 { [(0, below), (1, above)] } else { [(1, above), (0, below)] };
        let mut times = TurnTimes::default();
        for (side, tuning) in sides {
            let tuning = Some(inline(tuning));
            let bench_job = BenchJob {
                program,
                plan: &plan,
                placements,
                transport: experiment.transport,
                tuning,
            };
            let run = job::run(&bench_job, TableProgress::Silent)?;
            for row in &run.rows {
                let seconds = row.seconds.get(ENGINE).cloned().unwrap_or_default();
                times[side].insert(row.bytes, seconds);
            }
            last = Some(run);
        }
        turns.push(times);
    }
    let nothing = || UserError::new("nothing was measured", "run it again with `--verbose`");
    let last = last.ok_or_else(|| BenchFailure::Unreported(nothing()))?;
    Ok((turns, last))
}

/// The times of both algorithms for the sizes that both have measured. We use the lowest decile: it
/// is what the machine can do undisturbed.
fn trials<'a>(turns: impl Iterator<Item = &'a TurnTimes>) -> Vec<SizeTrial> {
    let mut pooled = TurnTimes::default();
    for (side, (bytes, rounds)) in turns.flat_map(|turn| {
        turn.iter().enumerate().flat_map(|(side, sizes)| sizes.iter().map(move |size| (side, size)))
    }) {
        pooled[side].entry(*bytes).or_default().extend(rounds);
    }
    let [below, above] = &pooled;
    let quick = |rounds: &[f64]| Figures::of(rounds).map(|figures| figures.p10);
    let trial = |(bytes, rounds): (&u64, &Vec<f64>)| {
        Some(SizeTrial { bytes: *bytes, below: quick(rounds)?, above: quick(above.get(bytes)?)? })
    };
    below.iter().filter_map(trial).collect()
}

/// A tuning as the value of an environment variable.
fn inline(tuning: Tuning) -> String {
    let values = Tuning::TABLE.iter().map(|knob| format!("{}={}", knob.name, tuning.value(knob)));
    values.collect::<Vec<_>>().join(",")
}

fn summary(knob: &str, before: u64, found: &Crossing) -> String {
    match found.threshold == before {
        true => {
            format!("{knob}: keeping {}; nothing else is reliably faster", units::bytes(before))
        }
        false => format!(
            "{knob}: {} becomes {}; the measured sizes take {:.1} % less time on average",
            units::bytes(before),
            units::bytes(found.threshold),
            (1.0 - 1.0 / found.gain) * 100.0
        ),
    }
}

fn text(tuning: &Tuning, machine: &MachineInfo, ranks: usize) -> String {
    format!(
        "# Thresholds between algorithms, measured by `ronde bench --calibrate`\n\
         # on {}, {} cores, with {ranks} ranks, using Ronde {VERSION}.\n\
         # Use it with RONDE_TUNING=<this file>.\n{tuning}",
        machine.cpu, machine.cores
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_tuning_can_be_parsed() {
        let tuning = Tuning { one_shot: 12345, ..Tuning::default() };
        let machine = MachineInfo { cpu: "Example CPU".into(), cores: 2, ..MachineInfo::default() };
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
        assert_eq!(trials, [SizeTrial { bytes: 1024, below: 1.1, above: 4.0 }]);
    }

    #[test]
    fn a_change_is_reported_with_its_gain() {
        let found = Crossing { threshold: 8192, gain: 1.081 };
        let changed = summary("one_shot", 16384, &found);
        assert_eq!(
            changed,
            "one_shot: 16 KiB becomes 8 KiB; the measured sizes take 7.5 % less time on average"
        );
        assert_eq!(
            summary("one_shot", 8192, &found),
            "one_shot: keeping 8 KiB; nothing else is reliably faster"
        );
    }
}
