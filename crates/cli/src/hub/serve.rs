//! `ronde hub serve`.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use clap::Args;
use ronde_hub::{Certificate, HubConfig, HubError};
use ronde_launch::{hosts, interfaces, signals};
use tokio::net::TcpListener;

use super::{HubPlace, HubProblem, block_on};
use crate::agents::address;
use crate::messages::print_stderr;

/// The port of hubs.
pub(super) const PORT: u16 = 7433;
/// In the hub's folder: where invitations say that it is.
const ADDRESS: &str = "address";

#[derive(Clone, Debug, Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    place: HubPlace,

    /// Where to listen, as in `:7433` or `10.0.0.1:7433` [default: every address of this machine, port 7433]
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = address)]
    listen: Option<SocketAddr>,

    /// Where people reach the hub, as in `hub.example.org:7433`, for invitations [default: an address of this machine]
    #[arg(long, value_name = "HOST:PORT")]
    address: Option<String>,
}

/// Serves until SIGINT or SIGTERM.
pub(super) fn run(arguments: &Arguments) -> Result<(), HubProblem> {
    let folder = arguments.place.folder()?;
    let config = HubConfig { folder, database: arguments.place.database.clone() };
    block_on(async {
        let everywhere = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), PORT);
        let listen = arguments.listen.unwrap_or(everywhere);
        let cannot = |error: io::Error| {
            let hint = "stop what listens there, or choose another port with `--listen :PORT`";
            HubProblem::failed(format!("cannot listen on {listen}: {error}"), hint)
        };
        let listener = TcpListener::bind(listen).await.map_err(cannot)?;
        let bound = listener.local_addr().map_err(cannot)?;
        let address = arguments.address.clone().unwrap_or_else(|| reachable(bound));
        let certificate = Certificate::in_folder(&config.folder).map_err(explained)?;
        remember(&config.folder, &address)?;
        let mut signals = signals::listen().map_err(|error| {
            HubProblem::failed(error, "check the limits of this machine (`ulimit -a`)")
        })?;
        print_stderr(&format!(
            "[ronde] the hub is at {address}, certificate {}\n[ronde] `ronde hub invite` lets people in",
            certificate.fingerprint()
        ));
        let shutdown = async move {
            signals.next().await;
        };
        ronde_hub::serve(listener, &config, shutdown).await.map_err(explained)
    })
}

/// Where the hub of this folder says that it is.
pub(super) fn remembered(folder: &Path) -> Option<String> {
    let text = fs::read_to_string(folder.join(ADDRESS)).ok()?;
    Some(text.trim().to_owned()).filter(|address| !address.is_empty())
}

fn remember(folder: &Path, address: &str) -> Result<(), HubProblem> {
    let path = folder.join(ADDRESS);
    fs::write(&path, format!("{address}\n")).map_err(|error| {
        let hint = "check the free space and the permissions of that folder";
        HubProblem::failed(format!("cannot write `{}`: {error}", path.display()), hint)
    })
}

/// Where others probably reach what listens there.
fn reachable(bound: SocketAddr) -> String {
    if !bound.ip().is_unspecified() {
        return bound.to_string();
    }
    let others = interfaces::for_others();
    let mut addresses = others.iter().map(|address| address.address);
    let first = addresses.find(IpAddr::is_ipv4).or(addresses.next());
    match first {
        Some(address) => SocketAddr::new(address, bound.port()).to_string(),
        None => format!("{}:{}", hosts::hostname(), bound.port()),
    }
}

/// The error of a hub, with what to do.
pub(super) fn explained(error: HubError) -> HubProblem {
    let hint = match &error {
        HubError::Folder { .. } => "choose a folder that you can write to, with `--folder DIR`",
        HubError::Certificate { .. } => {
            "restore it from a back-up; if it is gone for good, move the file away: a new one is \
             made, and everybody needs a new invitation"
        }
        HubError::Database(_) => "check that the database runs and lets this user in",
        HubError::Newer { .. } => "install a newer version of Ronde on this machine",
        HubError::Refused(_) | HubError::Invalid(_) => "ask whoever runs the hub",
    };
    HubProblem::failed(error, hint)
}
