//! Checks an invitation's addresses before joining.
//!
//! Only a process that holds the key can complete the handshake, so neither a port that another
//! program uses by now nor an address that means another machine here is mistaken for rank 0.

use std::net::SocketAddr;
use std::time::Duration;

use ronde_control::launcher::Invitation;

use crate::wire::dial;

/// Time limit for one address.
const TIME_LIMIT: Duration = Duration::from_secs(2);

/// The first address where a process with the key answers, or what went wrong at each.
pub(super) fn probe(invitation: &Invitation) -> Result<SocketAddr, String> {
    let mut failures = Vec::new();
    for address in &invitation.addresses {
        match dial(*address, &invitation.key, TIME_LIMIT) {
            Ok(_) => return Ok(*address),
            Err(error) => failures.push(format!("{address}: {error}")),
        }
    }
    match failures.is_empty() {
        true => Err("rank 0 has no address".into()),
        false => Err(format!("no process with the job key answers at {}", failures.join(", "))),
    }
}
