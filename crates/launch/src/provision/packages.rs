//! What is installed on the hosts: the wheels of this very installation, and the packages that the
//! user lists, locked with their hashes. A digest over both identifies the environment.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use ring::digest::{SHA256, digest};
use serde::Deserialize;
use tokio::process::Command;

use crate::driver::hex;
use crate::reach::HostProblem;

/// Digits of the digest in the name of an environment.
const DIGITS: usize = 12;

/// The packages of an environment, ready to be sent.
#[derive(Clone, Debug)]
pub(super) struct Packages {
    /// Identifies the environment.
    pub(super) digest: String,
    /// The files to send; their names matter to the installer.
    pub(super) files: Vec<PathBuf>,
    /// Their size, in bytes.
    pub(super) bytes: u64,
}

/// Where packages come from.
#[derive(Clone, Debug)]
pub struct PackageSource {
    /// The interpreter of this installation.
    pub python: PathBuf,
    /// This executable.
    pub program: PathBuf,
    /// A wheel of Ronde to use instead of packing this installation.
    pub wheel: Option<PathBuf>,
    /// The user's list of requirements.
    pub requirements: Option<PathBuf>,
    /// An empty folder for files that are sent.
    pub folder: PathBuf,
}

#[derive(Deserialize)]
struct PackedWheel {
    name: String,
}

impl PackageSource {
    /// Packs this installation, or takes the wheel that the user names.
    pub(super) async fn wheels(&self) -> Result<Vec<PathBuf>, HostProblem> {
        let packed = self.pack().await;
        let Some(wheel) = &self.wheel else { return packed };
        // What Ronde needs comes from this installation if possible, otherwise from the user's list.
        let others = packed.unwrap_or_default().into_iter();
        let others = others.filter(|path| !is_ronde(path));
        Ok(others.chain([wheel.clone()]).collect())
    }

    async fn pack(&self) -> Result<Vec<PathBuf>, HostProblem> {
        let hint = "install Ronde from a wheel, or pass one with `--wheel FILE`";
        let cannot =
            |why: &str| HostProblem::new(format!("cannot pack this installation: {why}"), hint);
        let words = [OsStr::new("-m"), OsStr::new("horovod._wheels"), self.folder.as_os_str()];
        let output = run(&self.python, &words).await.map_err(|error| cannot(&error))?;
        let wheels: Vec<PackedWheel> =
            serde_json::from_str(&output).map_err(|error| cannot(&error.to_string()))?;
        Ok(wheels.iter().map(|wheel| self.folder.join(&wheel.name)).collect())
    }

    /// Adds the locked requirements, which must work with this Python and newer ones.
    pub(super) async fn locked(
        &self,
        mut files: Vec<PathBuf>,
        (major, minor): (u32, u32),
    ) -> Result<Packages, HostProblem> {
        if let Some(requirements) = &self.requirements {
            let lock = self.lock(requirements, &format!("{major}.{minor}")).await?;
            let path = self.folder.join("requirements.txt");
            fs::write(&path, lock).map_err(|error| unreadable(&path, &error))?;
            files.push(path);
        }
        let (mut all, mut bytes) = (Vec::new(), 0);
        for path in &files {
            let content = fs::read(path).map_err(|error| unreadable(path, &error))?;
            bytes += content.len() as u64;
            all.extend_from_slice(digest(&SHA256, &content).as_ref());
        }
        let mut digest = sha256(&all);
        digest.truncate(DIGITS);
        Ok(Packages { digest, files, bytes })
    }

    async fn lock(&self, requirements: &Path, version: &str) -> Result<String, HostProblem> {
        let show = requirements.display();
        let text =
            fs::read_to_string(requirements).map_err(|error| unreadable(requirements, &error))?;
        if text.lines().any(names_ronde) {
            return Err(HostProblem::new(
                format!("`{show}` lists Ronde itself"),
                "leave it out: the hosts get the Ronde that runs here",
            ));
        }
        let Some(uv) = self.uv() else {
            return Err(HostProblem::new(
                format!("`uv`, which locks `{show}`, is not installed on this machine"),
                "install it: `pip install uv`",
            ));
        };
        let words = [
            "pip",
            "compile",
            "--quiet",
            "--no-header",
            "--no-annotate",
            "--universal",
            "--generate-hashes",
            "--emit-index-url",
            "--emit-find-links",
            "--python-version",
            version,
        ];
        let words: Vec<&OsStr> =
            words.iter().map(OsStr::new).chain([requirements.as_os_str()]).collect();
        let lock = run(&uv, &words).await.map_err(|error| {
            let hint =
                "check the names and versions in it, and that the package index is reachable";
            HostProblem::new(format!("cannot lock `{show}`: {error}"), hint)
        })?;
        // Hosts look for packages where the list says, and nowhere else.
        let no_index = text.lines().any(|line| line.trim() == NO_INDEX) && !lock.contains(NO_INDEX);
        Ok(if no_index { format!("{NO_INDEX}\n{lock}") } else { lock })
    }

    /// The installer of packages on this machine: next to our commands, on the PATH, or where its
    /// own installer puts it.
    pub(super) fn uv(&self) -> Option<PathBuf> {
        let beside = self.program.parent().map(|folder| folder.join("uv"));
        let path = std::env::var_os("PATH").unwrap_or_default();
        let on_path = std::env::split_paths(&path).map(|folder| folder.join("uv"));
        let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".local/bin/uv"));
        beside.into_iter().chain(on_path).chain(home).find(|path| path.is_file())
    }
}

const NO_INDEX: &str = "--no-index";

/// SHA-256 of some bytes, as hexadecimal digits.
pub(super) fn sha256(bytes: &[u8]) -> String {
    hex(digest(&SHA256, bytes).as_ref())
}

fn is_ronde(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ronde-"))
}

/// Whether a line of a list of requirements asks for Ronde.
fn names_ronde(line: &str) -> bool {
    let name = line.trim().strip_prefix("ronde");
    name.is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || "-_.".contains(c)))
}

fn unreadable(path: &Path, error: &io::Error) -> HostProblem {
    HostProblem::new(
        format!("`{}` cannot be read or written: {error}", path.display()),
        "check its name and its permissions",
    )
}

/// Runs a program; returns its output, or the last line of its errors.
async fn run(program: &Path, words: &[&OsStr]) -> Result<String, String> {
    let output = Command::new(program)
        .args(words)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .map_err(|error| format!("`{}` does not run: {error}", program.display()))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = said.trim().lines().map(str::trim).filter(|line| !line.is_empty());
            Err(said.collect::<Vec<_>>().join(" "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ronde_is_recognized_in_a_list_of_requirements() {
        for line in ["ronde", " ronde[torch]", "ronde==0.1", "ronde @ file:///x", "ronde>=1"] {
            assert!(names_ronde(line), "{line}");
        }
        for line in ["# ronde", "rondel", "ronde-extras", "numpy", ""] {
            assert!(!names_ronde(line), "{line}");
        }
    }
}
