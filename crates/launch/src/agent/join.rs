//! An agent that nobody of the job has started: it dials the launcher, offers its host, and once it is
//! taken it is an agent like any other, whose pipe is that connection.
//!
//! It may be there before the launcher is, so it tries again until its time is up. What would be the
//! same the next time ends it at once: a refusal, or somebody who does not hold the key.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::Duration;

use ronde_control::wire::agent::OfferAnswer;
use ronde_control::wire::{self, Callee, Greeting, JobKey};
use ronde_control::{VERSION, printable};
use rustix::process::setsid;
use serde::{Deserialize, Serialize};
use tokio::net::{TcpStream, lookup_host};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep, timeout};

use super::{AgentExit, DRAIN, TERMINATE, live, run};
use crate::reach::HostProblem;
use crate::stream::{self, ByteStream};
use crate::wire::{SealedConnection, call};

/// How long one address may take to answer, and to prove itself.
const CALL: Duration = Duration::from_secs(5);

/// How long a launcher that has proved itself may take to answer an offer.
const ANSWER: Duration = Duration::from_secs(30);

/// Between two rounds of calls.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// So many times somebody without the key is called before it is believed that nobody else will come.
const STRANGERS: u32 = 3;

/// The longest answer to an offer.
const LONGEST_ANSWER: usize = 4096;

/// An offer that is to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentOffer {
    /// Where the launcher may be, each as `host:port`.
    pub addresses: Vec<String>,
    /// What this host is to be called.
    pub name: String,
    /// How many ranks it can take.
    pub slots: u32,
    /// How long to try.
    pub time_limit: Duration,
}

/// The agent as a process of its own, whose standard input holds the offering and the key.
pub fn main(program: &Path, mark: &OsStr, parent: &OsStr) -> u8 {
    // Whoever signals the group of the guardian means the guardian, who passes it on.
    let _ = setsid();
    let mut words = Vec::new();
    let read = io::stdin().read_to_end(&mut words);
    let Ok((agent_offer, key)) = wire::decode::<(AgentOffer, JobKey)>(&words) else {
        tracing::error!(?read, "the guardian has not said what to join");
        return 1;
    };
    let mark = mark.to_string_lossy().into_owned();
    match live(parent, take_part((&agent_offer, &key), program, mark)) {
        None => 1,
        Some(Ok(AgentExit::Dismissed)) => 0,
        Some(Ok(AgentExit::Stopped)) => 128 + TERMINATE,
        Some(Ok(AgentExit::Abandoned)) => complain(&HostProblem::new(
            "the launcher has gone, or cannot be reached any more",
            "the ranks here were ended; see what the launcher said",
        )),
        Some(Err(trouble)) => complain(&trouble),
    }
}

async fn take_part(
    (agent_offer, key): (&AgentOffer, &JobKey),
    program: &Path,
    mark: String,
) -> Result<AgentExit, HostProblem> {
    let broken = |error: io::Error| {
        let hint = "check the limits of this machine (`ulimit -a`)";
        HostProblem::new(format!("the agent failed: {error}"), hint)
    };
    let mut stop = signal(SignalKind::user_defined1()).map_err(broken)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(broken)?;
    let sealed = tokio::select! {
        sealed = dial(agent_offer, key, &mark) => sealed?,
        _ = stop.recv() => return Ok(AgentExit::Stopped),
        _ = terminate.recv() => return Ok(AgentExit::Stopped),
    };
    let ByteStream { reader, writer, sending, .. } = stream::open(sealed, None).map_err(broken)?;
    let agent_exit = run((reader, writer), program.to_owned(), mark).await.map_err(broken)?;
    // The last news are on their way.
    let _ = timeout(DRAIN, sending).await;
    Ok(agent_exit)
}

/// What is in the way of an offer at an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum OfferFailure {
    #[error("cannot connect to {0} ({1})")]
    Nobody(String, String),
    #[error("the process listening at {0} has a different job key")]
    Stranger(String),
    #[error("the launcher at {0} does not take this agent: {1}")]
    Refused(String, String),
    /// It has hung up instead of answering.
    #[error("the launcher at {0} hung up on this agent")]
    Silent(String),
}

async fn dial(
    agent_offer: &AgentOffer,
    key: &JobKey,
    mark: &str,
) -> Result<SealedConnection, HostProblem> {
    let end = Instant::now() + agent_offer.time_limit;
    let (mut pause, mut strangers, mut told) = (FIRST_PAUSE, 0, false);
    loop {
        let mut seen = Vec::new();
        for address in &agent_offer.addresses {
            match offer(address, agent_offer, key, mark).await {
                Ok(sealed) => {
                    let AgentOffer { name, slots, .. } = agent_offer;
                    note(&format!("`{name}` is part of a job, with {slots} slots, for {address}"));
                    return Ok(sealed);
                }
                Err(obstacle) => seen.push(obstacle),
            }
        }
        let is_stranger = |why: &OfferFailure| matches!(why, OfferFailure::Stranger(_));
        strangers = if seen.iter().any(is_stranger) { strangers + 1 } else { 0 };
        let is_final = |why: &OfferFailure| matches!(why, OfferFailure::Refused(..));
        if strangers >= STRANGERS || seen.iter().any(is_final) || Instant::now() + pause >= end {
            return Err(explain(&seen, agent_offer.time_limit));
        }
        if !std::mem::replace(&mut told, true) {
            note(&format!("waiting for the launcher: {}", listed(&seen)));
        }
        sleep(pause).await;
        pause = (2 * pause).min(LONGEST_PAUSE);
    }
}

