//! The tables, and how a database of an earlier version gets them.

use sqlx::AnyConnection;
use sqlx::{AnyPool, Executor, Row};

use crate::HubError;

/// Which database it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    Sqlite,
    Postgres,
}

impl Dialect {
    /// The type of a column that numbers its rows.
    fn number(self) -> &'static str {
        match self {
            Dialect::Sqlite => "INTEGER PRIMARY KEY AUTOINCREMENT",
            Dialect::Postgres => "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
        }
    }
}

/// The statements of each version, in order; a database runs those that it has not run yet. What
/// stands here has run somewhere and is never changed.
const VERSIONS: &[&[&str]] = &[&[
    "CREATE TABLE people (
        person {number},
        key TEXT NOT NULL UNIQUE,
        name TEXT NOT NULL,
        role TEXT NOT NULL,
        joined BIGINT NOT NULL,
        revoked BIGINT
    )",
    "CREATE TABLE invites (
        token TEXT PRIMARY KEY,
        role TEXT NOT NULL,
        uses BIGINT NOT NULL,
        expires BIGINT NOT NULL,
        made_by BIGINT REFERENCES people (person),
        made BIGINT NOT NULL
    )",
]];

/// Sets up a new connection.
pub(super) async fn prepare(
    connection: &mut AnyConnection,
    dialect: Dialect,
) -> Result<(), sqlx::Error> {
    if dialect == Dialect::Sqlite {
        // Readers do not wait for a writer, and a writer waits for another one.
        for pragma in ["journal_mode = WAL", "synchronous = FULL", "busy_timeout = 10000"] {
            connection.execute(format!("PRAGMA {pragma}").as_str()).await?;
        }
        connection.execute("PRAGMA foreign_keys = ON").await?;
    }
    Ok(())
}

/// Brings the schema up to date. Of several hubs that start at once, one does it.
pub(super) async fn migrate(pool: &AnyPool, dialect: Dialect) -> Result<(), HubError> {
    let mut transaction = match dialect {
        Dialect::Sqlite => pool.begin_with("BEGIN IMMEDIATE").await?,
        Dialect::Postgres => pool.begin().await?,
    };
    if dialect == Dialect::Postgres {
        // Any number will do, as long as all hubs use the same.
        transaction.execute("SELECT pg_advisory_xact_lock(7433)").await?;
    }
    transaction
        .execute("CREATE TABLE IF NOT EXISTS schema_versions (version BIGINT PRIMARY KEY)")
        .await?;
    let newest = "SELECT COALESCE(MAX(version), 0) AS newest FROM schema_versions";
    let found: i64 = transaction.fetch_one(newest).await?.try_get("newest")?;
    let known = VERSIONS.len() as i64;
    if found > known {
        return Err(HubError::Newer { found, known });
    }
    for (statements, version) in VERSIONS.iter().zip(1i64..).skip(found as usize) {
        for statement in *statements {
            let statement = statement.replace("{number}", dialect.number());
            transaction.execute(statement.as_str()).await?;
        }
        let noted = sqlx::query("INSERT INTO schema_versions (version) VALUES ($1)").bind(version);
        noted.execute(&mut *transaction).await?;
    }
    Ok(transaction.commit().await?)
}
