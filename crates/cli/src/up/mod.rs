//! `ronde up` and `ronde down`: prepares hosts for jobs over ssh, and removes what that made.
//!
//! `control::provision` decides what to do on each host and `launch::provision` does it; this
//! module prints what was found and done.

mod arguments;
mod screen;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use arguments::{Arguments, DownArguments};
use arguments::{ChosenHosts, Files};
use ronde_control::printable;
use ronde_launch::private;
use ronde_launch::provision::cluster_record::ClusterRecord;
use ronde_launch::provision::{self, OnStep};
use ronde_launch::reach::{AgentAccess, HostProblem};
use screen::RunsIn;

use crate::doctor;
use crate::horovodrun::{about_launch, print_stdout, report_error};
use crate::messages::{USAGE, UserError, print_stderr};

/// How long standing agents that have just been started may take to answer.
const AGENTS_LIMIT: Duration = Duration::from_secs(20);

/// Runs `ronde up` and returns its exit code; `program` is this executable.
pub(crate) fn run(program: &Path, arguments: &Arguments) -> u8 {
    let prepared = Files::here().and_then(|files| {
        let record = provision::record(&files.record).map_err(about)?;
        let chosen = arguments.hosts.chosen(&record)?;
        Ok((files, record, chosen))
    });
    match prepared {
        Err(error) => report_error(&error, USAGE),
        Ok((_, record, chosen)) if arguments.status => show_status(arguments, &record, &chosen),
        Ok((files, record, chosen)) => {
            let outcome = prepare(program, arguments, (&files, record), &chosen);
            outcome.unwrap_or_else(|error| report_error(&error, 1))
        }
    }
}

fn prepare(
    program: &Path,
    arguments: &Arguments,
    (files, mut record): (&Files, ClusterRecord),
    chosen: &ChosenHosts,
) -> Result<u8, UserError> {
    let folder = tempfile::tempdir().map_err(|error| {
        let hint = "free some space, or set TMPDIR to a folder that can be written to";
        UserError::new(format!("cannot create a temporary folder: {error}"), hint)
    })?;
    let port = arguments.port(&record);
    let (image, mounts) = arguments.image(&record).unzip();
    let runs = if image.is_some() { RunsIn::Container } else { RunsIn::Environment };
    let plan = arguments.plan((program, folder.path()), chosen.shells.clone(), &record, files);
    let progress: OnStep =
        Arc::new(|host: &str, step: &str| print_stderr(&format!("[{host}] {step}")));
    let report = provision::up(&plan, &progress).map_err(|error| about_launch(&error))?;
    let report = report.map_err(about)?;
    if report.has_begun {
        record.add(chosen.recorded.clone());
        record.port = port;
        (record.image, record.mounts) = (image, mounts.unwrap_or_default());
        record.lock = report.lock.clone();
        if let Some(folders) = &report.made_key {
            (record.made_key, record.made_folders) = (true, folders.clone());
        }
        record.write(&files.record).map_err(|error| cannot_record(&files.record, &error))?;
    }
    let code = print_stdout(&screen::outcome(&report));
    if !report.is_well() {
        if report.made_login {
            print_stderr(&screen::made_login(&files.ssh_folder));
        }
        return Ok(1);
    }
    let key = private::read_key(&files.key)
        .map_err(|why| UserError::new(format!("the agents' key {why}"), "run `ronde up` again"))?;
    let access = AgentAccess { port, key, time_limit: AGENTS_LIMIT };
    Ok(code.max(check((program, files), chosen, access, runs)))
}

/// Ends with what `ronde doctor` says about the hosts, reached through their agents, and with the
/// command to type.
fn check(
    (program, files): (&Path, &Files),
    chosen: &ChosenHosts,
    access: AgentAccess,
    runs: RunsIn,
) -> u8 {
    let port = access.port;
    // On this machine, ranks and agents of such a job run in the new environment.
    let installed = files.environment.join("bin/ronde");
    let is_installed = runs == RunsIn::Environment && installed.exists();
    let program = if is_installed { installed.as_path() } else { program };
    let (report, text) = match doctor::over_agents(program, &chosen.hosts, access) {
        Ok(checked) => checked,
        Err(error) => return report_error(&error, 1),
    };
    let command = screen::command(chosen, &report, (port, runs));
    let ready = format!("\n{text}\nstart a job with:\n  {command}\n");
    let code = print_stdout(if report.is_well() { &ready } else { &text });
    code.max(u8::from(!report.is_well()))
}

fn show_status(arguments: &Arguments, record: &ClusterRecord, chosen: &ChosenHosts) -> u8 {
    let (port, image) = (arguments.port(record), arguments.image(record));
    let image = image.map(|(image, _)| image);
    match provision::status(&chosen.shells, port, image.as_deref()) {
        Err(error) => report_error(&about_launch(&error), 1),
        Ok(states) => {
            let is_well = states.iter().flatten().filter(|facts| facts.agent.is_some()).count()
                == states.len();
            print_stdout(&screen::status(&chosen.hosts, &states)).max(u8::from(!is_well))
        }
    }
}

/// Runs `ronde down` and returns its exit code.
pub(crate) fn run_down(arguments: &DownArguments) -> u8 {
    let prepared = Files::here().and_then(|files| {
        let record = provision::record(&files.record).map_err(about)?;
        let chosen = arguments.hosts.chosen(&record)?;
        Ok((files, record, chosen))
    });
    let result = prepared.map_err(|error| (error, USAGE)).and_then(|(files, record, chosen)| {
        remove(&files, record, &chosen).map_err(|error| (error, 1))
    });
    result.unwrap_or_else(|(error, code)| report_error(&error, code))
}

fn remove(files: &Files, mut record: ClusterRecord, chosen: &ChosenHosts) -> Result<u8, UserError> {
    let removed = provision::down(&chosen.shells).map_err(|error| about_launch(&error))?;
    let is_gone = |name: &str| {
        let place = chosen.hosts.iter().position(|host| host.name == name);
        place.is_some_and(|place| removed[place].is_ok())
    };
    record.hosts.retain(|host| !is_gone(&host.name));
    let mut text = screen::removed(&chosen.hosts, &removed);
    record.write(&files.record).map_err(|error| cannot_record(&files.record, &error))?;
    if record.hosts.is_empty() {
        if record.made_key {
            fs::remove_file(&files.key).map_err(|error| cannot_record(&files.key, &error))?;
            text += &format!("this machine: removed {}\n", files.key.display());
        }
        for folder in &record.made_folders {
            // Whatever else is in it stays.
            let _ = fs::remove_dir(folder);
        }
    }
    let is_well = removed.iter().all(Result::is_ok);
    Ok(print_stdout(&text).max(u8::from(!is_well)))
}

/// A problem of this machine.
fn about(HostProblem { reason, hint }: HostProblem) -> UserError {
    UserError::new(printable(&reason), hint)
}

fn cannot_record(path: &Path, error: &std::io::Error) -> UserError {
    UserError::new(
        format!("`{}` cannot be written: {error}", path.display()),
        "free some space, or check the permissions of that folder",
    )
}
