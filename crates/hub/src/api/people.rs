//! People: login, invitations, who is there, and shutting somebody out.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use ring::rand::{SecureRandom, SystemRandom};
use ronde_control::hub::PersonId;
use ronde_control::hub::api::{Invite, Invited, Login, Person, PersonRole, name};
use ronde_control::hub::invite::Token;

use super::caller::{CallerKey, LoggedIn};
use super::now;
use super::refusal::RefusedRequest;
use crate::storage::{NewInvite, Storage};

/// The most people that one invitation lets in, and the longest time for which it does.
const MOST_USES: u32 = 1000;
const LONGEST: u64 = 90 * 86_400;

pub(super) async fn login(
    State(storage): State<Storage>,
    CallerKey { key, .. }: CallerKey,
    Json(login): Json<Login>,
) -> Result<Json<Person>, RefusedRequest> {
    let name = name(&login.name).map_err(invalid)?;
    let token: Token = login.token.parse().map_err(|error| invalid(format!("token: {error}")))?;
    storage.join(&token, &key, &name, now()).await?;
    let gone =
        || RefusedRequest::new(StatusCode::UNAUTHORIZED, "you were shut out in the meantime");
    storage.caller(&key).await?.map(Json).ok_or_else(gone)
}

pub(super) async fn me(LoggedIn(person): LoggedIn) -> Json<Person> {
    Json(person)
}

pub(super) async fn invite(
    State(storage): State<Storage>,
    caller: LoggedIn,
    Json(invite): Json<Invite>,
) -> Result<Json<Invited>, RefusedRequest> {
    caller.must_be(PersonRole::Admin)?;
    if !(1..=MOST_USES).contains(&invite.uses) {
        return Err(invalid(format!("uses must be 1 to {MOST_USES}")));
    }
    if !(1..=LONGEST).contains(&invite.seconds) {
        return Err(invalid(format!("seconds must be 1 to {LONGEST}")));
    }
    let (token, now) = (new_token(), now());
    let expires = now.after(invite.seconds);
    let Invite { role, uses, .. } = invite;
    let made_by = Some(caller.0.person);
    storage.add_invite(&NewInvite { token, role, uses, expires, made_by }, now).await?;
    Ok(Json(Invited { token: token.to_string(), expires }))
}

pub(super) async fn list(
    State(storage): State<Storage>,
    _: LoggedIn,
) -> Result<Json<Vec<Person>>, RefusedRequest> {
    Ok(Json(storage.people().await?))
}

pub(super) async fn revoke(
    State(storage): State<Storage>,
    caller: LoggedIn,
    Path(person): Path<u64>,
) -> Result<StatusCode, RefusedRequest> {
    caller.must_be(PersonRole::Admin)?;
    match storage.revoke(PersonId(person), now()).await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => {
            let error = format!("there is nobody with the number {person} to shut out");
            Err(RefusedRequest::new(StatusCode::NOT_FOUND, error)
                .hint("`ronde hub people` lists all"))
        }
    }
}

/// A token that nobody can guess.
pub fn new_token() -> Token {
    let mut bytes = [0; 16];
    SystemRandom::new().fill(&mut bytes).expect("the system has random bytes");
    Token(bytes)
}

fn invalid(error: String) -> RefusedRequest {
    RefusedRequest::new(StatusCode::BAD_REQUEST, error)
}
