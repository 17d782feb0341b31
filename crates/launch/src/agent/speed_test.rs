//! Speed test between two agents, on a connection that starts with the handshake.
//!
//! 1. The caller sends `Echo` several times and times each answer.
//! 2. It sends `Load`, then zeros for a while, unencrypted: we measure the network, not the cipher.
//! 3. The peer counts the bytes, leaving out the first quarter of the time, in which a connection
//!    is still speeding up, and answers with what it `Carried`.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ronde_control::wire::agent::{AgentToAgent, Rate};
use ronde_control::wire::{Callee, JobKey};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::wire::{SealedConnection, call};

/// Number of echoes to time.
const ECHOES: usize = 20;

/// Largest message between agents, in bytes.
const LONGEST: usize = 128;

/// Longest load that a caller may send, and the time limit for everything else.
const LONGEST_LOAD: Duration = Duration::from_secs(2);
const TIME_LIMIT: Duration = Duration::from_secs(2);

/// Buffer size for sending and receiving.
const PIECE: usize = 256 << 10;

/// The calling side.
pub(super) async fn measure(
    key: &JobKey,
    callee: Callee,
    address: SocketAddr,
    load: Duration,
) -> Result<Rate, String> {
    let load = load.min(LONGEST_LOAD);
    let testing = async {
        let stream = TcpStream::connect(address).await?;
        run(call(stream, key, callee).await?, load).await
    };
    match timeout(load + TIME_LIMIT, testing).await {
        Ok(Ok(rate)) => Ok(rate),
        Ok(Err(error)) => Err(format!("{address}: {error}")),
        Err(_) => Err(format!("{address} timed out")),
    }
}

async fn run(mut sealed: SealedConnection, load: Duration) -> io::Result<Rate> {
    let mut trips = Vec::with_capacity(ECHOES);
    for _ in 0..ECHOES {
        let start = Instant::now();
        sealed.say(&AgentToAgent::Echo).await?;
        if sealed.hear(LONGEST).await? != Some(AgentToAgent::Echo) {
            return Err(io::Error::other("the echo did not come back"));
        }
        trips.push(start.elapsed().as_micros().min(1 << 31) as u32);
    }
    trips.sort_unstable();
    sealed.say(&AgentToAgent::Load { millis: load.as_millis() as u32 }).await?;
    let (piece, start) = (vec![0; PIECE], Instant::now());
    while start.elapsed() < load {
        sealed.stream.write_all(&piece).await?;
    }
    sealed.stream.shutdown().await?;
    match sealed.hear(LONGEST).await? {
        Some(AgentToAgent::Carried { bytes, micros }) => Ok(Rate {
            bytes_per_second: (u128::from(bytes) * 1_000_000 / u128::from(micros.max(1))) as u64,
            round_trip_micros: trips[ECHOES / 2],
        }),
        _ => Err(io::Error::other("the peer did not report what it received")),
    }
}

/// The answering side. A caller that only checks reachability hangs up at once.
pub(super) async fn answer(mut sealed: SealedConnection) -> io::Result<()> {
    // One more message than a caller sends, so that no peer can keep us busy forever.
    for _ in 0..=ECHOES {
        match sealed.hear(LONGEST).await? {
            Some(AgentToAgent::Echo) => sealed.say(&AgentToAgent::Echo).await?,
            Some(AgentToAgent::Load { millis }) => {
                let load = Duration::from_millis(millis.into()).min(LONGEST_LOAD);
                let carried = timeout(load + TIME_LIMIT, count(&mut sealed.stream, load)).await??;
                sealed.say(&carried).await?;
                // The caller hangs up after reading the result.
                let _ = timeout(TIME_LIMIT, sealed.hear::<AgentToAgent>(LONGEST)).await;
                return Ok(());
            }
            _ => return Ok(()),
        }
    }
    Ok(())
}

async fn count(stream: &mut TcpStream, load: Duration) -> io::Result<AgentToAgent> {
    let mut piece = vec![0; PIECE];
    let (mut bytes, mut since) = (0u64, Instant::now());
    let warm = since + load / 4;
    let mut is_warm = false;
    loop {
        let count = stream.read(&mut piece).await?;
        let now = Instant::now();
        if count == 0 {
            let micros = now.duration_since(since).as_micros() as u64;
            return Ok(AgentToAgent::Carried { bytes, micros });
        }
        bytes += count as u64;
        if !is_warm && now >= warm {
            (is_warm, bytes, since) = (true, 0, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    async fn listener() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    #[tokio::test]
    async fn a_path_is_measured_only_with_the_right_key() {
        let key = JobKey::from_entropy([1; 32]);
        let (listener, address) = listener().await;
        let callee = Callee::Host(1);
        let other = key.clone();
        let answering = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                if let Ok(sealed) = crate::wire::answer(stream, &other, callee).await {
                    answer(sealed).await.unwrap();
                }
            }
        });
        let rate = measure(&key, callee, address, Duration::from_millis(40)).await.unwrap();
        assert!(rate.bytes_per_second > 1_000_000, "{rate:?}");
        assert!(rate.round_trip_micros > 0, "{rate:?}");
        let wrong_key = JobKey::from_entropy([2; 32]);
        assert!(measure(&wrong_key, callee, address, Duration::from_millis(40)).await.is_err());
        answering.abort();
    }

    #[tokio::test]
    async fn a_peer_that_hangs_times_out() {
        let (listener, address) = listener().await;
        let key = JobKey::from_entropy([1; 32]);
        let hanging = tokio::spawn(async move {
            let _connection = listener.accept().await;
            std::future::pending::<()>().await;
        });
        let start = Instant::now();
        let error = measure(&key, Callee::Host(1), address, Duration::from_millis(10)).await;
        assert_eq!(error, Err(format!("{address} timed out")));
        assert!(start.elapsed() < TIME_LIMIT * 2);
        hanging.abort();
    }
}
