//! The options of `ronde cp`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use ronde_launch::copy::{CopyPlan, walk};
use ronde_launch::hosts::{self, Host};
use ronde_launch::provision;

use crate::form::seconds;
use crate::horovodrun::{about_hosts, from_hostfile};
use crate::key;
use crate::messages::{UserError, both};
use crate::reach::Reach;

/// The word before the colon that means all hosts of a list.
const ALL: &str = "hosts";

/// The hostfile of our Helm chart, and of Horovod's.
const CHART: &str = "/horovod/generated/hostfile";

/// Copy files and folders to hosts, over the connections that a job would use
///
/// Each source is copied into FOLDER under its own name; a relative FOLDER, or none, is below the
/// home directory. Files that are there already, with the same size and time, are not sent again.
#[derive(Clone, Debug, Args)]
#[command(
    override_usage = "ronde cp [OPTIONS] <SOURCE>... <HOSTS>:[FOLDER]",
    after_help = "`hosts:` stands for all hosts: those of `--hostfile`, of \
                  `/horovod/generated/hostfile`, or of the last `ronde up`.\n\nExits with 0 if \
                  everything has arrived everywhere, and with 1 otherwise.\n\nExamples:\n  ronde cp \
                  data node-a,node-b:/tmp\n  ronde cp train.py model.py hosts:project"
)]
pub(crate) struct Arguments {
    /// What to copy; the last one says where to
    #[arg(value_name = "SOURCE", num_args = 2.., required = true)]
    paths: Vec<OsString>,

    hostfile: Option<PathBuf>,

    #[command(flatten)]
    reach: Reach,

    /// How long to wait for each host to respond, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = seconds)]
    start_timeout: u64,

    pub(crate) verbose: bool,
}

impl Arguments {
    /// What to copy, and where to.
    pub(super) fn plan(&self, program: &Path) -> Result<CopyPlan, UserError> {
        let Some((target, sources)) = self.paths.split_last() else {
            return Err(no_hosts(OsStr::new("")));
        };
        let sources: Vec<PathBuf> = sources.iter().map(PathBuf::from).collect();
        let found = walk(&sources).map_err(|errors| UserError {
            errors,
            hint: "copy what a link points to instead, and leave out what is not a file".into(),
        });
        let (named, folder) = split(target).ok_or_else(|| no_hosts(target))?;
        let (found, (hosts, reach)) = both(found, self.hosts(named))?;
        let limit = Duration::from_secs(self.start_timeout);
        let methods = hosts::reached(hosts, &hosts::hostname(), &reach.options(limit)?);
        Ok(CopyPlan {
            hosts: methods.into_iter().map(|(host, method)| (host.name, method)).collect(),
            sources: found.into(),
            folder: folder.as_bytes().to_vec(),
            program: program.to_owned(),
            limit,
        })
    }

    /// The hosts, and how to reach them.
    fn hosts(&self, named: &str) -> Result<(Vec<Host>, Reach), UserError> {
        let reach = self.reach.clone();
        if named != ALL {
            let hosts = hosts::parse(named).map_err(|error| about_hosts(&error))?;
            return Ok((hosts, reach));
        }
        let chart = Some(PathBuf::from(CHART)).filter(|path| path.exists());
        if let Some(path) = self.hostfile.clone().or(chart) {
            return Ok((from_hostfile(&path)?, reach));
        }
        let record = key::agent_key_file().map(|path| path.with_file_name("up.json"));
        let record = record.and_then(|path| provision::record(&path).ok()).unwrap_or_default();
        if record.hosts.is_empty() {
            return Err(UserError::new(
                "`hosts:` stands for a list of hosts, and there is none",
                "name the hosts, as in `node-a,node-b:`, or give a `--hostfile`",
            ));
        }
        let hosts = record.hosts.iter().map(|host| host.host(self.start_timeout).0).collect();
        Ok((hosts, reach.with_usual_port(record.port)))
    }
}

/// Splits `node-a,node-b:/tmp` at the first colon outside brackets.
fn split(target: &OsStr) -> Option<(&str, &OsStr)> {
    let bytes = target.as_bytes();
    let mut depth = 0;
    let is_colon = |byte: &u8| {
        match byte {
            b'[' => depth += 1,
            b']' => depth -= 1,
            _ => {}
        }
        *byte == b':' && depth == 0
    };
    let colon = bytes.iter().position(is_colon)?;
    let hosts = std::str::from_utf8(&bytes[..colon]).ok().filter(|hosts| !hosts.is_empty())?;
    // A path of this machine may contain a colon, too.
    (!hosts.contains('/')).then(|| (hosts, OsStr::from_bytes(&bytes[colon + 1..])))
}

fn no_hosts(target: &OsStr) -> UserError {
    UserError::new(
        format!("`{}` names no hosts", target.display()),
        "end with the hosts and a colon, as in `ronde cp data node-a,node-b:/tmp`",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_end_at_the_first_colon() {
        let parts = |text: &'static str| {
            split(OsStr::new(text)).map(|(hosts, folder)| (hosts, folder.to_str().unwrap()))
        };
        assert_eq!(parts("a,me@b:/tmp"), Some(("a,me@b", "/tmp")));
        assert_eq!(parts("hosts:"), Some(("hosts", "")));
        assert_eq!(parts("[fd00::1],b:x:y"), Some(("[fd00::1],b", "x:y")));
        for text in ["a", "", ":x", "/tmp/a:b", "./a:b"] {
            assert_eq!(parts(text), None, "{text}");
        }
    }
}
