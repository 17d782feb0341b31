//! Where the hosts of a job come from; each kind has its own module.

pub mod dialed_in;
mod script;

use std::net::SocketAddr;

use ronde_control::event::HostSourceKind;
use ronde_control::wire::JobKey;
use tokio::net::TcpListener;

pub use dialed_in::{DialedIn, KeyPlace};
pub use script::Script;
pub(crate) use script::Search;

use crate::driver::Job;
use crate::driver::start::{self, Span};
use crate::hosts::Host;
use crate::interfaces;
use crate::reach::{ReachMethod, ReachOptions};
use crate::{LaunchError, new_key};

/// Where the hosts of a job come from.
#[derive(Clone, Debug)]
pub enum HostSource {
    /// The user listed them; the list never changes.
    Listed(Vec<(Host, ReachMethod)>),
    /// A script lists them, again and again; they are reached with these options.
    Script(Script, ReachOptions),
    /// Their agents dial in.
    DialedIn(DialedIn),
}

impl HostSource {
    /// The kind of source, as the job machine and the events name it.
    pub fn kind(&self) -> HostSourceKind {
        match self {
            HostSource::Listed(_) => HostSourceKind::List,
            HostSource::Script(..) => HostSourceKind::Script,
            HostSource::DialedIn(_) => HostSourceKind::DialedIn,
        }
    }

    /// The key of a job on these hosts, its socket, and the addresses that hosts may try.
    pub(crate) fn open(
        &self,
        job: &Job,
    ) -> Result<(JobKey, TcpListener, Vec<SocketAddr>), LaunchError> {
        if let HostSource::DialedIn(agents) = self {
            let (listener, addresses) = agents.open(&job.interfaces, &job.network)?;
            return Ok((agents.key.clone(), listener, addresses));
        }
        let (listener, addresses) =
            start::listen(self.span(), job.listen, &job.interfaces, &job.network)?;
        Ok((new_key()?, listener, addresses))
    }

    /// Whether the job leaves this machine. A script may list any host, but a machine without a
    /// network has only itself.
    pub(crate) fn span(&self) -> Span {
        let is_here = match self {
            HostSource::Listed(hosts) => return Span::of(hosts.iter().map(|(_, method)| method)),
            HostSource::Script(..) => interfaces::for_others().is_empty(),
            HostSource::DialedIn(agents) => agents.listen.ip().is_loopback(),
        };
        if is_here { Span::ThisMachine } else { Span::Hosts }
    }
}
