//! `ronde hosts dns NAME`: the hosts behind a name whose standing agents answer, as a discovery
//! script prints them. A headless service of Kubernetes has such a name.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::time::Duration;

use clap::{Args, Subcommand};
use ronde_control::wire::standing::StandingInfo;
use ronde_launch::reach::AgentAccess;
use ronde_launch::reach::standing::{self, StandingAgent};

use crate::horovodrun::{print_stdout, report_error};
use crate::messages::{USAGE, UserError, print_stderr};
use crate::processes;
use crate::reach::Reach;

/// List hosts, for `--hostfile` and `--host-discovery-script`
#[derive(Clone, Debug, Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    source: HostListing,
}

#[derive(Clone, Debug, Subcommand)]
enum HostListing {
    /// Hosts behind a name, such as that of a headless service, whose standing agents answer
    ///
    /// Prints one line per host, as in `node-a:4`. A host that does not answer is left out.
    Dns(Box<DnsArguments>),
}

#[derive(Clone, Debug, Args)]
struct DnsArguments {
    /// The name to look up
    name: String,

    /// Port of the agents; also written `--agent-port` [default: RONDE_AGENT_PORT, or 29508]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,

    /// Number of ranks on each host [default: as its agent says]
    #[arg(long, value_name = "N", value_parser = processes::number)]
    slots: Option<u32>,

    agent_port: Option<u16>,

    agent_key_file: Option<std::path::PathBuf>,

    /// Say which hosts do not answer
    #[arg(long)]
    verbose: bool,
}

/// Runs the command and returns its exit code.
pub(crate) fn run(arguments: &Arguments) -> u8 {
    let HostListing::Dns(arguments) = &arguments.source;
    let port = arguments.port.or(arguments.agent_port);
    let reach = Reach::for_agents(port, arguments.agent_key_file.clone());
    let access = match reach.agents(Duration::ZERO) {
        Ok(access) => access,
        Err(error) => return report_error(&error, USAGE),
    };
    let addresses = match addresses(&arguments.name) {
        Ok(addresses) => addresses,
        Err(error) => {
            let hint = "check its spelling; the name of a service is known once a host of it runs";
            let error = format!("cannot resolve `{}`: {error}", arguments.name);
            return report_error(&UserError::new(error, hint), 1);
        }
    };
    print_stdout(&lines(arguments, &access, addresses))
}

/// All addresses of a name, in a fixed order.
fn addresses(name: &str) -> io::Result<BTreeSet<IpAddr>> {
    Ok((name, 0).to_socket_addrs()?.map(|address| address.ip().to_canonical()).collect())
}

fn lines(arguments: &DnsArguments, access: &AgentAccess, addresses: BTreeSet<IpAddr>) -> String {
    let agents: Vec<StandingAgent> =
        addresses.iter().map(|address| access.to(&address.to_string())).collect();
    let mut text = String::new();
    for (address, answer) in addresses.into_iter().zip(standing::survey(agents)) {
        match answer {
            Ok(info) => {
                let slots = arguments.slots.unwrap_or(info.slots);
                text += &format!("{}:{slots}\n", shown(address, &info, &arguments.name));
            }
            Err(failure) if arguments.verbose => print_stderr(&format!("note: {failure}")),
            Err(_) => {}
        }
    }
    text
}

/// A host's own name, if it leads to the same address: it stays when a pod is restarted and gets
/// another address.
fn shown(address: IpAddr, info: &StandingInfo, service: &str) -> String {
    let own = format!("{}.{service}", info.name);
    match addresses(&own) {
        Ok(found) if found.len() == 1 && found.contains(&address) => own,
        _ if address.is_ipv6() => format!("[{address}]"),
        _ => address.to_string(),
    }
}
