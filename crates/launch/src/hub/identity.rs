//! Who this user is, to hubs: an Ed25519 key, made on first use, and the hub that let them in.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use ring::signature::{Ed25519KeyPair, KeyPair};
use ronde_control::hub::invite::Fingerprint;
use ronde_control::{from_hex, to_hex};
use serde::{Deserialize, Serialize};

use crate::driver::entropy;
use crate::private::read_key;

const KEY: &str = "identity.key";
const ACCOUNT: &str = "hub.json";

/// The key with which a user or a node signs.
pub struct Identity {
    pair: Ed25519KeyPair,
}

impl Identity {
    /// The key in a folder, made if there is none; or why there is none.
    pub fn in_folder(folder: &Path) -> Result<Identity, String> {
        let path = folder.join(KEY);
        if path.symlink_metadata().is_err() {
            let seed = entropy::<32>().map_err(|error| error.to_string())?;
            let written = write_new(&path, &format!("{}\n", to_hex(&seed)));
            written.map_err(|error| format!("cannot write `{}`: {error}", path.display()))?;
        }
        let text = read_key(&path)?.to_hex();
        let seed = from_hex::<32>(&text).expect("a key has 64 digits");
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed);
        pair.map(|pair| Identity { pair }).map_err(|error| format!("`{}`: {error}", path.display()))
    }

    /// The public key, in hexadecimal.
    pub fn public(&self) -> String {
        to_hex(self.pair.public_key().as_ref())
    }

    pub(super) fn sign(&self, message: &[u8]) -> Vec<u8> {
        self.pair.sign(message).as_ref().to_vec()
    }
}

/// The hub that a user has logged in to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HubAccount {
    /// Where it is.
    pub address: String,
    /// Its certificate.
    pub certificate: Fingerprint,
}

impl HubAccount {
    /// The account in a folder, if there is one; or why it cannot be read.
    pub fn in_folder(folder: &Path) -> Result<Option<HubAccount>, String> {
        let path = folder.join(ACCOUNT);
        let unreadable =
            |error: &dyn std::fmt::Display| format!("cannot read `{}`: {error}", path.display());
        match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(unreadable(&error)),
            Ok(text) => serde_json::from_slice(&text).map(Some).map_err(|error| unreadable(&error)),
        }
    }

    /// Makes this the account in a folder.
    pub fn save(&self, folder: &Path) -> Result<(), String> {
        let (path, beside) = (folder.join(ACCOUNT), folder.join("hub.new"));
        let text = serde_json::to_string_pretty(self).expect("an account can be written as JSON");
        let _ = fs::remove_file(&beside);
        let written = write_new(&beside, &text).and_then(|()| fs::rename(&beside, &path));
        written.map_err(|error| format!("cannot write `{}`: {error}", path.display()))
    }
}

/// Writes a file that only this user may read; fails if there is one.
fn write_new(path: &Path, text: &str) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_made_once() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("config/ronde");
        let first = Identity::in_folder(&place).unwrap();
        assert_eq!(Identity::in_folder(&place).unwrap().public(), first.public());
        assert_eq!(first.public().len(), 64);
    }

    #[test]
    fn an_account_is_kept_and_replaced() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(HubAccount::in_folder(folder.path()), Ok(None));
        for address in ["a:1", "b:2"] {
            let account = HubAccount { address: address.into(), certificate: Fingerprint([7; 32]) };
            account.save(folder.path()).unwrap();
            assert_eq!(HubAccount::in_folder(folder.path()), Ok(Some(account)));
        }
        fs::write(folder.path().join(ACCOUNT), "{").unwrap();
        assert!(HubAccount::in_folder(folder.path()).unwrap_err().contains("cannot read"));
    }
}
