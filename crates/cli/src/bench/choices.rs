//! `ronde bench --choices`: prints the table that chooses between algorithms.

use ronde_control::Tuning;
use ronde_control::choice::{CHOICES, ChoiceRow, RankCount};

use super::job::BenchFailure;
use super::{print, units};
use crate::settings::tuning_here;
use crate::tables::{plain, terminal_width};

pub(super) fn run() -> Result<(), BenchFailure> {
    let tuning = tuning_here().map_err(BenchFailure::Unreported)?;
    let heading =
        ["collective", "ranks", "connected", "bytes", "threshold", "algorithm", "because"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    rows.extend(CHOICES.iter().map(|row| cells(row, &tuning)));
    print(&format!("{}\n{}", plain(&rows, &[], terminal_width()), notes(&tuning)))
}

fn cells(row: &ChoiceRow, tuning: &Tuning) -> Vec<String> {
    let ranks = match row.ranks {
        RankCount::Any => "any",
        RankCount::One => "1",
        RankCount::Several => "3 or more",
    };
    let (bytes, threshold) = match &row.upto {
        Some(knob) => (upto(tuning.value(knob)), knob.name),
        None => ("any".to_owned(), ""),
    };
    let (collective, connectivity) = (row.collective.to_string(), row.connectivity.to_string());
    let (algorithm, why) = (row.algorithm.to_string(), row.why.to_owned());
    vec![collective, ranks.into(), connectivity, bytes, threshold.into(), algorithm, why]
}

/// What decides beside the table.
fn notes(tuning: &Tuning) -> String {
    let (express, one_carrier) = (upto(tuning.express), upto(tuning.one_carrier));
    format!(
        "The first row that fits applies. In shared memory, a collective on its own of {express} \
         (express) is not\nnegotiated; on several hosts, one rank of each host exchanges {one_carrier} \
         (one_carrier) with the others.\n"
    )
}

fn upto(bytes: u64) -> String {
    match bytes {
        u64::MAX => "any".to_owned(),
        bytes => format!("up to {}", units::bytes(bytes)),
    }
}
