//! Checks the settings of a job before anything starts: values that the launcher or the ranks would
//! refuse, and files that they could not write.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use ronde_control::Tuning;
use ronde_control::settings::{
    self, BadSettings, HOROVOD_AUTOTUNE, HOROVOD_AUTOTUNE_LOG, HOROVOD_TIMELINE, Launch,
    RONDE_TUNING, Setting,
};
use ronde_launch::writing::{unwritable, without_neighbors};

use crate::flags::FLAGS;
use crate::horovodrun::EnvVars;
use crate::messages::UserError;

/// Whether rank 0 writes its files on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rank0Files {
    Here,
    Elsewhere,
}

/// Reads the launcher's settings from `set`, the variables that options have set, and from the
/// environment, and checks everything that the ranks will read.
pub(crate) fn check(set: &EnvVars, files: Rank0Files) -> Result<Launch, UserError> {
    let look_up = |name: &str| look_up(name, set, files);
    let read = settings::launch(look_up);
    let mut errors = match &read {
        Ok(_) => Vec::new(),
        Err(BadSettings(errors)) => errors.clone(),
    };
    if files == Rank0Files::Here {
        let given = |setting: &Setting| look_up(setting.name).filter(|text| !text.is_empty());
        let timeline = given(HOROVOD_TIMELINE).filter(|path| !path.eq_ignore_ascii_case("dynamic"));
        errors.extend(timeline.and_then(|path| refuse_timeline(&path)));
        let tunes = given(HOROVOD_AUTOTUNE).is_some_and(|text| text.trim() != "0");
        let log = given(HOROVOD_AUTOTUNE_LOG).filter(|_| tunes);
        errors.extend(log.and_then(|path| {
            let why = unwritable(Path::new(&path))?;
            Some(cannot_write(HOROVOD_AUTOTUNE_LOG, &path, &why))
        }));
    }
    match read {
        Ok(launch) if errors.is_empty() => Ok(launch),
        _ => Err(refuse(errors, set)),
    }
}

/// The thresholds between algorithms that a job started here would use.
pub(crate) fn tuning_here() -> Result<Tuning, UserError> {
    let none = EnvVars::default();
    Ok(settings::tuning(|name: &str| look_up(name, &none, Rank0Files::Here))?)
}

/// The value of a variable, from `set` or else from the environment.
fn look_up(name: &str, set: &EnvVars, files: Rank0Files) -> Option<String> {
    let given = set.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
    let text = given.or_else(|| std::env::var_os(name))?.to_string_lossy().into_owned();
    Some(if name == RONDE_TUNING.name { tuning(text, files) } else { text })
}

/// Why a timeline cannot be written, if so. It must be a regular file, because it is swapped with
/// another one next to it.
fn refuse_timeline(text: &str) -> Option<String> {
    let path = Path::new(text);
    let special = path.exists() && !path.is_file() && !path.is_dir();
    let special = special.then(|| "it is not a regular file".to_owned());
    let why = special.or_else(|| unwritable(path)).or_else(|| without_neighbors(path))?;
    Some(cannot_write(HOROVOD_TIMELINE, text, &why))
}

fn cannot_write(setting: &Setting, path: &str, why: &str) -> String {
    let name = setting.name;
    format!("{name} is `{path}`, which cannot be written: {why}")
}

/// The errors, each with the option that it comes from, if any.
fn refuse(errors: Vec<String>, set: &EnvVars) -> UserError {
    let named = |error: String| {
        let Some((name, _)) = set.iter().find(|(name, _)| starts_with(&error, name)) else {
            return error;
        };
        match FLAGS.iter().find(|flag| flag.variable().is_some_and(|it| *name == *it.name)) {
            Some(flag) => format!("`{}`: {error}", flag.names[0]),
            None => error,
        }
    };
    UserError { errors: errors.into_iter().map(named).collect(), hint: HINT.into() }
}

fn starts_with(error: &str, name: &OsStr) -> bool {
    let rest = name.to_str().and_then(|name| error.strip_prefix(name));
    rest.is_some_and(|rest| rest.starts_with(' '))
}

impl From<BadSettings> for UserError {
    fn from(BadSettings(errors): BadSettings) -> UserError {
        UserError { errors, hint: HINT.into() }
    }
}

const HINT: &str = "correct or unset these settings; docs/reference/settings.md describes them";

/// The content of the file if `text` names one, as a rank would read it.
fn tuning(text: String, files: Rank0Files) -> String {
    match fs::read_to_string(&text) {
        Ok(content) => content,
        // The file may exist on another host.
        Err(_) if files == Rank0Files::Elsewhere && !text.contains('=') => String::new(),
        Err(_) => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_option_that_it_comes_from() {
        let set = vec![("HOROVOD_TIMELINE".into(), "/no/such/t.json".into())];
        let error = check(&set, Rank0Files::Here).unwrap_err();
        assert_eq!(
            error.errors,
            [
                "`--timeline-filename`: HOROVOD_TIMELINE is `/no/such/t.json`, which cannot be written: \
              `/no/such`: No such file or directory (os error 2)"
            ]
        );
        assert!(check(&set, Rank0Files::Elsewhere).is_ok());
    }
}
