//! Where the hosts of a job come from; what each kind needs to know is a file of its own.

pub mod dialled_in;

pub use dialled_in::{DialledIn, KeyPlace};

use crate::driver::elastic::Script;
use crate::driver::start::Span;
use crate::hosts::Host;
use crate::interfaces;
use crate::reach::Way;

/// Where the hosts of a job come from.
#[derive(Clone, Debug)]
pub enum HostSource {
    /// The user has named them, once and for all.
    Listed(Vec<(Host, Way)>),
    /// A script names them, again and again.
    Script(Script),
    /// They come by themselves: their agents dial in.
    DialledIn(DialledIn),
}

impl HostSource {
    /// How far the job reaches. A script may name any host, but without a network there is only one.
    pub(crate) fn span(&self) -> Span {
        let is_here = match self {
            HostSource::Listed(hosts) => hosts.iter().all(|(_, way)| way.ties().network),
            HostSource::Script(_) => {
                let all = interfaces::all().unwrap_or_default();
                interfaces::for_others(&all).is_empty()
            }
            HostSource::DialledIn(agents) => agents.listen.ip().is_loopback(),
        };
        if is_here { Span::ThisMachine } else { Span::Hosts }
    }
}
