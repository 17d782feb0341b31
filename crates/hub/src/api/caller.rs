//! Who is calling: the signature of this connection, and the person whose key made it.

use axum::extract::{Extension, FromRequestParts};
use axum::http::StatusCode;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use ring::signature::{ED25519, UnparsedPublicKey};
use ronde_control::hub::api::{Person, PersonRole, SCHEME, signed};
use ronde_control::{from_hex, to_hex};

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
    if is_weak(&public) {
        return None;
    }
    let signature: [u8; 64] = from_hex(signature)?;
    UnparsedPublicKey::new(&ED25519, public).verify(&signed(proof), &signature).ok()?;
    Some(key.to_ascii_lowercase())
}

/// Points of small order, without their sign: anybody can sign for such a key, without a secret.
/// The last two are other spellings of the first two.
const WEAK: [&str; 7] = [
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0100000000000000000000000000000000000000000000000000000000000000",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
];

fn is_weak(public: &[u8; 32]) -> bool {
    let mut unsigned = *public;
    unsigned[31] &= 0x7f;
    WEAK.contains(&&*to_hex(&unsigned))
}

#[cfg(test)]
mod tests {
    use ring::signature::{Ed25519KeyPair, KeyPair};

    use super::*;

    #[test]
    fn a_key_for_which_anybody_can_sign_is_refused() {
        for sign in [0, 0x80] {
            for weak in WEAK {
                let mut key: [u8; 32] = from_hex(weak).unwrap();
                key[31] |= sign;
                // This signature is valid for some of them, once in a few connections.
                for number in 0..64 {
                    assert_eq!(verified(&to_hex(&key), &"00".repeat(64), &[number; 32]), None);
                }
            }
        }
    }

    #[test]
    fn a_key_proves_itself_on_one_connection_only() {
        let pair = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap();
        let public = to_hex(pair.public_key().as_ref());
        let signature = to_hex(pair.sign(&signed(&[1; 32])).as_ref());
        let spelled = verified(&public.to_uppercase(), &signature, &[1; 32]);
        assert_eq!(spelled, Some(public.clone()));
        assert_eq!(verified(&public, &signature, &[2; 32]), None);
    }
}
