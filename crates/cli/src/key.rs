//! Reads a job key that several processes share. It is never passed on a command line, because
//! every user of a machine can read those.

use std::path::Path;

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