async fn offer(
    address: &str,
    agent_offer: &AgentOffer,
    key: &JobKey,
    mark: &str,
) -> Result<SealedConnection, OfferFailure> {
    let stream = connect(address).await?;
    let calling = timeout(CALL, call(stream, key, Callee::Launcher)).await;
    let mut sealed = match calling {
        Ok(Ok(sealed)) => sealed,
        // Whoever holds another key hangs up as soon as it has heard us.
        Ok(Err(_)) => return Err(OfferFailure::Stranger(address.into())),
        Err(_) => {
            return Err(OfferFailure::Nobody(address.into(), "it does not say anything".into()));
        }
    };
    let greeting = Greeting::Agent {
        version: VERSION.into(),
        name: agent_offer.name.clone(),
        slots: agent_offer.slots,
        mark: mark.to_owned(),
    };
    let asking = async {
        sealed.say(&greeting).await?;
        sealed.hear(LONGEST_ANSWER).await
    };
    match timeout(ANSWER, asking).await {
        Ok(Ok(Some(OfferAnswer::Taken))) => Ok(sealed),
        Ok(Ok(Some(OfferAnswer::Refused { reason }))) => {
            Err(OfferFailure::Refused(address.into(), reason))
        }
        _ => Err(OfferFailure::Silent(address.into())),
    }
}

/// Reaches the first of the addresses that a name has.
async fn connect(name: &str) -> Result<TcpStream, OfferFailure> {
    let nobody = |why: String| OfferFailure::Nobody(name.to_owned(), why);
    let found = lookup_host(name).await.map_err(|error| nobody(error.to_string()))?;
    let mut last = nobody("the name has no address".into());
    for address in found {
        match timeout(CALL, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = nobody(error.to_string()),
            Err(_) => last = nobody("it does not answer".into()),
        }
    }
    Err(last)
}

fn listed(seen: &[OfferFailure]) -> String {
    seen.iter().map(OfferFailure::to_string).collect::<Vec<_>>().join("; ")
}

/// What is certain is told rather than what may change.
fn explain(seen: &[OfferFailure], time_limit: Duration) -> HostProblem {
    if let Some(refused) = seen.iter().find(|why| matches!(why, OfferFailure::Refused(..))) {
        return HostProblem::new(
            refused.to_string(),
            "start the job with `horovodrun --agents`, and have the same version of Ronde on both \
             sides",
        );
    }
    if let Some(stranger) = seen.iter().find(|why| matches!(why, OfferFailure::Stranger(_))) {
        return HostProblem::new(
            stranger.to_string(),
            "give it the key of the job (`--key-file`, `--key-fd` or RONDE_JOB_KEY), and see whether \
             that is the job's address",
        );
    }
    let hint = match seen.iter().any(|why| matches!(why, OfferFailure::Silent(_))) {
        true => "have the same version of Ronde on both sides",
        false => {
            "see whether `horovodrun --agents` runs there and no firewall is in between; `--timeout` \
             says how long to try"
        }
    };
    let seconds = time_limit.as_secs();
    HostProblem::new(
        format!("no job accepted this agent within {seconds} s: {}", listed(seen)),
        hint,
    )
}

fn note(text: &str) {
    let _ = writeln!(io::stderr(), "[ronde] {}", printable(text));
}

fn complain(HostProblem { reason, hint }: &HostProblem) -> u8 {
    let text = format!("error: {reason}\n\nhint: {hint}");
    let _ = writeln!(io::stderr(), "{}", printable(&text));
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_certain_is_said_before_what_may_change() {
        let nobody = OfferFailure::Nobody("a:1".into(), "refused".into());
        let stranger = OfferFailure::Stranger("b:2".into());
        let refused = OfferFailure::Refused("c:3".into(), "too late".into());
        let reason = |seen: &[_]| explain(seen, Duration::from_secs(7)).reason;
        assert_eq!(
            reason(&[nobody.clone(), stranger.clone(), refused]),
            "the launcher at c:3 does not take this agent: too late"
        );
        assert_eq!(
            reason(&[nobody.clone(), stranger]),
            "the process listening at b:2 has a different job key"
        );
        assert_eq!(
            reason(&[nobody]),
            "no job accepted this agent within 7 s: cannot connect to a:1 (refused)"
        );
    }
}
