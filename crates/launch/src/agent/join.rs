//! An agent that the job did not start: it dials the launcher and offers its host. Once accepted,
//! it is an agent like any other, with that connection as its pipe.
//!
//! The agent may start before the launcher, so it retries until its time limit. It gives up early
//! on an error that a retry cannot fix: a refusal, or a peer that does not hold the key.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::Duration;

use ronde_control::wire::agent::OfferAnswer;
use ronde_control::wire::{self, Callee, Greeting, JobKey};
use ronde_control::{VERSION, counted, printable};
use rustix::process::setsid;
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep, timeout};

use super::{AgentExit, DRAIN, TERMINATE, live, run};
use crate::reach::HostProblem;
use crate::stream::{self, ByteStream};
use crate::wire::{SealedConnection, call, connect};

/// How long one address may take to answer and authenticate.
const CALL: Duration = Duration::from_secs(5);

/// How long an authenticated launcher may take to answer an offer.
const ANSWER: Duration = Duration::from_secs(30);

/// Pause between two rounds of dialing.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// After this many consecutive rounds that reach a peer without the key, we give up.
const WRONG_KEY_ROUNDS: u32 = 3;

/// Largest answer to an offer, in bytes.
const LONGEST_ANSWER: usize = 4096;

/// An offer for an agent to make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentOffer {
    /// Addresses to try for the launcher, each as `host:port`.
    pub addresses: Vec<String>,
    /// Name of this host in the job.
    pub name: String,
    /// Number of ranks that it can run.
    pub slots: u32,
    /// The machine that it shares with other agents of the job, if it does.
    pub shared_host: Option<String>,
    /// How long to try.
    pub time_limit: Duration,
}

/// The agent as a process of its own; its standard input holds the offer and the key.
pub fn main(program: &Path, mark: &OsStr, parent: &OsStr) -> u8 {
    // A signal to the guardian's process group is meant for the guardian, which passes it on.
    let _ = setsid();
    let mut words = Vec::new();
    if let Err(error) = io::stdin().read_to_end(&mut words) {
        tracing::error!(%error, "standard input cannot be read");
    }
    let Ok((agent_offer, key)) = wire::decode::<(AgentOffer, JobKey)>(&words) else {
        tracing::error!("the guardian sent no valid offer");
        return 1;
    };
    let mark = mark.to_string_lossy().into_owned();
    match live(parent, take_part((&agent_offer, &key), program, mark)) {
        None => 1,
        Some(Ok(AgentExit::Dismissed)) => 0,
        Some(Ok(AgentExit::Stopped)) => 128 + TERMINATE,
        Some(Ok(AgentExit::Abandoned)) => report_problem(&HostProblem::new(
            "the launcher exited or cannot be reached any more",
            "the ranks on this host were stopped; see the launcher's output",
        )),
        Some(Err(problem)) => report_problem(&problem),
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
    // Let the last messages reach the driver.
    let _ = timeout(DRAIN, sending).await;
    Ok(agent_exit)
}

/// Why an offer to an address failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum OfferFailure {
    #[error("cannot connect to {0} ({1})")]
    Unreachable(String, String),
    #[error("the process listening at {0} has a different job key")]
    WrongKey(String),
    #[error("the launcher at {0} refused this agent: {1}")]
    Refused(String, String),
    /// The launcher closed the connection instead of answering.
    #[error("the launcher at {0} hung up on this agent")]
    Silent(String),
}

