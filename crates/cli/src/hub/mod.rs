//! `ronde hub` and `ronde login`: runs a hub, and talks to the one that this user has logged in to.

mod account;
mod invite;
mod people;
mod serve;
mod span;

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::horovodrun::{print_stdout, report_error};
use crate::messages::{USAGE, UserError};
pub(crate) use account::{LoginArguments, run_login};

/// Run a hub, where people lend and borrow machines, or ask the one you have logged in to
#[derive(Clone, Debug, Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: HubCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum HubCommand {
    /// Run a hub until it is stopped
    Serve(serve::Arguments),
    /// Print a line with which somebody can log in
    Invite(invite::Arguments),
    /// List the people of the hub
    People(people::Arguments),
    /// Shut somebody out, from now on
    Revoke(people::RevokeArguments),
}

/// Where a hub keeps what it knows, for the commands that work on the hub's own machine.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct HubPlace {
    /// The hub's folder [default: ~/.local/share/ronde/hub]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,

    /// A PostgreSQL database instead of SQLite in the folder, as in `postgres://hub@db/ronde`; the
    /// password comes from PGPASSWORD or ~/.pgpass
    #[arg(long, value_name = "URL", value_parser = database)]
    database: Option<String>,
}

/// Runs the command and returns its exit code.
pub(crate) fn run(arguments: &Arguments) -> u8 {
    let result = match &arguments.command {
        HubCommand::Serve(arguments) => serve::run(arguments).map(|()| String::new()),
        HubCommand::Invite(arguments) => invite::run(arguments),
        HubCommand::People(arguments) => people::list(arguments),
        HubCommand::Revoke(arguments) => people::revoke(arguments),
    };
    match result {
        Ok(text) => print_stdout(&text),
        Err(HubProblem::Usage(error)) => report_error(&error, USAGE),
        Err(HubProblem::Failed(error)) => report_error(&error, 1),
    }
}

/// Why a command failed, by its exit code.
pub(super) enum HubProblem {
    Usage(UserError),
    Failed(UserError),
}

impl HubProblem {
    fn failed(error: impl std::fmt::Display, hint: &str) -> HubProblem {
        HubProblem::Failed(UserError::new(error, hint))
    }
}

impl HubPlace {
    fn folder(&self) -> Result<PathBuf, HubProblem> {
        let named = self.folder.clone().or_else(usual_folder);
        named.ok_or_else(|| {
            let hint = "name one with `--folder DIR`, or set HOME";
            HubProblem::Usage(UserError::new("there is no folder for the hub", hint))
        })
    }
}

fn usual_folder() -> Option<PathBuf> {
    let absolute =
        |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let data = absolute("XDG_DATA_HOME").or_else(|| Some(absolute("HOME")?.join(".local/share")));
    data.map(|data| data.join("ronde").join("hub"))
}

/// Everybody on a machine can read command lines, so a password must not be in one.
fn database(text: &str) -> Result<String, String> {
    let rest = text.strip_prefix("postgres://").or(text.strip_prefix("postgresql://"));
    let Some(rest) = rest else { return Err("it must begin with `postgres://`".into()) };
    let login = rest.split('/').next().and_then(|host| host.rsplit_once('@'));
    match login.is_some_and(|(login, _)| login.contains(':')) || rest.contains("password=") {
        true => Err("leave the password out, and set PGPASSWORD or write it to ~/.pgpass".into()),
        false => Ok(text.to_owned()),
    }
}

/// Runs something that waits for the network.
fn block_on<T>(work: impl Future<Output = Result<T, HubProblem>>) -> Result<T, HubProblem> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let hint = "check the limits of this machine (`ulimit -a`)";
    runtime.map_err(|error| HubProblem::failed(error, hint))?.block_on(work)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_on_the_command_line_is_refused() {
        for text in ["postgres://hub:secret@db/ronde", "postgres://hub@db/x?password=secret"] {
            let error = database(text).unwrap_err();
            assert!(error.contains("PGPASSWORD") && !error.contains("secret"), "{error}");
        }
        assert!(database("mysql://db").is_err());
        assert!(database("postgres:///ronde?host=/run/postgresql").is_ok());
    }
}
