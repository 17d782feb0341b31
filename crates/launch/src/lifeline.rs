//! A connection between the launcher and the agent of another host that breaks when either host is
//! gone.
//!
//! Both ends send an empty frame every [`BEAT`] and ask their kernel to drop the connection once
//! nothing was acknowledged for [`SILENCE`]. Beats are data, so a lost packet is retransmitted in
//! time; the peer's kernel sends the acknowledgements, so a busy host or a stopped process is not
//! taken for dead.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use ronde_control::wire::{Callee, Greeting, JobKey};
use rustix::net::sockopt::set_tcp_user_timeout;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::wire::{SealedConnection, call, read_sealed};

/// Interval between the beats of each end.
const BEAT: Duration = Duration::from_millis(250);

/// How long data may stay unacknowledged.
const SILENCE: Duration = Duration::from_millis(1300);

/// How long connecting to the launcher may take; it was reachable a moment ago.
const TIME_LIMIT: Duration = Duration::from_secs(5);

/// Connects to the launcher and keeps the connection until it breaks.
pub(crate) async fn hold_on(addresses: Vec<SocketAddr>, key: JobKey, host: u32) -> io::Error {
    let mut last = io::Error::other("the launcher has no address");
    for address in addresses {
        let reaching = async {
            let stream = TcpStream::connect(address).await?;
            let mut sealed = call(stream, &key, Callee::Launcher).await?;
            sealed.say(&Greeting::Lifeline { host }).await?;
            Ok(sealed)
        };
        match timeout(TIME_LIMIT, reaching).await {
            Ok(Ok(sealed)) => return hold(sealed).await,
            Ok(Err(error)) => last = error,
            Err(_) => last = io::ErrorKind::TimedOut.into(),
        }
    }
    last
}

/// Keeps an open connection until it breaks; returns the error.
pub(crate) async fn hold(sealed: SealedConnection) -> io::Error {
    let SealedConnection { stream, mut sealer, mut opener } = sealed;
    if let Err(error) = set_tcp_user_timeout(&stream, SILENCE.as_millis() as u32) {
        return error.into();
    }
    let (mut input, mut output) = stream.into_split();
    let beating = async {
        let mut beats = interval(BEAT);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            beats.tick().await;
            if let Err(error) = output.write_all(&sealer.seal(b"")).await {
                return error;
            }
        }
    };
    let listening = async {
        loop {
            match read_sealed(&mut input, &mut opener, 64).await {
                Ok(Some(_)) => {}
                Ok(None) => return io::ErrorKind::UnexpectedEof.into(),
                Err(error) => return error,
            }
        }
    };
    tokio::select! {
        error = beating => error,
        error = listening => error,
    }
}
