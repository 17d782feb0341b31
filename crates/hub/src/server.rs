//! Connections: TLS, who is calling, and limits. A stranger gets a handshake with a time limit, one
//! of a bounded number of places, and answers of bounded size; nothing else.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use ronde_control::hub::api::PROOF_LABEL;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::{Certificate, HubError};

/// More connections than that wait to be accepted.
const CONNECTIONS: usize = 4096;
/// How long the handshake may take, and then the head of each request.
const HANDSHAKE: Duration = Duration::from_secs(10);
const REQUEST_HEAD: Duration = Duration::from_secs(60);
/// How long requests may take to end when the hub stops.
const FAREWELL: Duration = Duration::from_secs(5);
/// When accepting fails, for example because files have run out.
const PAUSE: Duration = Duration::from_millis(100);

/// What only the two ends of a TLS connection know; a caller signs it to say who they are.
#[derive(Clone, Copy)]
pub(crate) struct ConnectionProof(pub(crate) [u8; 32]);

/// Serves connections until `shutdown` completes, then lets requests end.
pub(crate) async fn run(
    listener: TcpListener,
    certificate: &Certificate,
    router: Router,
    shutdown: impl Future<Output = ()>,
) -> Result<(), HubError> {
    let acceptor = TlsAcceptor::from(certificate.server_config()?);
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let (stop, stopped) = watch::channel(());
    let (mut connections, mut shutdown) = (JoinSet::new(), pin!(shutdown));
    loop {
        let accepted = async {
            let place = places.clone().acquire_owned().await;
            (place, listener.accept().await)
        };
        tokio::select! {
            (place, accepted) = accepted => match accepted {
                Ok((stream, _)) => {
                    let (acceptor, router) = (acceptor.clone(), router.clone());
                    let stopped = stopped.clone();
                    connections.spawn(async move {
                        connection(stream, acceptor, router, stopped).await;
                        drop(place);
                    });
                }
                Err(error) => {
                    tracing::warn!("cannot accept a connection: {error}");
                    sleep(PAUSE).await;
                }
            },
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

/// One connection, from its handshake to its end.
async fn connection(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    router: Router,
    mut stopped: watch::Receiver<()>,
) {
    let stream = tokio::select! {
        accepted = timeout(HANDSHAKE, acceptor.accept(stream)) => accepted,
        _ = stopped.changed() => return,
    };
    let Ok(Ok(stream)) = stream else { return };
    let proof = stream.get_ref().1.export_keying_material([0; 32], PROOF_LABEL, None);
    let Ok(proof) = proof else { return };
    let router = router.layer(axum::Extension(ConnectionProof(proof)));
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