async fn dial(
    agent_offer: &AgentOffer,
    key: &JobKey,
    mark: &str,
) -> Result<SealedConnection, HostProblem> {
    let end = Instant::now() + agent_offer.time_limit;
    let (mut pause, mut wrong_key_rounds, mut is_reported) = (FIRST_PAUSE, 0, false);
    loop {
        let mut seen = Vec::new();
        for address in &agent_offer.addresses {
            match offer(address, agent_offer, key, mark).await {
                Ok(sealed) => {
                    let AgentOffer { name, slots, .. } = agent_offer;
                    let slots = counted(*slots, "slot");
                    print_line(&format!("`{name}` joined the job at {address} with {slots}"));
                    return Ok(sealed);
                }
                Err(failure) => seen.push(failure),
            }
        }
        let has_wrong_key = |why: &OfferFailure| matches!(why, OfferFailure::WrongKey(_));
        wrong_key_rounds = if seen.iter().any(has_wrong_key) { wrong_key_rounds + 1 } else { 0 };
        let is_final = |why: &OfferFailure| matches!(why, OfferFailure::Refused(..));
        if wrong_key_rounds >= WRONG_KEY_ROUNDS
            || seen.iter().any(is_final)
            || Instant::now() + pause >= end
        {
            return Err(explain(&seen, agent_offer.time_limit));
        }
        if !std::mem::replace(&mut is_reported, true) {
            print_line(&format!("waiting for the launcher: {}", listed(&seen)));
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
    let stream = connect(address, CALL)
        .await
        .map_err(|why| OfferFailure::Unreachable(address.to_owned(), why))?;
    let calling = timeout(CALL, call(stream, key, Callee::Launcher)).await;
    let mut sealed = match calling {
        Ok(Ok(sealed)) => sealed,
        // A peer with another key closes the connection after our first message.
        Ok(Err(_)) => return Err(OfferFailure::WrongKey(address.into())),
        Err(_) => {
            return Err(OfferFailure::Unreachable(address.into(), "it sends nothing".into()));
        }
    };
    let greeting = Greeting::Agent {
        version: VERSION.into(),
        name: agent_offer.name.clone(),
        slots: agent_offer.slots,
        mark: mark.to_owned(),
        shared_host: agent_offer.shared_host.clone(),
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

fn listed(seen: &[OfferFailure]) -> String {
    seen.iter().map(OfferFailure::to_string).collect::<Vec<_>>().join("; ")
}

/// Reports a permanent failure in preference to one that may pass.
fn explain(seen: &[OfferFailure], time_limit: Duration) -> HostProblem {
    if let Some(refused) = seen.iter().find(|why| matches!(why, OfferFailure::Refused(..))) {
        return HostProblem::new(
            refused.to_string(),
            "start the job with `horovodrun --agents`, and install the same version of Ronde on \
             both sides",
        );
    }
    if let Some(wrong_key) = seen.iter().find(|why| matches!(why, OfferFailure::WrongKey(_))) {
        return HostProblem::new(
            wrong_key.to_string(),
            "pass the key of the job (`--key-file`, `--key-fd` or RONDE_JOB_KEY), and check that \
             this is the job's address",
        );
    }
    let hint = match seen.iter().any(|why| matches!(why, OfferFailure::Silent(_))) {
        true => "install the same version of Ronde on both sides",
        false => {
            "check that `horovodrun --agents` is running there and that no firewall blocks the \
             connection; `--timeout` sets how long to try"
        }
    };
    let seconds = time_limit.as_secs();
    HostProblem::new(
        format!("no job accepted this agent within {seconds} s: {}", listed(seen)),
        hint,
    )
}

fn print_line(text: &str) {
    let _ = writeln!(io::stderr(), "[ronde] {}", printable(text));
}

fn report_problem(HostProblem { reason, hint }: &HostProblem) -> u8 {
    let text = format!("error: {reason}\n\nhint: {hint}");
    let _ = writeln!(io::stderr(), "{}", printable(&text));
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permanent_failures_are_reported_first() {
        let unreachable = OfferFailure::Unreachable("a:1".into(), "refused".into());
        let wrong_key = OfferFailure::WrongKey("b:2".into());
        let refused = OfferFailure::Refused("c:3".into(), "too late".into());
        let reason = |seen: &[_]| explain(seen, Duration::from_secs(7)).reason;
        assert_eq!(
            reason(&[unreachable.clone(), wrong_key.clone(), refused]),
            "the launcher at c:3 refused this agent: too late"
        );
        assert_eq!(
            reason(&[unreachable.clone(), wrong_key]),
            "the process listening at b:2 has a different job key"
        );
        assert_eq!(
            reason(&[unreachable]),
            "no job accepted this agent within 7 s: cannot connect to a:1 (refused)"
        );
    }
}
