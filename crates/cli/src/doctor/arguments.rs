//! The options of `ronde doctor`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use ronde_control::PortRange;
use ronde_control::settings::{self, HostNetwork};
use ronde_launch::doctor::DoctorPlan;
use ronde_launch::hosts::{self, Host};

use crate::form::seconds;
use crate::horovodrun::{about_hosts, from_hostfile};
use crate::messages::UserError;
use crate::reach::Reach;

/// Check the hosts of a job and the network between them.
#[derive(Clone, Debug, Args)]
#[command(
    override_usage = "ronde doctor [-H <HOSTS>] [OPTIONS]",
    after_help = "Exits with 0 if a job on these hosts would start, and with 1 otherwise.\n\nExamples:\n  \
                  ronde doctor\n  ronde doctor -H node-a:4,node-b:4 -p 12345\n  ronde doctor \
                  --hostfile hosts --json"
)]
pub(crate) struct Arguments {
    /// Hosts and the number of ranks on each (1 if omitted), as in `node-a:4,node-b` [default: this machine]
    #[arg(short = 'H', long, value_name = "HOSTS")]
    hosts: Option<String>,

    #[arg(conflicts_with = "hosts")]
    hostfile: Option<PathBuf>,

    #[command(flatten)]
    reach: Reach,

    network_interfaces: Vec<String>,

    port_range: Option<PortRange>,

    /// How long to wait for each host to respond, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 3, value_parser = seconds)]
    start_timeout: u64,

    /// Print JSON instead of tables
    #[arg(long)]
    pub(super) json: bool,

    pub(crate) verbose: bool,
}

impl Arguments {
    /// The hosts to check, and how to reach them.
    pub(super) fn plan(&self, program: &Path) -> Result<DoctorPlan, UserError> {
        let hosts = match (&self.hosts, &self.hostfile) {
            (Some(text), _) => hosts::parse(text).map_err(|error| about_hosts(&error))?,
            (None, Some(path)) => from_hostfile(path)?,
            (None, None) => vec![Host::local(1)],
        };
        let count = hosts.iter().fold(0u32, |sum, host| sum.saturating_add(host.slots));
        let slots = hosts::assign(&hosts, count).map_err(|error| about_hosts(&error))?;
        let limit = Duration::from_secs(self.start_timeout);
        // `options` subtracts two seconds, too much for a limit of three, so this adds one back.
        let reach = self.reach.options(limit + Duration::from_secs(1))?;
        let methods = hosts::methods(&hosts, &slots, &hosts::hostname(), &reach);
        Ok(DoctorPlan {
            hosts: methods
                .into_iter()
                .map(|(host, method)| (host.name, method, host.slots))
                .collect(),
            program: program.to_owned(),
            interfaces: self.network_interfaces.clone(),
            network: self.network()?,
            limit,
        })
    }

    /// How this machine can be reached, and the ports that hosts may use.
    fn network(&self) -> Result<HostNetwork, UserError> {
        let network = settings::host_network(|name| std::env::var(name).ok())?;
        let ports = self.port_range.clone().unwrap_or(network.ports);
        Ok(HostNetwork { ports, ..network })
    }
}
