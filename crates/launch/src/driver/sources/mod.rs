//! Where the hosts of a job come from, a file for each way that is more than a list.

mod script;

use ronde_control::event::Source;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

pub use script::Script;

use super::start::Span;
use super::{Job, News};
use crate::hosts::Host;
use crate::interfaces;
use crate::reach::{Way, ssh};

/// Where the hosts of a job come from.
#[derive(Clone, Debug)]
pub enum HostSource {
    /// The user has named them.
    Listed(Vec<(Host, Way)>),
    /// A script names them, again and again; they are reached by ssh in this way.
    Script(Script, ssh::Options),
}

impl HostSource {
    /// Its name, as the job and those who follow it know it.
    pub fn kind(&self) -> Source {
        match self {
            HostSource::Listed(_) => Source::List,
            HostSource::Script(..) => Source::Script,
        }
    }

    /// How far the job reaches. A script may name any host, but without a network there is only one.
    pub(super) fn span(&self) -> Span {
        let alone = match self {
            HostSource::Listed(hosts) => hosts.iter().all(|(_, way)| way.ties().network),
            HostSource::Script(..) => {
                interfaces::for_others(&interfaces::all().unwrap_or_default()).is_empty()
            }
        };
        if alone { Span::ThisMachine } else { Span::Hosts }
    }

    /// Begins to look for hosts, for whom the driver will get news; those are given that are known.
    pub(super) fn begin(
        &self,
        job: &Job,
        search: &mut JoinSet<()>,
        news: &mpsc::Sender<News>,
    ) -> Option<Vec<(Host, Way)>> {
        match self {
            HostSource::Listed(hosts) => Some(hosts.clone()),
            HostSource::Script(script, ssh) => {
                search.spawn(script::search(script, ssh, job, news));
                None
            }
        }
    }
}
