//! Talks to a hub: one TLS connection, on which every request is signed with the caller's key.
//!
//! The hub is recognised by the fingerprint of its certificate, which came with the invitation, so
//! no authority is needed. The API's messages are in `control::hub::api`.

mod identity;
mod pinned;

use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use ronde_control::hub::api::{PREFIX, PROOF_LABEL, Refusal, SCHEME, signed};
use ronde_control::hub::invite::Fingerprint;
use ronde_control::to_hex;
use rustls::pki_types::ServerName;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

pub use identity::{HubAccount, Identity};

/// How long connecting may take, and a request.
const PATIENCE: Duration = Duration::from_secs(20);
/// The longest answer, in bytes.
const LONGEST: usize = 64 << 20;
/// The name that clients send; hubs do not look at it.
const NAME: &str = "ronde-hub";

/// Why a hub did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum HubCallError {
    /// It cannot be reached.
    #[error("cannot reach the hub at {address}: {reason}")]
    Unreachable {
        /// Where it should be.
        address: String,
        /// Why not.
        reason: String,
    },
    /// Somebody else answers at its address.
    #[error(
        "the machine at {address} is not the hub that invited you: its certificate is {found}, not \
         {wanted}"
    )]
    OtherHub {
        /// Where it should be.
        address: String,
        /// The certificate there.
        found: Fingerprint,
        /// The hub's.
        wanted: Fingerprint,
    },
    /// It said no.
    #[error("{}", .0.error)]
    Refused(Refusal),
    /// The answer makes no sense.
    #[error(
        "the hub at {address} answered with something else than this version understands: {reason}"
    )]
    Malformed {
        /// Where it is.
        address: String,
        /// What is wrong.
        reason: String,
    },
}

/// A connection to a hub.
pub struct HubClient {
    address: String,
    sender: SendRequest<Full<Bytes>>,
    authorization: String,
}

impl HubClient {
    /// Connects to the hub of an account and signs this connection.
    pub async fn connect(
        address: &str,
        certificate: Fingerprint,
        identity: &Identity,
    ) -> Result<HubClient, HubCallError> {
        let unreachable =
            |reason: String| HubCallError::Unreachable { address: address.to_owned(), reason };
        let late = |_| unreachable(format!("no answer within {} s", PATIENCE.as_secs()));
        let stream = timeout(PATIENCE, TcpStream::connect(address)).await.map_err(late)?;
        let stream = stream.map_err(|error| unreachable(error.to_string()))?;
        let (config, seen) = pinned::config(certificate);
        let name = ServerName::try_from(NAME).expect("it is a valid name");
        let connecting = TlsConnector::from(Arc::new(config)).connect(name, stream);
        let stream = timeout(PATIENCE, connecting).await.map_err(late)?;
        let stream = stream.map_err(|error| match seen.get() {
            Some(found) if *found != certificate => HubCallError::OtherHub {
                address: address.to_owned(),
                found: *found,
                wanted: certificate,
            },
            _ => unreachable(error.to_string()),
        })?;
        let proof = stream.get_ref().1.export_keying_material([0; 32], PROOF_LABEL, None);
        let proof = proof.map_err(|error| unreachable(error.to_string()))?;
        let signature = identity.sign(&signed(&proof));
        let authorization = format!("{SCHEME}{}.{}", identity.public(), to_hex(&signature));
        let (sender, connection) = handshake(TokioIo::new(stream))
            .await
            .map_err(|error| unreachable(error.to_string()))?;
        // It ends with the sender.
        tokio::spawn(connection);
        Ok(HubClient { address: address.to_owned(), sender, authorization })
    }

    /// Asks for something.
    pub async fn get<T: DeserializeOwned>(&mut self, path: &str) -> Result<T, HubCallError> {
        let answer = self.send(Method::GET, path, Bytes::new()).await?;
        self.parse(&answer)
    }

    /// Sends something.
    pub async fn post<T: DeserializeOwned>(
        &mut self,
        path: &str,
        what: &impl Serialize,
    ) -> Result<T, HubCallError> {
        let body = serde_json::to_vec(what).expect("messages can be written as JSON");
        let answer = self.send(Method::POST, path, body.into()).await?;
        self.parse(&answer)
    }

    /// Removes something.
    pub async fn delete(&mut self, path: &str) -> Result<(), HubCallError> {
        self.send(Method::DELETE, path, Bytes::new()).await.map(drop)
    }

    fn parse<T: DeserializeOwned>(&self, answer: &[u8]) -> Result<T, HubCallError> {
        serde_json::from_slice(answer).map_err(|error| self.malformed(error.to_string()))
    }

    fn malformed(&self, reason: String) -> HubCallError {
        HubCallError::Malformed { address: self.address.clone(), reason }
    }

    async fn send(
        &mut self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Bytes, HubCallError> {
        let address = self.address.clone();
        let unreachable = |reason: String| HubCallError::Unreachable { address, reason };
        let request = Request::builder()
            .method(method)
            .uri(format!("{PREFIX}{path}"))
            .header(HOST, NAME)
            .header(CONTENT_TYPE, "application/json")
            .header(AUTHORIZATION, &self.authorization)
            .body(Full::new(body))
            .map_err(|error| self.malformed(error.to_string()))?;
        let answer = async {
            let answer =
                self.sender.send_request(request).await.map_err(|error| error.to_string())?;
            let status = answer.status();
            let body = Limited::new(answer.into_body(), LONGEST).collect().await;
            Ok((status, body.map_err(|error| error.to_string())?.to_bytes()))
        };
        let answer = timeout(PATIENCE, answer)
            .await
            .unwrap_or_else(|_| Err(format!("no answer within {} s", PATIENCE.as_secs())));
        let (status, body): (StatusCode, Bytes) = answer.map_err(unreachable)?;
        match status.is_success() {
            true => Ok(body),
            false => Err(self.parse(&body).map_or_else(|error| error, HubCallError::Refused)),
        }
    }
}
