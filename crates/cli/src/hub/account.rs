//! `ronde login`, and the account that it leaves for later commands.

use std::io::{self, IsTerminal};
use std::path::PathBuf;

use clap::Args;
use ronde_control::hub::api::{Login, Person};
use ronde_control::hub::invite::InviteLine;
use ronde_launch::hub::{HubAccount, HubCallError, HubClient, Identity};

use super::{HubProblem, block_on};
use crate::horovodrun::{print_stdout, report_error};
use crate::key::config_folder;
use crate::messages::{USAGE, UserError, print_stderr};

/// Log in to a hub with an invitation
///
/// The invitation is the line that `ronde hub invite` printed. It works as often as it says, so
/// treat it as a secret until then; without it, `ronde login` reads it from standard input.
#[derive(Clone, Debug, Args)]
pub(crate) struct LoginArguments {
    /// The invitation
    #[arg(value_name = "LINE")]
    line: Option<String>,

    /// What others see of you [default: your user name]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
}

/// Runs the command and returns its exit code.
pub(crate) fn run_login(arguments: &LoginArguments) -> u8 {
    match login(arguments) {
        Ok(text) => print_stdout(&text),
        Err(HubProblem::Usage(error)) => report_error(&error, USAGE),
        Err(HubProblem::Failed(error)) => report_error(&error, 1),
    }
}

fn login(arguments: &LoginArguments) -> Result<String, HubProblem> {
    let text = match &arguments.line {
        Some(line) => line.clone(),
        None => read_line()?,
    };
    let line: InviteLine = text.parse().map_err(|error: String| {
        let hint = "ask whoever runs the hub to send it again";
        HubProblem::Usage(UserError::new(error, hint))
    })?;
    let folder = folder()?;
    let identity = identity(&folder)?;
    let name = arguments.name.clone().unwrap_or_else(user_name);
    block_on(async {
        let client = HubClient::connect(&line.address, line.certificate, &identity).await;
        let login = Login { token: line.token.to_string(), name };
        let person: Person =
            client.map_err(explained)?.post("/login", &login).await.map_err(explained)?;
        let account = HubAccount { address: line.address.clone(), certificate: line.certificate };
        account.save(&folder).map_err(unusable)?;
        let Person { name, role, .. } = person;
        Ok(format!("logged in to {} as {name}, {role}\n", line.address))
    })
}

fn read_line() -> Result<String, HubProblem> {
    if io::stdin().is_terminal() {
        print_stderr("Paste the line that `ronde hub invite` printed:");
    }
    let mut text = String::new();
    let read = io::stdin().read_line(&mut text);
    read.map_err(|error| HubProblem::failed(error, "pass the line as an argument"))?;
    Ok(text)
}

/// A connection to the hub that this user has logged in to.
pub(super) async fn connect() -> Result<HubClient, HubProblem> {
    let folder = folder()?;
    let account = HubAccount::in_folder(&folder).map_err(unusable)?.ok_or_else(|| {
        HubProblem::failed("you have not logged in to a hub", "`ronde login` with an invitation")
    })?;
    let identity = identity(&folder)?;
    HubClient::connect(&account.address, account.certificate, &identity).await.map_err(explained)
}

/// Whether this user has logged in to a hub, and where that is.
pub(super) fn account() -> Result<Option<HubAccount>, HubProblem> {
    HubAccount::in_folder(&folder()?).map_err(unusable)
}

fn identity(folder: &std::path::Path) -> Result<Identity, HubProblem> {
    Identity::in_folder(folder).map_err(unusable)
}

fn folder() -> Result<PathBuf, HubProblem> {
    config_folder().ok_or_else(|| {
        HubProblem::failed("there is no folder for your key", "set HOME or XDG_CONFIG_HOME")
    })
}

fn unusable(error: String) -> HubProblem {
    HubProblem::failed(
        error,
        "your key and your account are in ~/.config/ronde; only you may read them",
    )
}

fn user_name() -> String {
    let variable = |name: &str| std::env::var(name).ok().filter(|text| !text.trim().is_empty());
    variable("USER").or_else(|| variable("LOGNAME")).unwrap_or_else(|| "somebody".into())
}

/// The error of a call, with what to do.
pub(super) fn explained(error: HubCallError) -> HubProblem {
    let hint = match &error {
        HubCallError::Refused(refusal) => refusal.hint.clone(),
        HubCallError::Unreachable { .. } => {
            Some("check that the hub runs and that nothing blocks its port".into())
        }
        HubCallError::OtherHub { .. } => Some(
            "do not trust it; if the hub was set up anew, its owner sends you a new invitation"
                .into(),
        ),
        HubCallError::Malformed { .. } => Some("compare `ronde --version` on both machines".into()),
    };
    let hint = hint.unwrap_or_else(|| "ask whoever runs the hub".into());
    HubProblem::Failed(UserError::new(error, hint))
}
