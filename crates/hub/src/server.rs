//! Connections: TLS, who is calling, and limits. A stranger gets one of a bounded number of places for
//! a bounded time, and answers of bounded size; nothing else.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use ronde_control::hub::api::PROOF_LABEL;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;

use crate::door::{Door, DoorPlace};
use crate::{Certificate, HubError};

/// How long the head of each request may take.
const REQUEST_HEAD: Duration = Duration::from_secs(60);
/// How long requests may take to end when the hub stops.
const FAREWELL: Duration = Duration::from_secs(5);
/// When accepting fails, for example because files have run out.
const PAUSE: Duration = Duration::from_millis(100);

/// A TLS connection, as its requests know it.
#[derive(Clone)]
pub(crate) struct TlsConnection {
    /// What only its two ends know; a caller signs it to say who they are.
    pub(crate) proof: [u8; 32],
    /// Where it waits until its caller is known.
    pub(crate) place: Arc<DoorPlace>,
}

/// Serves connections until `shutdown` completes, then lets requests end.
pub(crate) async fn run(
    listener: TcpListener,
    certificate: &Certificate,
    router: Router,
    shutdown: impl Future<Output = ()>,
) -> Result<(), HubError> {
    let (acceptor, door) = (TlsAcceptor::from(certificate.server_config()?), Door::new());
    let (stop, stopped) = watch::channel(());
    let (mut connections, mut shutdown) = (JoinSet::new(), pin!(shutdown));
    loop {
        let (opens, wakeup) = door.tick();
        tokio::select! {
            accepted = accept(&listener, opens) => match accepted {
                Ok(stream) => door.enter(|place| {
                    let (acceptor, router) = (acceptor.clone(), router.clone());
                    connections.spawn(connection(stream, acceptor, (router, place), stopped.clone()))
                }),
                Err(error) => {
                    tracing::warn!("cannot accept a connection: {error}");
                    sleep(PAUSE).await;
                }
            },
            () = sleep_until(wakeup.unwrap_or(opens)), if wakeup.is_some() => {}
            Some(_) = connections.join_next() => {}
            () = &mut shutdown => break,
        }
    }
    drop((listener, stopped));
    stop.send_replace(());
    let all = async { while connections.join_next().await.is_some() {} };
    // Whatever is left is cut off when the set is dropped.
    let _ = timeout(FAREWELL, all).await;
    Ok(())
}

async fn accept(listener: &TcpListener, opens: Instant) -> io::Result<TcpStream> {
    sleep_until(opens).await;
    listener.accept().await.map(|(stream, _)| stream)
}

/// One connection, from its handshake to its end.
async fn connection(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    (router, place): (Router, Arc<DoorPlace>),
    mut stopped: watch::Receiver<()>,
) {
    let stream = tokio::select! {
        accepted = acceptor.accept(stream) => accepted,
        _ = stopped.changed() => return,
    };
    let Ok(stream) = stream else { return };
    place.begun();
    let proof = stream.get_ref().1.export_keying_material([0; 32], PROOF_LABEL, None);
    let Ok(proof) = proof else { return };
    let router = router.layer(axum::Extension(TlsConnection { proof, place }));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_HEAD)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
        .with_upgrades();
    let mut connection = pin!(connection);
    tokio::select! {
        ended = &mut connection => {
            if let Err(error) = ended {
                tracing::debug!("a connection has ended: {error}");
            }
        }
        _ = stopped.changed() => {
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
    }
}
