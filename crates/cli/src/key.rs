//! Reads a job key that several processes share. It is never passed on a command line, because
//! every user of a machine can read those.

use std::path::{Path, PathBuf};

use ronde_control::settings::RONDE_JOB_KEY;
use ronde_control::wire::JobKey;
use ronde_launch::private;

use crate::messages::UserError;

/// The variable that holds the job key in all processes of the job.
pub(crate) const VARIABLE: &str = RONDE_JOB_KEY.name;

/// Reads the key from a file.
pub(crate) fn from_file(path: &Path) -> Result<JobKey, UserError> {
    private::read_key(path).map_err(|why| {
        let hint = "pass a file that holds the job key and that only you can read";
        UserError::new(format!("the key file {why}"), hint)
    })
}

/// The file with the key of standing agents, unless the user names another.
pub(crate) fn agent_key_file() -> Option<PathBuf> {
    config_folder().map(|folder| folder.join("agent.key"))
}

/// The folder with this user's own files, whether or not it exists.
pub(crate) fn config_folder() -> Option<PathBuf> {
    let home = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
    let config = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from);
    let config = config.filter(|config| config.is_absolute());
    let config = config.or_else(|| home.map(|home| home.join(".config")));
    config.map(|config| config.join("ronde"))
}

/// The key of standing agents: from the named file, or else from the environment, or else from the
/// usual file, if it exists.
pub(crate) fn of_agents(
    file: Option<&Path>,
    environment: Option<JobKey>,
) -> Result<Option<JobKey>, UserError> {
    match (file, environment) {
        (Some(path), _) => from_file(path).map(Some),
        (None, Some(key)) => Ok(Some(key)),
        (None, None) => {
            let usual = agent_key_file().filter(|path| path.exists());
            usual.map(|path| from_file(&path)).transpose()
        }
    }
}

/// Reads the key from an open descriptor.
pub(crate) fn from_descriptor(number: u32) -> Result<JobKey, UserError> {
    private::read_key_from(number).map_err(|why| {
        let hint = "open it for this command, as in `--key-fd 3 3<FILE`";
        UserError::new(format!("cannot read a key from descriptor {number}: {why}"), hint)
    })
}

/// Reads the key from the environment, if it is set.
pub(crate) fn from_environment() -> Result<Option<JobKey>, UserError> {
    let Some(text) = std::env::var_os(VARIABLE) else { return Ok(None) };
    // The value is not shown: it may be close to the real key.
    JobKey::from_hex(text.to_string_lossy().trim_end()).map(Some).map_err(|error| {
        UserError::new(format!("{VARIABLE} is not a valid key: {error}"), "check where it is set")
    })
}
