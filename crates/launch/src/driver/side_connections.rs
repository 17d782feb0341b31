//! Connections to the rendezvous that do not join a world; each is served by its own task, which
//! ends with the driver.

use std::sync::Arc;

use ronde_control::wire::Greeting;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::remote_call::{self, RemoteCall};
use super::{DriverInput, watchers};
use crate::wire::SealedConnection;

/// The side connections of a job.
pub(super) struct SideConnections {
    remote_call: Option<Arc<RemoteCall>>,
    news: mpsc::Sender<DriverInput>,
    tasks: JoinSet<()>,
}

impl SideConnections {
    /// Serves calls for `function`, if there is one; `ranks` is the number of ranks, if it is
    /// known.
    pub(super) fn new(
        function: Option<Arc<[u8]>>,
        ranks: Option<usize>,
        news: mpsc::Sender<DriverInput>,
    ) -> SideConnections {
        let remote_call = function.map(|function| RemoteCall::new(function, ranks));
        SideConnections { remote_call: remote_call.map(Arc::new), news, tasks: JoinSet::new() }
    }

    /// Serves an authenticated connection.
    pub(super) fn receive(&mut self, sealed: SealedConnection, greeting: Greeting) {
        // Drop the tasks that have finished.
        while self.tasks.try_join_next().is_some() {}
        let (remote_call, news) = (self.remote_call.clone(), self.news.clone());
        self.tasks.spawn(async move {
            let served = match greeting {
                Greeting::Watch { version } => watchers::serve(sealed, &version, &news).await,
                remote_calls => {
                    remote_call::serve(sealed, remote_calls, remote_call.as_deref(), &news).await
                }
            };
            if let Err(error) = served {
                tracing::debug!(%error, "a side connection broke");
            }
        });
    }
}
