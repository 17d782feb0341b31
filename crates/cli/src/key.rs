//! Where a job's key comes from that others must have, too. It is never on a command line, which every
//! user of a machine can read.

use std::path::Path;

use ronde_control::settings::RONDE_JOB_KEY;
use ronde_control::wire::JobKey;
use ronde_launch::private;

use crate::messages::UserError;

/// The variable that holds the key of a job in all its processes.
pub(crate) const VARIABLE: &str = RONDE_JOB_KEY.name;

/// The key in a file.
pub(crate) fn from_file(path: &Path) -> Result<JobKey, UserError> {
    private::read_key(path).map_err(|why| {
        let hint = "pass a file that holds the job key and that only you can read";
        UserError::new(format!("the key file {why}"), hint)
    })
}

/// The key in an open descriptor.
pub(crate) fn from_descriptor(number: u32) -> Result<JobKey, UserError> {
    private::read_key_from(number).map_err(|why| {
        let hint = "open it for this command, as in `--key-fd 3 3<FILE`";
        UserError::new(format!("cannot read a key from descriptor {number}: {why}"), hint)
    })
}

/// The key in the environment, if there is one.
pub(crate) fn from_environment() -> Result<Option<JobKey>, UserError> {
    let Some(text) = std::env::var_os(VARIABLE) else { return Ok(None) };
    // What is in it is not repeated: it may be nearly the key.
    JobKey::from_hex(text.to_string_lossy().trim_end()).map(Some).map_err(|error| {
        UserError::new(format!("{VARIABLE} holds no key: {error}"), "check where it is set")
    })
}
