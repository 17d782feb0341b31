//! Small files that the user names on the command line.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use crate::messages::UserError;

/// Maximum size of such a file, in bytes; `/dev/zero`, for one, has no end.
const LONGEST: usize = 1 << 20;

/// The text of a file; `what` describes it in errors.
pub(crate) fn read(what: &str, path: &Path) -> Result<String, UserError> {
    let name = path.display();
    text(path).map_err(|error| {
        let hint = match error.kind() {
            io::ErrorKind::NotFound => "check the spelling and the current directory",
            io::ErrorKind::PermissionDenied => "permission denied: check the file's permissions",
            _ => "pass a text file",
        };
        UserError::new(format!("the {what} `{name}` cannot be read: {error}"), hint)
    })
}

fn text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(LONGEST as u64 + 1).read_to_string(&mut text)?;
    if text.len() > LONGEST {
        return Err(io::Error::other(format!("it is longer than {LONGEST} bytes")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_an_end_is_refused() {
        let error = read("hostfile", Path::new("/dev/zero")).unwrap_err().errors.remove(0);
        assert_eq!(
            error,
            "the hostfile `/dev/zero` cannot be read: it is longer than 1048576 bytes"
        );
        let missing = read("hostfile", Path::new("/no/such")).unwrap_err();
        assert!(missing.hint.starts_with("check the spelling"));
    }
}
