//! `ronde hub people` and `ronde hub revoke`.

use clap::Args;
use ronde_control::hub::api::Person;

use super::account::{connect, explained};
use super::{HubProblem, block_on};
use crate::tables::{plain, terminal_width};

#[derive(Clone, Debug, Args)]
pub(super) struct Arguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Debug, Args)]
pub(super) struct RevokeArguments {
    /// The number or the name of whoever it is; `ronde hub people` lists both
    #[arg(value_name = "PERSON")]
    person: String,
}

pub(super) fn list(arguments: &Arguments) -> Result<String, HubProblem> {
    let people = people()?;
    if arguments.json {
        let text = serde_json::to_string_pretty(&people).expect("people can be written as JSON");
        return Ok(text + "\n");
    }
    let heading = ["number", "name", "role", "key", ""].map(str::to_owned).to_vec();
    let row = |person: &Person| {
        let out = if person.revoked.is_some() { "shut out" } else { "" };
        let number = person.person.0.to_string();
        vec![number, person.name.clone(), person.role.to_string(), start(&person.key), out.into()]
    };
    let rows: Vec<Vec<String>> = std::iter::once(heading).chain(people.iter().map(row)).collect();
    Ok(plain(&rows, &[true], terminal_width()))
}

pub(super) fn revoke(arguments: &RevokeArguments) -> Result<String, HubProblem> {
    let people = people()?;
    let person = named(&people, &arguments.person)?;
    block_on(async {
        let mut client = connect().await?;
        client.delete(&format!("/people/{}", person.person.0)).await.map_err(explained)
    })?;
    Ok(format!("{} is shut out\n", person.name))
}

fn people() -> Result<Vec<Person>, HubProblem> {
    block_on(async { connect().await?.get("/people").await.map_err(explained) })
}

/// The one person with this number or name.
fn named<'a>(people: &'a [Person], text: &str) -> Result<&'a Person, HubProblem> {
    let number = text.parse().ok();
    let fits = |person: &&Person| Some(person.person.0) == number || person.name == text;
    let found: Vec<&Person> = people.iter().filter(fits).collect();
    match found[..] {
        [person] => Ok(person),
        [] => Err(HubProblem::failed(
            format!("there is nobody called `{text}`"),
            "`ronde hub people` lists all",
        )),
        _ => Err(HubProblem::failed(
            format!("several people are called `{text}`"),
            "use the number that `ronde hub people` shows",
        )),
    }
}

/// Enough of a key to compare by eye.
fn start(key: &str) -> String {
    key.chars().take(16).collect()
}
