//! `horovodrun --mpi` and `--jsrun`: the flags, and handing the job over to that launcher.

use std::ffi::OsString;
use std::io::{self, ErrorKind, Write};
use std::process::Command;

use ronde_launch::delegate::mpirun::{self, Flavour};
use ronde_launch::delegate::{DelegatedJob, LauncherCommand, jsrun};
use ronde_launch::hosts::Slot;
use ronde_launch::reach::HostProblem;

use crate::messages::{UserError, say};

const INSTALL: &str = "install Open MPI (`apt-get install openmpi-bin`) or MPICH (`pip install mpich`), \
                       or leave `--mpi` out: Ronde needs no MPI";

/// Who starts the ranks, and what it is told. Of `--gloo`, `--mpi` and `--jsrun` the last one counts.
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

/// Whom the job is handed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OtherLauncher {
    Mpirun,
    Jsrun,
}

impl OtherLauncher {
    /// Its option and its name.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            OtherLauncher::Mpirun => ("--mpi", "mpirun"),
            OtherLauncher::Jsrun => ("--jsrun", "jsrun"),
        }
    }
}

/// Another launcher starts the ranks itself.
pub(crate) fn no_agents(other: OtherLauncher) -> UserError {
    let (flag, _) = other.words();
    UserError::new(
        format!("`{flag}` cannot be combined with `--agents`: it starts the ranks itself"),
        "leave one of the two out",
    )
}

/// Another launcher does not say what happens.
pub(crate) fn no_events(other: OtherLauncher) -> UserError {
    let (flag, name) = other.words();
    UserError::new(
        format!("`{flag}` cannot be combined with `--event-log`: `{name}` reports no events"),
        format!(
            "drop one of the two; without `{flag}` the job runs the same way and logs its events"
        ),
    )
}

/// Another launcher shows what its ranks write by itself.
pub(crate) fn no_screen(other: OtherLauncher) -> UserError {
    let (flag, name) = other.words();
    UserError::new(
        format!("`{flag}` cannot be combined with `--tty` or `--ranks`: `{name}` shows the output"),
        format!("drop one of the two; `{name} --help` lists its own options about output"),
    )
}

/// Another launcher cannot start ranks one by one.
pub(crate) fn not_elastic(other: OtherLauncher) -> UserError {
    let (flag, name) = other.words();
    UserError::new(
        format!(
            "`{flag}` does not go with `--min-np` or `--host-discovery-script`: `{name}` cannot \
             replace ranks"
        ),
        format!("leave `{flag}` out: elastic training needs no MPI"),
    )
}

impl MpiOptions {
    /// Who starts the ranks, if not we.
    pub(crate) fn other(&self) -> Option<OtherLauncher> {
        match (self.mpi, self.jsrun) {
            (true, _) => Some(OtherLauncher::Mpirun),
            (_, true) => Some(OtherLauncher::Jsrun),
            _ => None,
        }
    }

    /// The same order with the arguments that were given for the launcher as they are.
    pub(crate) fn complete(&self, order: DelegatedJob) -> Result<DelegatedJob, UserError> {
        let binding = words("--binding-args", self.binding_args.as_deref())?;
        Ok(DelegatedJob {
            extra: words("--mpi-args", self.mpi_args.as_deref())?.unwrap_or_default(),
            binding,
            ..order
        })
    }

    /// What is given for another launcher means nothing to ours.
    pub(crate) fn warn(&self) {
        for (flag, given) in [("mpi", &self.mpi_args), ("binding", &self.binding_args)] {
            if given.is_some() {
                let text = format!("warning: `--{flag}-args` means nothing without `--mpi`");
                say(&text);
            }
        }
    }
}

fn words(flag: &str, text: Option<&str>) -> Result<Option<Vec<OsString>>, UserError> {
    let Some(text) = text else { return Ok(None) };
    match shlex::split(text) {
        Some(words) => Ok(Some(words.into_iter().map(Into::into).collect())),
        None => Err(UserError::new(format!("in `{flag}`: a quote is not closed"), "close it")),
    }
}

/// What to run instead of the job; the slots are those of its ranks.
pub(crate) fn line(
    order: &DelegatedJob,
    other: OtherLauncher,
    slots: &[Slot],
) -> Result<LauncherCommand, UserError> {
    match other {
        OtherLauncher::Mpirun => mpirun::line(order, flavour()?)
            .map_err(|HostProblem { reason, hint }| UserError::new(reason, hint)),
        OtherLauncher::Jsrun => {
            let nodes = jsrun::allocation(|name| std::env::var(name).ok()).unwrap_or_default();
            let path = resources(&jsrun::resources(slots, &nodes)).map_err(|error| {
                UserError::new(
                    format!("the file of resources for `jsrun` cannot be written: {error}"),
                    "set TMPDIR to a directory that can be written",
                )
            })?;
            Ok(jsrun::line(order, &path))
        }
    }
}

/// Becomes the other launcher; comes back with what is wrong if that cannot be.
pub(crate) fn become_it(line: &LauncherCommand) -> UserError {
    let error = line.exec();
    let program = line.program.to_string_lossy();
    let hint = match error.kind() {
        ErrorKind::NotFound if program == "jsrun" => "start the job inside an allocation of LSF",
        ErrorKind::NotFound => INSTALL,
        _ => "run it again with `--verbose`, and the line that it shows by hand",
    };
    UserError::new(format!("`{program}` cannot be started: {error}"), hint)
}

/// Asks the `mpirun` on the PATH whose it is.
fn flavour() -> Result<Flavour, UserError> {
    let output = Command::new("mpirun").arg("--version").output().map_err(|error| {
        UserError::new(format!("`--mpi` needs `mpirun`, which cannot be started: {error}"), INSTALL)
    })?;
    let told = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    Flavour::of(&told).ok_or_else(|| {
        let first = told.lines().find(|line| !line.trim().is_empty()).unwrap_or("nothing");
        let error = "horovod does not find an installed MPI. The `mpirun` on the PATH is not a \
                     known one; its `--version` prints";
        UserError::new(format!("{error} `{}`", first.trim()), INSTALL)
    })
}

/// The file stays: `jsrun` reads it when this process has become it.
fn resources(text: &str) -> io::Result<std::path::PathBuf> {
    let mut file = tempfile::Builder::new().prefix("ronde-jsrun-").tempfile()?;
    file.write_all(text.as_bytes())?;
    let (_, path) = file.keep().map_err(|error| error.error)?;
    Ok(path)
}
