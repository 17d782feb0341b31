//! The options of `ronde up` and `ronde down`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use ronde_control::settings::RONDE_AGENT_PORT;
use ronde_launch::hosts::{self, Host};
use ronde_launch::provision::cluster_record::{ClusterRecord, RecordedHost};
use ronde_launch::provision::{self, HostShell, PackageSource, UpContent, UpPlan};
use ronde_launch::reach::ssh::SshOptions;

use crate::horovodrun::{about_hosts, from_hostfile};
use crate::key;
use crate::messages::UserError;
use crate::script;
use crate::ssh::Ssh;

/// How long ssh may take to connect.
const CONNECT: Duration = Duration::from_secs(12);

/// Prepare hosts over ssh, once: install Ronde and start a standing agent on each
///
/// Changes only what is missing or different, and needs no root. What is not given is as in the last
/// run. `ronde down` removes it again.
#[derive(Clone, Debug, Args)]
#[command(
    override_usage = "ronde up -H <HOSTS> [OPTIONS]",
    after_help = "Exits with 0 if all hosts are ready, and with 1 otherwise.\n\nExamples:\n  \
                  ronde up -H node7,node8 --env requirements.txt\n  ronde up -H node7:4,node8:4 \
                  --docker IMAGE -v /data:/data\n  ronde up --status\n  ronde down"
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(super) hosts: HostArguments,

    /// Install these requirements too, locked once here with their hashes; a file for pip
    #[arg(long, value_name = "FILE", conflicts_with = "docker")]
    env: Option<PathBuf>,

    /// Lock the requirements again, to newer versions
    #[arg(long, requires = "env")]
    upgrade: bool,

    /// Run the agents in containers of this image, with all GPUs and the network of the host
    #[arg(long, value_name = "IMAGE")]
    docker: Option<String>,

    /// Folder that the containers see, as for `docker run`; may be repeated
    #[arg(short, long, value_name = "FOLDER:FOLDER", requires = "docker")]
    volume: Vec<String>,

    /// Install this wheel of Ronde [default: packed from this installation]
    #[arg(long, value_name = "FILE", conflicts_with = "docker")]
    wheel: Option<PathBuf>,

    /// Port of the agents [default: 29508]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,

    /// Show the state of the hosts, and change nothing
    #[arg(long)]
    pub(super) status: bool,

    pub(crate) verbose: bool,
}

/// Stop the agents that `ronde up` started, and remove what it made
#[derive(Clone, Debug, Args)]
#[command(override_usage = "ronde down [-H <HOSTS>] [OPTIONS]")]
pub(crate) struct DownArguments {
    #[command(flatten)]
    pub(super) hosts: HostArguments,

    pub(crate) verbose: bool,
}

/// The hosts, and how to log in there.
#[derive(Clone, Debug, Args)]
pub(crate) struct HostArguments {
    /// Hosts, as in `node-a,me@node-b`; a number is that of the ranks in the command that is shown, as in `node-a:4` [default: those of the last `ronde up`]
    #[arg(short = 'H', long, value_name = "HOSTS")]
    hosts: Option<String>,

    #[arg(conflicts_with = "hosts")]
    hostfile: Option<PathBuf>,

    #[command(flatten)]
    ssh: Ssh,
}

/// The hosts of a command.
pub(super) struct ChosenHosts {
    pub(super) shells: Vec<HostShell>,
    pub(super) hosts: Vec<Host>,
    /// What to remember about them.
    pub(super) recorded: Vec<RecordedHost>,
    /// Whether the user gave a number of ranks for any host.
    pub(super) have_slots: bool,
}

