//! Where the hosts of a job come from; what each kind needs to know is a file of its own.

pub mod dialled_in;
mod script;

use std::net::SocketAddr;

use ronde_control::event::HostSourceKind;
use ronde_control::wire::JobKey;
use tokio::net::TcpListener;

pub use dialled_in::{DialledIn, KeyPlace};
pub use script::Script;
pub(crate) use script::Search;

use crate::driver::Job;
use crate::driver::start::{self, Span};
use crate::hosts::Host;
use crate::interfaces;
use crate::reach::{ReachMethod, ssh};
use crate::{LaunchError, new_key};

/// Where the hosts of a job come from.
#[derive(Clone, Debug)]
pub enum HostSource {
    /// The user has named them, once and for all.
    Listed(Vec<(Host, ReachMethod)>),
    /// A script names them, again and again; they are reached by ssh in this way.
    Script(Script, ssh::SshOptions),
    /// They come by themselves: their agents dial in.
    DialledIn(DialledIn),
}

impl HostSource {
    /// Its name, as the job and those who follow it know it.
    pub fn kind(&self) -> HostSourceKind {
        match self {
            HostSource::Listed(_) => HostSourceKind::List,
            HostSource::Script(..) => HostSourceKind::Script,
            HostSource::DialledIn(_) => HostSourceKind::DialledIn,
        }
    }

    /// The key of a job on such hosts, its socket, and the addresses by which hosts may try to reach it.
    pub(crate) async fn open(
        &self,
        job: &Job,
    ) -> Result<(JobKey, TcpListener, Vec<SocketAddr>), LaunchError> {
        if let HostSource::DialledIn(agents) = self {
            let (listener, addresses) = agents.open(&job.interfaces).await?;
            return Ok((agents.key.clone(), listener, addresses));
        }
        let (listener, addresses) = start::listen(self.span(), job.listen, &job.interfaces).await?;
        Ok((new_key()?, listener, addresses))
    }

    /// How far the job reaches. A script may name any host, but without a network there is only one.
    pub(crate) fn span(&self) -> Span {
        let is_here = match self {
            HostSource::Listed(hosts) => return Span::of(hosts.iter().map(|(_, method)| method)),
            HostSource::Script(..) => interfaces::for_others().is_empty(),
            HostSource::DialledIn(agents) => agents.listen.ip().is_loopback(),
        };
        if is_here { Span::ThisMachine } else { Span::Hosts }
    }
}
