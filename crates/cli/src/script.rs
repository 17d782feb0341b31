//! Commands that name a Python program without its interpreter, as with `torchrun`:
//! `horovodrun -np 2 train.py` and `horovodrun -np 2 -m package.train`.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::messages::UserError;

/// The option before a module name, as in Python itself.
pub(crate) const MODULE: &str = "-m";

/// The interpreter of this installation: the one next to its commands, or the first on the PATH.
pub(crate) fn python(program: &Path) -> PathBuf {
    let beside = program.parent().map(|folder| folder.join("python"));
    beside.filter(|python| python.is_file()).unwrap_or_else(|| "python3".into())
}

/// Prepends the interpreter to a command that names a module, or a script that is not executable.
pub(crate) fn with_interpreter(
    program: &Path,
    command: Vec<OsString>,
) -> Result<Vec<OsString>, UserError> {
    let needs_one = match command.as_slice() {
        [first] if first == MODULE => {
            let hint = "for example: `horovodrun -np 2 -m package.train`";
            return Err(UserError::new("`-m` needs a module name", hint));
        }
        [first, ..] => names_python(first, std::env::var_os("PATH").as_deref()),
        [] => false,
    };
    let python = needs_one.then(|| python(program).into_os_string());
    Ok(python.into_iter().chain(command).collect())
}

/// Whether a command with this first word needs an interpreter.
pub(crate) fn names_python(first: &OsStr, path: Option<&OsStr>) -> bool {
    let file = Path::new(first);
    first == MODULE || file.extension().is_some_and(|end| end == "py") && !is_program(file, path)
}

/// Whether a shell could execute the file.
fn is_program(file: &Path, path: Option<&OsStr>) -> bool {
    let executable = |file: &Path| {
        let mode = fs::metadata(file).ok().filter(fs::Metadata::is_file);
        mode.is_some_and(|file| file.permissions().mode() & 0o111 != 0)
    };
    match file.components().count() {
        1 if !file.starts_with(".") => path
            .is_some_and(|path| std::env::split_paths(path).any(|at| executable(&at.join(file)))),
        _ => executable(file),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_needs_an_interpreter_unless_it_is_executable() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, mode: u32| {
            let file = folder.path().join(name);
            fs::write(&file, "").unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            file.into_os_string()
        };
        let (script, program) = (write("train.py", 0o644), write("tool.py", 0o755));
        let path = Some(folder.path().as_os_str());
        for (first, expected) in [
            (script.as_os_str(), true),
            (program.as_os_str(), false),
            (OsStr::new("train.py"), true),
            (OsStr::new("tool.py"), false),
            (OsStr::new("elsewhere.py"), true),
            (OsStr::new("-m"), true),
            (OsStr::new("python"), false),
            (OsStr::new("train.sh"), false),
        ] {
            assert_eq!(names_python(first, path), expected, "{first:?}");
        }
        // If the folder is not on the PATH, the bare name means a file in the current directory.
        assert!(names_python(OsStr::new("tool.py"), None));
    }

    #[test]
    fn a_module_option_needs_a_name() {
        let here = Path::new("/nowhere/bin/horovodrun");
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        assert!(with_interpreter(here, words(&["-m"])).is_err());
        let command = with_interpreter(here, words(&["-m", "train", "-x"])).unwrap();
        assert_eq!(command, words(&["python3", "-m", "train", "-x"]));
        assert_eq!(with_interpreter(here, words(&["true"])).unwrap(), words(&["true"]));
    }
}
