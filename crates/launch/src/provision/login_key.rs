//! A key pair for ssh, made only if the user has none. Installing it on a host needs a password or
//! another key, so that is left to the user and to `ssh-copy-id`.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::process::Stdio;

use tokio::process::Command;

use crate::reach::HostProblem;

/// The key that ssh tries by itself.
const NAME: &str = "id_ed25519";

/// Makes a key pair if the folder has none; returns whether it did.
pub(super) async fn make_if_none(folder: &Path) -> Result<bool, HostProblem> {
    if has_key(folder) {
        return Ok(false);
    }
    let path = folder.join(NAME);
    let failed = |why: &str| {
        let hint = "make one yourself: `ssh-keygen -t ed25519`";
        HostProblem::new(format!("cannot make a key pair in `{}`: {why}", path.display()), hint)
    };
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(|error| failed(&error.to_string()))?;
    let output = Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-f"])
        .arg(&path)
        // It asks before it replaces a file; the answer is no.
        .stdin(Stdio::null())
        .output()
        .await
        .map_err(|error| failed(&error.to_string()))?;
    match output.status.success() {
        true => Ok(true),
        false => Err(failed(String::from_utf8_lossy(&output.stderr).trim())),
    }
}

/// Whether there is a private key with one of ssh's own names.
fn has_key(folder: &Path) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name()).any(|name| name.to_string_lossy().starts_with("id_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_key_pair_is_made_only_if_there_is_none() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join(".ssh");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("id_rsa"), "mine").unwrap();
        assert_eq!(make_if_none(&folder).await, Ok(false));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    }
}
