//! `ronde hub invite`: on the hub's own machine straight into its storage, so that there can be a
//! first admin; elsewhere through the API.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use ronde_control::hub::Moment;
use ronde_control::hub::api::{Invite, Invited, PersonRole};
use ronde_control::hub::invite::InviteLine;
use ronde_hub::storage::NewInvite;
use ronde_hub::{Certificate, HubConfig, Storage, new_token};

use super::{HubPlace, HubProblem, account, block_on, serve, span};

#[derive(Clone, Debug, Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    place: HubPlace,

    /// What they may do: `borrower`, `lender` (also lends machines) or `admin` (also invites people)
    #[arg(long = "as", value_name = "ROLE", default_value = "lender", value_parser = role)]
    role: PersonRole,

    /// How many people the line is for
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    uses: u32,

    /// How long it works, as in `30m`, `12h` or `7d`
    #[arg(long = "for", value_name = "TIME", default_value = "7d", value_parser = span::parse)]
    seconds: u64,
}

pub(super) fn run(arguments: &Arguments) -> Result<String, HubProblem> {
    let folder = arguments.place.folder()?;
    let is_named = arguments.place.folder.is_some() || arguments.place.database.is_some();
    let line = match serve::remembered(&folder) {
        Some(address) if is_named || account::account()?.is_none() => {
            here(arguments, &folder, address)?
        }
        _ => elsewhere(arguments)?,
    };
    Ok(format!("{line}\n"))
}

fn here(arguments: &Arguments, folder: &Path, address: String) -> Result<InviteLine, HubProblem> {
    let config =
        HubConfig { folder: folder.to_owned(), database: arguments.place.database.clone() };
    let certificate = Certificate::in_folder(folder).map_err(serve::explained)?.fingerprint();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let (token, now) = (new_token(), Moment(now.as_secs()));
    let expires = now.after(arguments.seconds);
    let Arguments { role, uses, .. } = *arguments;
    let invite = NewInvite { token, role, uses, expires, made_by: None };
    block_on(async {
        let storage = Storage::open(&config).await.map_err(serve::explained)?;
        storage.add_invite(&invite, now).await.map_err(serve::explained)
    })?;
    Ok(InviteLine { address, certificate, token })
}

fn elsewhere(arguments: &Arguments) -> Result<InviteLine, HubProblem> {
    let hint = "run it on the hub's machine with the hub's `--folder`, or `ronde login` first";
    let account = account::account()?.ok_or_else(|| {
        HubProblem::failed("there is no hub here, and you have not logged in to one", hint)
    })?;
    let Arguments { role, uses, seconds, .. } = *arguments;
    let invited: Invited = block_on(async {
        let mut client = account::connect().await?;
        let invite = Invite { role, uses, seconds };
        client.post("/invites", &invite).await.map_err(account::explained)
    })?;
    let token = invited.token.parse().map_err(|error: String| {
        HubProblem::failed(format!("the hub's token is damaged: {error}"), "try again")
    })?;
    Ok(InviteLine { address: account.address, certificate: account.certificate, token })
}

fn role(text: &str) -> Result<PersonRole, String> {
    text.parse().map_err(|_| "it must be borrower, lender or admin".into())
}
