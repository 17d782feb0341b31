//! Why a hub cannot do what it was asked.

use std::io;

/// What a caller can do about it decides the variant.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// The hub's folder cannot be used.
    #[error("cannot {action}")]
    Folder {
        /// What failed, as in `create /srv/hub`.
        action: String,
        /// What the system said.
        source: io::Error,
    },
    /// The certificate in the folder cannot be used.
    #[error("the hub's certificate cannot be {action}: {reason}")]
    Certificate {
        /// What failed.
        action: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The database does not answer, or refuses.
    #[error("the database failed: {0}")]
    Database(#[from] sqlx::Error),
    /// The database was written by a newer hub.
    #[error(
        "the database has schema {found}, but this version knows only {known}; update Ronde on this \
         machine"
    )]
    Newer {
        /// The schema of the database.
        found: i64,
        /// The newest schema that this version knows.
        known: i64,
    },
    /// The request is refused; the text is for whoever made it.
    #[error("{0}")]
    Refused(&'static str),
    /// What the caller sent makes no sense.
    #[error("{0}")]
    Invalid(String),
}
