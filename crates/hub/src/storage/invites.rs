//! Invitations. Only hashes of their tokens are kept, so that a copy of the database lets nobody in.

use ring::digest::{SHA256, digest};
use ronde_control::hub::api::PersonRole;
use ronde_control::hub::invite::Token;
use ronde_control::hub::{Moment, PersonId};
use ronde_control::to_hex;
use sqlx::Row;

use super::Storage;
use crate::HubError;

/// An invitation to be kept.
#[derive(Clone, Debug)]
pub struct NewInvite {
    /// What lets people in.
    pub token: Token,
    /// What they may then do.
    pub role: PersonRole,
    /// How many people it is for.
    pub uses: u32,
    /// When it ends.
    pub expires: Moment,
    /// Who made it; `None` for whoever runs the hub.
    pub made_by: Option<PersonId>,
}

/// Why nobody gets in; all reasons look the same from outside.
const REFUSED: &str = "this invitation is not valid: it was used, has expired, or never was one";

impl Storage {
    /// Keeps an invitation.
    pub async fn add_invite(&self, invite: &NewInvite, now: Moment) -> Result<(), HubError> {
        let added = sqlx::query(
            "INSERT INTO invites (token, role, uses, expires, made_by, made)
             VALUES ($1, $2, $3, $4, $5, $6)",
        );
        added
            .bind(hash(&invite.token))
            .bind(invite.role.to_string())
            .bind(i64::from(invite.uses))
            .bind(invite.expires.0 as i64)
            .bind(invite.made_by.map(|person| person.0 as i64))
            .bind(now.0 as i64)
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    /// Lets somebody in who has an invitation, under the key that they have proved to hold. Whoever
    /// was there already keeps the role if it is the higher one; who was shut out stays out.
    pub async fn join(
        &self,
        token: &Token,
        key: &str,
        name: &str,
        now: Moment,
    ) -> Result<PersonId, HubError> {
        let mut transaction = self.pool.begin().await?;
        let used = sqlx::query(
            "UPDATE invites SET uses = uses - 1
             WHERE token = $1 AND uses > 0 AND expires > $2 RETURNING role",
        );
        let used = used.bind(hash(token)).bind(now.0 as i64);
        let row =
            used.fetch_optional(&mut *transaction).await?.ok_or(HubError::Refused(REFUSED))?;
        let role: PersonRole = role(&row)?;
        let before = sqlx::query("SELECT role, revoked FROM people WHERE key = $1").bind(key);
        let role = match before.fetch_optional(&mut *transaction).await? {
            None => role,
            Some(row) => match row.try_get::<Option<i64>, _>("revoked")? {
                None => role.max(super::invites::role(&row)?),
                Some(_) => return Err(HubError::Refused(REFUSED)),
            },
        };
        let joined = sqlx::query(
            "INSERT INTO people (key, name, role, joined) VALUES ($1, $2, $3, $4)
             ON CONFLICT (key) DO UPDATE SET name = excluded.name, role = excluded.role
             RETURNING person",
        );
        let joined = joined.bind(key).bind(name).bind(role.to_string()).bind(now.0 as i64);
        let person: i64 = joined.fetch_one(&mut *transaction).await?.try_get("person")?;
        transaction.commit().await?;
        Ok(PersonId(person as u64))
    }
}

pub(super) fn role(row: &sqlx::any::AnyRow) -> Result<PersonRole, HubError> {
    let text: String = row.try_get("role")?;
    text.parse().map_err(|_| HubError::Invalid(format!("the database has a role `{text}`")))
}

fn hash(token: &Token) -> String {
    to_hex(digest(&SHA256, &token.0).as_ref())
}
