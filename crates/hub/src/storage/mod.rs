//! Everything that a hub remembers, behind one door: SQLite in its folder, or PostgreSQL.
//!
//! Statements are written once, in the SQL that both understand; where they differ, `schema` knows.
//! Whatever must not happen twice is decided by one statement, because several hubs may share a
//! database.

mod invites;
mod people;
mod schema;

use sqlx::AnyPool;
use sqlx::any::{AnyPoolOptions, install_default_drivers};

pub use invites::NewInvite;

use crate::{HubConfig, HubError};

/// Connections to the database. Requests wait for a free one.
const CONNECTIONS: u32 = 8;

/// The door.
#[derive(Clone)]
pub struct Storage {
    pool: AnyPool,
}

impl Storage {
    /// Opens the database, creates it if it does not exist, and brings its schema up to date.
    pub async fn open(config: &HubConfig) -> Result<Storage, HubError> {
        install_default_drivers();
        let (address, dialect) = match &config.database {
            Some(address) => (address.clone(), schema::Dialect::Postgres),
            None => {
                let file = config.folder.join("hub.sqlite");
                (format!("sqlite://{}?mode=rwc", file.display()), schema::Dialect::Sqlite)
            }
        };
        let options = AnyPoolOptions::new().max_connections(CONNECTIONS);
        let options = options.after_connect(move |connection, _| {
            Box::pin(async move { schema::prepare(connection, dialect).await })
        });
        let storage = Storage { pool: options.connect(&address).await? };
        schema::migrate(&storage.pool, dialect).await?;
        Ok(storage)
    }
}

#[cfg(test)]
mod tests;
