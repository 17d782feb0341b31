//! The API: which path does what, and for whom. Requests and answers are in `control::hub::api`.
//!
//! Two routes need no caller: the health check, and the login, which needs an invitation. All
//! others ask [`LoggedIn`], which says no unless the connection's signature is that of somebody who
//! has not been shut out; that is looked up for every request, so revoking takes effect at once.

mod caller;
mod people;
mod refusal;

use std::time::{SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::routing::{delete, get, post};
use ronde_control::hub::Moment;
use ronde_control::hub::api::PREFIX;

pub use people::new_token;

use crate::Storage;

/// The longest request, in bytes.
const LONGEST: usize = 64 << 10;

/// All routes.
pub(crate) fn router(storage: Storage) -> Router {
    let routes = Router::new()
        .route("/health", get(|| async { "ok\n" }))
        .route("/login", post(people::login))
        .route("/me", get(people::me))
        .route("/invites", post(people::invite))
        .route("/people", get(people::list))
        .route("/people/{person}", delete(people::revoke));
    Router::new()
        .nest(PREFIX, routes)
        .fallback(refusal::not_found)
        .layer(DefaultBodyLimit::max(LONGEST))
        .with_state(storage)
}

/// The time by the hub's clock, the only one that counts.
fn now() -> Moment {
    Moment(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs())
}
