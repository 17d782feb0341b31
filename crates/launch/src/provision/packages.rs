//! What is installed on the hosts: the wheels of this very installation, and the packages that the
//! user lists, locked with their hashes. A digest over both identifies the environment.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use ring::digest::{SHA256, digest};
use ronde_control::to_hex;
use serde::{Deserialize, Serialize};
use tokio::process::Command;

use crate::reach::HostProblem;

/// Digits of the digest in the name of an environment.
const DIGITS: usize = 12;

/// How much larger a wheel usually is when it is unpacked.
const PACKED: u64 = 3;

/// The packages of an environment.
#[derive(Clone, Debug)]
pub(super) struct Packages {
    /// Identifies the environment.
    pub(super) digest: String,
    /// Bytes of the wheels, unpacked.
    pub(super) bytes: u64,
    /// The locked requirements, if the user listed any.
    pub(super) lock: Option<RequirementsLock>,
}

/// Requirements with exact versions and hashes. They are kept, so that another run installs the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequirementsLock {
    /// SHA-256 of the user's list.
    pub digest: String,
    /// The oldest Python that they must work with.
    pub python: (u32, u32),
    /// The list with exact versions and hashes.
    pub text: String,
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
    /// The user's list of requirements; without one, what was locked before is installed.
    pub requirements: Option<PathBuf>,
    /// What they were locked to before, unless that is to be renewed.
    pub lock: Option<RequirementsLock>,
    /// An empty folder for files that are sent.
    pub folder: PathBuf,
}

/// A wheel of this installation, packed or not.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct OwnWheel {
    name: String,
    bytes: u64,
    digest: String,
}

impl PackageSource {
    /// Describes the wheels without packing them.
    pub(super) async fn own_wheels(&self) -> Result<Vec<OwnWheel>, HostProblem> {
        let own = self.describe(None).await;
        let Some(wheel) = &self.wheel else { return own };
        let content = fs::read(wheel).map_err(|error| unreadable(wheel, &error))?;
        let name = wheel.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (bytes, digest) = (content.len() as u64 * PACKED, sha256(&content));
        // What Ronde needs comes from this installation if possible, otherwise from the user's list.
        let others = own.unwrap_or_default().into_iter().filter(|wheel| !wheel.is_ronde());
        Ok(others.chain([OwnWheel { name, bytes, digest }]).collect())
    }

    /// Packs the wheels; returns all files to send, whose names matter to the installer.
    pub(super) async fn files(&self, packages: &Packages) -> Result<Vec<PathBuf>, HostProblem> {
        let own = self.describe(Some(&self.folder)).await;
        let path = |wheel: &OwnWheel| self.folder.join(&wheel.name);
        let mut files: Vec<PathBuf> = match &self.wheel {
            None => own?.iter().map(path).collect(),
            Some(wheel) => {
                let own = own.unwrap_or_default().into_iter().filter(|wheel| !wheel.is_ronde());
                own.map(|wheel| path(&wheel)).chain([wheel.clone()]).collect()
            }
        };
        if let Some(lock) = &packages.lock {
            let path = self.folder.join("requirements.txt");
            fs::write(&path, &lock.text).map_err(|error| unreadable(&path, &error))?;
            files.push(path);
        }
        Ok(files)
    }

    /// Describes this installation, and packs it into a folder if there is one.
    async fn describe(&self, folder: Option<&Path>) -> Result<Vec<OwnWheel>, HostProblem> {
        let hint = "install Ronde from a wheel, or pass one with `--wheel FILE`";
        let cannot =
            |why: &str| HostProblem::new(format!("cannot pack this installation: {why}"), hint);
        let words = ["-m", "horovod._wheels"].map(OsStr::new).into_iter();
        let words: Vec<&OsStr> = words.chain(folder.map(Path::as_os_str)).collect();
        let output = run(&self.python, &words).await.map_err(|error| cannot(&error))?;
        serde_json::from_str(&output).map_err(|error| cannot(&error.to_string()))
    }

    /// The packages: these wheels and the locked requirements, which must work with this Python and
    /// newer ones.
    pub(super) async fn packages(
        &self,
        wheels: &[OwnWheel],
        python: (u32, u32),
    ) -> Result<Packages, HostProblem> {
        let lock = match &self.requirements {
            Some(path) => Some(self.lock(path, python).await?),
            None => self.recorded_lock(python)?,
        };
        let digests = wheels.iter().map(|wheel| format!("{}\n", wheel.digest));
        let all: String = digests.chain(lock.as_ref().map(|lock| lock.text.clone())).collect();
        let mut digest = sha256(all.as_bytes());
        digest.truncate(DIGITS);
        Ok(Packages { digest, bytes: wheels.iter().map(|wheel| wheel.bytes).sum(), lock })
    }

    /// What was locked before, for a run that names no requirements.
    fn recorded_lock(&self, python: (u32, u32)) -> Result<Option<RequirementsLock>, HostProblem> {
        match &self.lock {
            Some(RequirementsLock { python: oldest, .. }) if python < *oldest => {
                Err(HostProblem::new(
                    format!(
                        "the requirements were locked for Python {}.{} and newer, and one of the \
                         hosts has {}.{}",
                        oldest.0, oldest.1, python.0, python.1
                    ),
                    "pass them again with `--env FILE`, so that they are locked for all hosts",
                ))
            }
            known => Ok(known.clone()),
        }
    }

    async fn lock(
        &self,
        requirements: &Path,
        python: (u32, u32),
    ) -> Result<RequirementsLock, HostProblem> {
        let show = requirements.display();
        let text =
            fs::read_to_string(requirements).map_err(|error| unreadable(requirements, &error))?;
        if text.lines().any(names_ronde) {
            return Err(HostProblem::new(
                format!("`{show}` lists Ronde itself"),
                "leave it out: the hosts get the Ronde that runs here",
            ));
        }
        let digest = sha256(text.as_bytes());
        let known = self.lock.as_ref();
        if let Some(known) = known.filter(|it| (&it.digest, it.python) == (&digest, python)) {
            return Ok(known.clone());
        }
        let version = &format!("{}.{}", python.0, python.1);
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
        let text = if no_index { format!("{NO_INDEX}\n{lock}") } else { lock };
        Ok(RequirementsLock { digest, python, text })
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
    to_hex(digest(&SHA256, bytes).as_ref())
}

impl OwnWheel {
    fn is_ronde(&self) -> bool {
        self.name.starts_with("ronde-")
    }
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
    fn recorded_requirements_are_installed_again_unless_a_host_has_an_older_python() {
        let lock = RequirementsLock { digest: "d".into(), python: (3, 11), text: "a==1\n".into() };
        let source = |lock| PackageSource {
            python: PathBuf::new(),
            program: PathBuf::new(),
            wheel: None,
            requirements: None,
            lock,
            folder: PathBuf::new(),
        };
        let recorded = source(Some(lock.clone()));
        assert_eq!(recorded.recorded_lock((3, 11)).unwrap(), Some(lock.clone()));
        assert_eq!(recorded.recorded_lock((3, 12)).unwrap(), Some(lock));
        let problem = recorded.recorded_lock((3, 9)).unwrap_err();
        assert!(problem.reason.contains("Python 3.11 and newer"), "{}", problem.reason);
        assert_eq!(source(None).recorded_lock((3, 9)).unwrap(), None);
    }

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
