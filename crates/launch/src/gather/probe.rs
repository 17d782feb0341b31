//! Asking at an invitation's addresses who is there, before joining.
//!
//! Only somebody who holds the key can answer the handshake, so neither a port that another program
//! has by now nor an address that means another machine here is mistaken for rank 0.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use ronde_control::launcher::Invitation;
use ronde_control::wire::handshake::{Initiator, envelope_length};
use ronde_control::wire::{Callee, JobKey};

/// How long one address may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// The first address at which somebody holds the key, or what went wrong at each.
pub(super) fn probe(invitation: &Invitation) -> Result<SocketAddr, String> {
    let mut failures = Vec::new();
    for address in &invitation.addresses {
        match shake_hands(*address, &invitation.key) {
            Ok(()) => return Ok(*address),
            Err(error) => failures.push(format!("{address}: {error}")),
        }
    }
    match failures.is_empty() {
        true => Err("rank 0 has no address".into()),
        false => Err(format!("nobody with the job's key answers at {}", failures.join(", "))),
    }
}

fn shake_hands(address: SocketAddr, key: &JobKey) -> io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let (initiator, hello) = Initiator::start(key, Callee::Launcher);
    stream.write_all(&hello)?;
    let mut header = [0; 2];
    stream.read_exact(&mut header)?;
    let mut answer = vec![0; envelope_length(header).map_err(io::Error::other)?];
    stream.read_exact(&mut answer)?;
    initiator.finish(&answer).map_err(io::Error::other)?;
    Ok(())
}
