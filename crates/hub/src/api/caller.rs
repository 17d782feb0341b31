//! Who is calling: the signature of this connection, and the person whose key made it.

use axum::extract::{Extension, FromRequestParts};
use axum::http::StatusCode;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use ring::signature::{ED25519, UnparsedPublicKey};
use ronde_control::from_hex;
use ronde_control::hub::api::{Person, PersonRole, SCHEME, signed};

use super::refusal::RefusedRequest;
use crate::Storage;
use crate::server::TlsConnection;

/// Somebody who may use the hub.
pub(super) struct LoggedIn(pub(super) Person);

/// The public key that the other end has proved to hold; nobody may have it yet.
pub(super) struct CallerKey {
    /// In hexadecimal.
    pub(super) key: String,
    /// The connection that it has signed.
    connection: TlsConnection,
}

impl LoggedIn {
    /// Refuses somebody with less than this role.
    pub(super) fn must_be(&self, role: PersonRole) -> Result<(), RefusedRequest> {
        if self.0.role >= role {
            return Ok(());
        }
        let error = format!("this needs the role {role}, and yours is {}", self.0.role);
        Err(RefusedRequest::new(StatusCode::FORBIDDEN, error).hint("ask an admin of the hub"))
    }
}

impl FromRequestParts<Storage> for LoggedIn {
    type Rejection = RefusedRequest;

    async fn from_request_parts(
        parts: &mut Parts,
        storage: &Storage,
    ) -> Result<LoggedIn, RefusedRequest> {
        let CallerKey { key, connection } = CallerKey::from_request_parts(parts, storage).await?;
        let person = storage.caller(&key).await?.ok_or_else(|| {
            RefusedRequest::new(StatusCode::UNAUTHORIZED, "this hub does not know you")
                .hint("`ronde login` with an invitation; it may also be that you were shut out")
        })?;
        connection.place.known();
        Ok(LoggedIn(person))
    }
}

impl FromRequestParts<Storage> for CallerKey {
    type Rejection = RefusedRequest;

    async fn from_request_parts(
        parts: &mut Parts,
        storage: &Storage,
    ) -> Result<CallerKey, RefusedRequest> {
        let unsigned =
            || RefusedRequest::new(StatusCode::UNAUTHORIZED, "the request is not signed");
        let connection = Extension::<TlsConnection>::from_request_parts(parts, storage).await;
        let Extension(connection) = connection.map_err(|_| unsigned())?;
        let header = parts.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let text = header.and_then(|text| text.strip_prefix(SCHEME)).ok_or_else(unsigned)?;
        let (key, signature) = text.split_once('.').ok_or_else(unsigned)?;
        let verified = verified(key, signature, &connection.proof);
        verified.map(|key| CallerKey { key, connection }).ok_or_else(|| {
            RefusedRequest::new(
                StatusCode::UNAUTHORIZED,
                "the signature is not that of this connection",
            )
        })
    }
}

/// The key, in its one spelling, if it has signed this.
fn verified(key: &str, signature: &str, proof: &[u8; 32]) -> Option<String> {
    let public: [u8; 32] = from_hex(key)?;
    let signature: [u8; 64] = from_hex(signature)?;
    UnparsedPublicKey::new(&ED25519, public).verify(&signed(proof), &signature).ok()?;
    Some(key.to_ascii_lowercase())
}
