//! Ronde's hub: a server to which people's machines belong. It measures and grades them, keeps the
//! books, and hands out clusters.
//!
//! What it decides is in `ronde_control::hub`; here is what carries it out: TLS and who is calling
//! (`server`), the API (`api`), and storage behind one door (`storage`). It never sees a tensor and
//! runs nobody's code. [`serve`] takes its listener and its end from the caller.

#![forbid(unsafe_code)]

mod api;
mod certificate;
mod door;
mod error;
mod server;
pub mod storage;

use std::path::PathBuf;

use tokio::net::TcpListener;

pub use api::new_token;
pub use certificate::Certificate;
pub use error::HubError;
pub use storage::Storage;

/// How a hub is set up.
#[derive(Clone, Debug)]
pub struct HubConfig {
    /// Its folder: the certificate, and the database unless there is another.
    pub folder: PathBuf,
    /// The address of a PostgreSQL database, instead of SQLite in the folder.
    pub database: Option<String>,
}

/// Serves a hub until `shutdown` completes.
pub async fn serve(
    listener: TcpListener,
    config: &HubConfig,
    shutdown: impl Future<Output = ()>,
) -> Result<(), HubError> {
    let certificate = Certificate::in_folder(&config.folder)?;
    let storage = Storage::open(config).await?;
    server::run(listener, &certificate, api::router(storage), shutdown).await
}