impl HostArguments {
    /// The hosts that the user named, or those that are recorded.
    pub(super) fn chosen(&self, record: &ClusterRecord) -> Result<ChosenHosts, UserError> {
        let named = match (&self.hosts, &self.hostfile) {
            (Some(text), _) => hosts::parse(text).map_err(|error| about_hosts(&error))?,
            (None, Some(path)) => from_hostfile(path)?,
            (None, None) => return self.recorded(record),
        };
        let ssh = self.ssh.options(CONNECT);
        let have_slots = match &self.hosts {
            Some(text) => text.contains(':'),
            None => named.iter().any(|host| host.slots > 1),
        };
        let named = named.into_iter().map(|host| (host, ssh.clone()));
        Ok(ChosenHosts::new(named.collect(), have_slots))
    }

    fn recorded(&self, record: &ClusterRecord) -> Result<ChosenHosts, UserError> {
        if record.hosts.is_empty() {
            return Err(UserError::new(
                "no hosts were given, and `ronde up` has prepared none from here",
                "name them, as in `-H node-a,node-b`",
            ));
        }
        let limit = CONNECT.as_secs();
        let hosts = record.hosts.iter().map(|host| host.host(limit)).collect();
        Ok(ChosenHosts::new(hosts, record.hosts.iter().any(|host| host.slots > 1)))
    }
}

impl ChosenHosts {
    fn new(hosts: Vec<(Host, SshOptions)>, have_slots: bool) -> ChosenHosts {
        ChosenHosts {
            shells: hosts.iter().map(|(host, ssh)| provision::shell(host, ssh)).collect(),
            recorded: hosts.iter().map(|(host, ssh)| RecordedHost::new(host, ssh)).collect(),
            hosts: hosts.into_iter().map(|(host, _)| host).collect(),
            have_slots,
        }
    }
}

impl Arguments {
    /// The port of the agents: as given, as recorded, or the usual one.
    pub(super) fn port(&self, record: &ClusterRecord) -> u16 {
        let recorded = Some(record.port).filter(|port| *port > 0);
        self.port.or(recorded).unwrap_or_else(default_port)
    }

    /// The image and its mounts: as given, or as recorded if nothing else is to be installed.
    pub(super) fn image(&self, record: &ClusterRecord) -> Option<(String, Vec<String>)> {
        match &self.docker {
            Some(image) => Some((image.clone(), self.volume.clone())),
            None if self.env.is_some() || self.wheel.is_some() => None,
            None => record.image.clone().map(|image| (image, record.mounts.clone())),
        }
    }

    /// What to do.
    pub(super) fn plan(
        &self,
        (program, folder): (&Path, &Path),
        shells: Vec<HostShell>,
        record: &ClusterRecord,
        files: &Files,
    ) -> UpPlan {
        let content = match self.image(record) {
            Some((image, mounts)) => UpContent::Image { image, mounts },
            None => UpContent::Packages(PackageSource {
                python: script::python(program),
                program: program.to_owned(),
                wheel: self.wheel.clone(),
                requirements: self.env.clone(),
                lock: record.lock.clone().filter(|_| !self.upgrade),
                folder: folder.to_owned(),
            }),
        };
        let (key_file, ssh_folder) = (files.key.clone(), files.ssh_folder.clone());
        UpPlan { hosts: shells, port: self.port(record), content, key_file, ssh_folder }
    }
}

fn default_port() -> u16 {
    RONDE_AGENT_PORT.default.parse().expect("the default is a port")
}

/// The files that these commands use on this machine.
pub(super) struct Files {
    pub(super) key: PathBuf,
    pub(super) record: PathBuf,
    pub(super) ssh_folder: PathBuf,
    /// The environment, if this machine is one of the hosts.
    pub(super) environment: PathBuf,
}

impl Files {
    /// The files in the user's home directory.
    pub(super) fn here() -> Result<Files, UserError> {
        let home = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
        let (Some(home), Some(key)) = (home, key::agent_key_file()) else {
            let hint = "set it, and run this again";
            return Err(UserError::new("HOME is not set to the home directory", hint));
        };
        Ok(Files {
            record: key.with_file_name("up.json"),
            key,
            ssh_folder: home.join(".ssh"),
            environment: home.join(".local/share/ronde/env"),
        })
    }
}
