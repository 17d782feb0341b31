//! A connection between the launcher and the agent of another host that shows when one of the two
//! hosts is gone.
//!
//! Both ends send an empty frame every [`BEAT`], and ask their kernel to give the connection up once
//! nothing was acknowledged for [`SILENCE`]. Beats are data, so a lost packet is sent again in time;
//! acknowledgements come from the other kernel, so a host that is merely busy, or a process that is
//! stopped, is not taken for dead.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use ronde_control::wire::{Callee, Greeting, JobKey};
use rustix::net::sockopt::set_tcp_user_timeout;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::wire::{SealedConnection, call, read_sealed};

/// How often each end says that it is there.
const BEAT: Duration = Duration::from_millis(250);

/// How long nothing may be acknowledged.
const SILENCE: Duration = Duration::from_millis(1300);

/// How long reaching the launcher may take; it has been reached a moment ago.
const TIME_LIMIT: Duration = Duration::from_secs(5);

/// Reaches the launcher and holds on until the connection breaks.
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

/// Holds an open connection until it breaks, and says how.
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
