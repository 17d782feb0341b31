//! `horovodrun --mpi` and `--jsrun`: the options, and handing the job over to that launcher.

use std::ffi::OsString;
use std::io::{self, ErrorKind, Write};
use std::process::Command;

use ronde_launch::delegate::mpirun::{self, Flavor};
use ronde_launch::delegate::{DelegatedJob, LauncherCommand, jsrun};
use ronde_launch::hosts::Slot;
use ronde_launch::reach::HostProblem;

use crate::messages::{UserError, print_stderr};

const INSTALL: &str = "install Open MPI (`apt-get install openmpi-bin`) or MPICH (`pip install mpich`), \
                       or leave `--mpi` out: Ronde needs no MPI";

/// Which launcher starts the ranks, and its arguments. The last of `--gloo`, `--mpi` and `--jsrun`
/// wins.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct MpiOptions {
    #[arg(hide = true, overrides_with_all = ["mpi", "jsrun"])]
    gloo: bool,
    #[arg(overrides_with_all = ["gloo", "jsrun"])]
    mpi: bool,
    #[arg(overrides_with_all = ["gloo", "mpi"])]
    jsrun: bool,
    mpi_args: Option<String>,
    binding_args: Option<String>,
}

/// The launcher that runs the job instead of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OtherLauncher {
    Mpirun,
    Jsrun,
}

impl OtherLauncher {
    /// The option that selects it, and its name.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            OtherLauncher::Mpirun => ("--mpi", "mpirun"),
            OtherLauncher::Jsrun => ("--jsrun", "jsrun"),
        }
    }
}

/// Refuses `--agents`: another launcher starts the ranks itself.
pub(crate) fn no_agents(other: OtherLauncher) -> UserError {
    let (flag, name) = other.words();
    UserError::new(
        format!("`{flag}` cannot be combined with `--agents`: `{name}` starts the ranks"),
        "leave one of the two out",
    )
}

/// Refuses `--event-log`: another launcher reports no events.
pub(crate) fn no_events(other: OtherLauncher) -> UserError {
    let (flag, name) = other.words();
    UserError::new(
        format!("`{flag}` cannot be combined with `--event-log`: `{name}` reports no events"),
        format!(
            "drop one of the two; without `{flag}` the job runs the same way and logs its events"
        ),
    )
}

/// Refuses `--gpus-per-rank`: another launcher makes the environment of the ranks.
pub(crate) fn no_gpus_per_rank(other: OtherLauncher) -> UserError {
    let (flag, name) = other.words();
    UserError::new(
        format!("`{flag}` cannot be combined with `--gpus-per-rank`: `{name}` starts the ranks"),
        "drop one of the two; the script can choose its GPU with `hvd.local_rank()`",
    )
}

/// Refuses terminal options: another launcher shows the output of the ranks itself.
pub(crate) fn no_screen(other: OtherLauncher) -> UserError {
    let (flag, name) = other.words();
    UserError::new(
        format!("`{flag}` cannot be combined with `--tty` or `--ranks`: `{name}` shows the output"),
        format!("drop one of the two; `{name} --help` lists its own options about output"),
    )
}

/// Refuses elastic jobs: another launcher cannot start ranks one by one.
pub(crate) fn not_elastic(other: OtherLauncher) -> UserError {
    let (flag, name) = other.words();
    UserError::new(
        format!(
            "`{flag}` cannot be combined with `--min-np` or `--host-discovery-script`: `{name}` \
             cannot replace ranks"
        ),
        format!("leave `{flag}` out: elastic training needs no MPI"),
    )
}

impl MpiOptions {
    /// The launcher that starts the ranks instead of ours, if any.
    pub(crate) fn other(&self) -> Option<OtherLauncher> {
        match (self.mpi, self.jsrun) {
            (true, _) => Some(OtherLauncher::Mpirun),
            (_, true) => Some(OtherLauncher::Jsrun),
            _ => None,
        }
    }

    /// Adds the arguments that the user gave for the launcher.
    pub(crate) fn complete(&self, job: DelegatedJob) -> Result<DelegatedJob, UserError> {
        let binding = words("--binding-args", self.binding_args.as_deref())?;
        Ok(DelegatedJob {
            extra: words("--mpi-args", self.mpi_args.as_deref())?.unwrap_or_default(),
            binding,
            ..job
        })
    }

    /// Warns about options that only have an effect with another launcher.
    pub(crate) fn warn(&self) {
        for (flag, given) in [("mpi", &self.mpi_args), ("binding", &self.binding_args)] {
            if given.is_some() {
                let text = format!("warning: `--{flag}-args` has no effect without `--mpi`");
                print_stderr(&text);
            }
        }
    }
}

fn words(flag: &str, text: Option<&str>) -> Result<Option<Vec<OsString>>, UserError> {
    let Some(text) = text else { return Ok(None) };
    match shlex::split(text) {
        Some(words) => Ok(Some(words.into_iter().map(Into::into).collect())),
        None => Err(UserError::new(format!("`{flag}` has an unclosed quote"), "close it")),
    }
}

/// The command line of the other launcher; `slots` are those of the ranks.
pub(crate) fn line(
    job: &DelegatedJob,
    other: OtherLauncher,
    slots: &[Slot],
) -> Result<LauncherCommand, UserError> {
    match other {
        OtherLauncher::Mpirun => mpirun::line(job, flavor()?)
            .map_err(|HostProblem { reason, hint }| UserError::new(reason, hint)),
        OtherLauncher::Jsrun => {
            let nodes = jsrun::allocation(|name| std::env::var(name).ok()).unwrap_or_default();
            let path = resources(&jsrun::resources(slots, &nodes)).map_err(|error| {
                UserError::new(
                    format!("cannot write the resource file for `jsrun`: {error}"),
                    "set TMPDIR to a writable directory",
                )
            })?;
            Ok(jsrun::line(job, &path))
        }
    }
}

/// Replaces this process with the other launcher; returns only if that fails.
pub(crate) fn become_it(line: &LauncherCommand) -> UserError {
    let error = line.exec();
    let program = line.program.to_string_lossy();
    let hint = match error.kind() {
        ErrorKind::NotFound if program == "jsrun" => "start the job inside an LSF allocation",
        ErrorKind::NotFound => INSTALL,
        _ => "run again with `--verbose`, then run the command that it prints by hand",
    };
    UserError::new(format!("cannot start `{program}`: {error}"), hint)
}

/// Asks the `mpirun` on the PATH which MPI it belongs to.
fn flavor() -> Result<Flavor, UserError> {
    let output = Command::new("mpirun").arg("--version").output().map_err(|error| {
        UserError::new(format!("`--mpi` needs `mpirun`, which cannot be started: {error}"), INSTALL)
    })?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    Flavor::of(&text).ok_or_else(|| {
        let first = text.lines().find(|line| !line.trim().is_empty()).unwrap_or("nothing");
        let error = "horovod does not find an installed MPI. The `mpirun` on the PATH is not a \
                     known one; its `--version` prints";
        UserError::new(format!("{error} `{}`", first.trim()), INSTALL)
    })
}

/// Writes the resource file. It is kept, because `jsrun` reads it after replacing this process.
fn resources(text: &str) -> io::Result<std::path::PathBuf> {
    let mut file = tempfile::Builder::new().prefix("ronde-jsrun-").tempfile()?;
    file.write_all(text.as_bytes())?;
    let (_, path) = file.keep().map_err(|error| error.error)?;
    Ok(path)
}
