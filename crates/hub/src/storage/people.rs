//! Who may use the hub.

use ronde_control::hub::api::Person;
use ronde_control::hub::{Moment, PersonId};
use sqlx::Row;
use sqlx::any::AnyRow;

use super::{Storage, invites};
use crate::HubError;

const COLUMNS: &str = "SELECT person, key, name, role, joined, revoked FROM people";

impl Storage {
    /// Whoever has this key, unless they were shut out.
    pub async fn caller(&self, key: &str) -> Result<Option<Person>, HubError> {
        let found = format!("{COLUMNS} WHERE key = $1 AND revoked IS NULL");
        let row = sqlx::query(&found).bind(key).fetch_optional(&self.pool).await?;
        row.as_ref().map(person).transpose()
    }

    /// Everybody, in the order in which they came.
    pub async fn people(&self) -> Result<Vec<Person>, HubError> {
        let all = format!("{COLUMNS} ORDER BY person");
        sqlx::query(&all).fetch_all(&self.pool).await?.iter().map(person).collect()
    }

    /// Shuts somebody out, from now on; false if there is nobody with that number, or they were
    /// shut out before.
    pub async fn revoke(&self, person: PersonId, now: Moment) -> Result<bool, HubError> {
        let revoked =
            sqlx::query("UPDATE people SET revoked = $2 WHERE person = $1 AND revoked IS NULL");
        let revoked = revoked.bind(person.0 as i64).bind(now.0 as i64);
        Ok(revoked.execute(&self.pool).await?.rows_affected() > 0)
    }
}

fn person(row: &AnyRow) -> Result<Person, HubError> {
    Ok(Person {
        person: PersonId(row.try_get::<i64, _>("person")? as u64),
        name: row.try_get("name")?,
        role: invites::role(row)?,
        key: row.try_get("key")?,
        joined: Moment(row.try_get::<i64, _>("joined")? as u64),
        revoked: row.try_get::<Option<i64>, _>("revoked")?.map(|at| Moment(at as u64)),
    })
}
