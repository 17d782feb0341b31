//! Jobs that another launcher runs: `--mpi` and `--jsrun`.

use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use ronde_control::settings::{HostNetwork, NCCL_IB_DISABLE};
use ronde_launch::delegate::{DelegatedJob, LauncherCommand};
use ronde_launch::driver::Span;
use ronde_launch::driver::delegated::{self, Delegated};
use ronde_launch::hosts::{self, Host, Slot};
use ronde_launch::reach::ReachOptions;

use super::{Arguments, EnvVars, environment, first_files, rank_slots, read_function};
use crate::messages::{UserError, both};
use crate::mpi::{self, OtherLauncher};
use crate::settings;

/// Replaces this process with another launcher, which runs the job; returns only if that fails.
pub(super) fn hand_over(arguments: &Arguments, other: OtherLauncher, set: EnvVars) -> UserError {
    let line = checked_slots(arguments, other, &set)
        .and_then(|(_, hosts, slots)| line(arguments, other, (hosts, &slots), base_job(set)));
    line.map_or_else(|error| error, |line| mpi::become_it(&line))
}

/// The command line of the other launcher; `base` has what does not come from the options.
fn line(
    arguments: &Arguments,
    other: OtherLauncher,
    (hosts, slots): (Vec<Host>, &[Slot]),
    base: DelegatedJob,
) -> Result<LauncherCommand, UserError> {
    if arguments.event_log.is_some() {
        return Err(mpi::no_events(other));
    }
    if arguments.screen.is_given() {
        return Err(mpi::no_screen(other));
    }
    let job = DelegatedJob {
        count: slots.len() as u32,
        hosts,
        command: arguments.command.clone(),
        interfaces: arguments.network_interfaces.clone(),
        ssh: arguments.reach.ssh.options(Duration::ZERO),
        output_filename: arguments.output_filename.clone(),
        workdir: arguments.workdir.clone(),
        timestamps: arguments.prefix_output_with_timestamp,
        ..base
    };
    let line = mpi::line(&arguments.mpi.complete(job)?, other, slots)?;
    if arguments.verbose {
        let _ = writeln!(io::stderr(), "{}", line.to_text());
    }
    Ok(line)
}

/// The job of `horovod.run` for another launcher.
pub(super) fn delegated(
    program: &Path,
    arguments: &Arguments,
    other: OtherLauncher,
    set: EnvVars,
) -> Result<Delegated, UserError> {
    let (network, hosts, slots) = checked_slots(arguments, other, &set)?;
    let methods = hosts::methods(&hosts, &slots, &hosts::hostname(), &ReachOptions::default());
    let base = DelegatedJob { passed_on: delegated::PASSED_ON.to_vec(), ..base_job(set) };
    Ok(Delegated {
        line: line(arguments, other, (hosts, &slots), base)?,
        ranks: slots.len(),
        span: Span::of(methods.iter().map(|(_, method)| method)),
        interfaces: arguments.network_interfaces.clone(),
        network,
        program: program.to_owned(),
        function: read_function()?,
    })
}

/// The hosts and the slots of the ranks, after checking the settings.
fn checked_slots(
    arguments: &Arguments,
    other: OtherLauncher,
    set: &EnvVars,
) -> Result<(HostNetwork, Vec<Host>, Vec<Slot>), UserError> {
    let settings = settings::check(set, first_files(arguments));
    let (settings, (hosts, slots)) = both(settings, rank_slots(arguments))?;
    match arguments.gpus_per_rank.or(settings.gpus_per_rank) {
        Some(_) => Err(mpi::no_gpus_per_rank(other)),
        None => Ok((settings.network, hosts, slots)),
    }
}

/// A job with only the environment of the ranks filled in.
fn base_job(set: EnvVars) -> DelegatedJob {
    DelegatedJob {
        tcp: set.iter().any(|(name, _)| name == NCCL_IB_DISABLE.name),
        env: environment(set),
        ..DelegatedJob::default()
    }
}
