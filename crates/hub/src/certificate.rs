//! The hub's certificate, made on first use. No authority vouches for it: invitations carry its
//! fingerprint, so that nobody else can pose as this hub.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use ring::digest::{SHA256, digest};
use ronde_control::hub::invite::Fingerprint;
use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::version::TLS13;

use crate::HubError;

const FILE: &str = "certificate.pem";
/// The name in the certificate. Nobody compares it: clients compare the fingerprint.
const NAME: &str = "ronde-hub";

/// The certificate and its key.
pub struct Certificate {
    chain: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

impl Certificate {
    /// The certificate of the hub with this folder; both are made if they do not exist.
    pub fn in_folder(folder: &Path) -> Result<Certificate, HubError> {
        let failed = |action: String| |source| HubError::Folder { action, source };
        let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.map_err(failed(format!("create `{}`", folder.display())))?;
        let path = folder.join(FILE);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let text = make()?;
                let written = write_new(&path, text.as_bytes());
                written.map_err(failed(format!("write `{}`", path.display())))?;
                text.into_bytes()
            }
            Err(error) => return Err(failed(format!("read `{}`", path.display()))(error)),
        };
        parse(&text)
    }

    /// What invitations carry.
    pub fn fingerprint(&self) -> Fingerprint {
        fingerprint(&self.chain)
    }

    /// The set-up of TLS 1.3 with this certificate.
    pub(crate) fn server_config(&self) -> Result<Arc<ServerConfig>, HubError> {
        let unusable = |error: rustls::Error| unusable("used", &error);
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(&[&TLS13])
            .map_err(unusable)?
            .with_no_client_auth()
            .with_single_cert(vec![self.chain.clone()], self.key.clone_key())
            .map_err(unusable)?;
        Ok(Arc::new(config))
    }
}

/// The SHA-256 of a certificate.
fn fingerprint(certificate: &CertificateDer<'_>) -> Fingerprint {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest(&SHA256, certificate).as_ref());
    Fingerprint(bytes)
}

fn make() -> Result<String, HubError> {
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()]);
    let made = made.map_err(|error| unusable("made", &error))?;
    Ok(format!("{}{}", made.cert.pem(), made.signing_key.serialize_pem()))
}

fn parse(text: &[u8]) -> Result<Certificate, HubError> {
    let chain = CertificateDer::from_pem_slice(text).map_err(|error| unusable("read", &error))?;
    let key = PrivateKeyDer::from_pem_slice(text).map_err(|error| unusable("read", &error))?;
    Ok(Certificate { chain, key })
}

fn unusable(action: &'static str, error: &dyn std::fmt::Display) -> HubError {
    HubError::Certificate { action, reason: error.to_string() }
}

/// Writes a file that only its owner may read, whole or not at all.
fn write_new(path: &Path, text: &[u8]) -> io::Result<()> {
    let beside = path.with_extension("new");
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
    file.write_all(text)?;
    file.sync_all()?;
    fs::rename(&beside, path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn a_certificate_is_made_once_and_only_its_owner_can_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("hub");
        let first = Certificate::in_folder(&place).unwrap().fingerprint();
        assert_eq!(Certificate::in_folder(&place).unwrap().fingerprint(), first);
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&place), mode(&place.join(FILE))), (0o700, 0o600));
        let other = Certificate::in_folder(&folder.path().join("other")).unwrap().fingerprint();
        assert_ne!(first, other);
    }

    #[test]
    fn a_damaged_certificate_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(FILE), "nonsense").unwrap();
        let error = Certificate::in_folder(folder.path()).err().unwrap();
        assert!(error.to_string().starts_with("the hub's certificate cannot be read"), "{error}");
    }
}
