//! An agent that nobody of the job has started: it dials the launcher, offers its host, and once it is
//! taken it is an agent like any other, whose pipe is that connection.
//!
//! It may be there before the launcher is, so it tries again until its time is up. What would be the
//! same the next time ends it at once: a refusal, or somebody who does not hold the key.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use ronde_control::wire::agent::OfferAnswer;
use ronde_control::wire::{self, Callee, Greeting, JobKey};
use ronde_control::{VERSION, printable};
use rustix::process::setsid;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpStream, lookup_host};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep, timeout};

use super::{DRAIN, Parting, TERMINATE, begin, run};
use crate::reach::Trouble;
use crate::stream::{self, Stream};
use crate::supervise::guardian;
use crate::wire::{Sealed, call, read_sealed};

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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offering {
    /// Where the launcher may be, each as `host:port`.
    pub addresses: Vec<String>,
    /// What this host is to be called.
    pub name: String,
    /// How many ranks it can take.
    pub slots: u32,
    /// How long to try.
    pub patience: Duration,
}

impl Offering {
    /// Offers this host until the launcher has taken it and dismissed it, or why that came to nothing
    /// was told; gives the exit code. `program` is this executable.
    pub fn run(&self, program: &Path, key: &JobKey) -> io::Result<u8> {
        guardian::run_joining(program, &self.words(), key)
    }

    /// As words of a command line. The key is not among them.
    fn words(&self) -> [OsString; 4] {
        let seconds = self.patience.as_secs().to_string();
        [self.addresses.join(","), self.name.clone(), self.slots.to_string(), seconds]
            .map(OsString::from)
    }

    fn from_words(words: &[OsString]) -> Option<Offering> {
        let [addresses, name, slots, seconds] = words else { return None };
        Some(Offering {
            addresses: addresses.to_str()?.split(',').map(str::to_owned).collect(),
            name: name.to_str()?.to_owned(),
            slots: slots.to_str()?.parse().ok()?,
            patience: Duration::from_secs(seconds.to_str()?.parse().ok()?),
        })
    }
}

/// The agent as a process of its own, whose standard input holds the key and nothing else.
pub fn main(program: &Path, mark: &OsStr, parent: &OsStr, words: &[OsString]) -> u8 {
    // Whoever signals the group of the guardian means the guardian, who passes it on.
    let _ = setsid();
    let Some(runtime) = begin(parent) else { return 1 };
    let mut key = String::new();
    let read = io::stdin().take(1024).read_to_string(&mut key);
    let (Some(offering), Ok(key)) = (Offering::from_words(words), JobKey::from_hex(&key)) else {
        tracing::error!(?read, "the guardian has not said what to join");
        return 1;
    };
    let mark = mark.to_string_lossy().into_owned();
    let parting = runtime.block_on(take_part(&offering, &key, program, mark));
    runtime.shutdown_background();
    match parting {
        Ok(Parting::Dismissed) => 0,
        Ok(Parting::Stopped) => 128 + TERMINATE,
        Ok(Parting::Abandoned) => complain(&Trouble {
            reason: "the launcher has gone, or cannot be reached any more".into(),
            hint: "the ranks here were ended; see what the launcher said".into(),
        }),
        Err(trouble) => complain(&trouble),
    }
}

async fn take_part(
    offering: &Offering,
    key: &JobKey,
    program: &Path,
    mark: String,
) -> Result<Parting, Trouble> {
    let broken = |error: io::Error| Trouble {
        reason: format!("the agent failed: {error}"),
        hint: "check the limits of this machine (`ulimit -a`)".into(),
    };
    let mut stop = signal(SignalKind::user_defined1()).map_err(broken)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(broken)?;
    let sealed = tokio::select! {
        sealed = dial(offering, key, &mark) => sealed?,
        _ = stop.recv() => return Ok(Parting::Stopped),
        _ = terminate.recv() => return Ok(Parting::Stopped),
    };
    let Stream { reader, writer, sending, .. } = stream::open(sealed, None).map_err(broken)?;
    let parting = run((reader, writer), program.to_owned(), mark).await.map_err(broken)?;
    // The last news are on their way.
    let _ = timeout(DRAIN, sending).await;
    Ok(parting)
}

/// What is in the way of an offer.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Obstacle {
    /// Nobody answers.
    Nobody(String),
    /// Whoever answers does not hold the key.
    Stranger,
    /// The launcher has said no, in words.
    Refused(String),
    /// It has hung up instead of answering.
    Silent,
}

async fn dial(offering: &Offering, key: &JobKey, mark: &str) -> Result<Sealed, Trouble> {
    let end = Instant::now() + offering.patience;
    let (mut pause, mut strangers, mut told) = (FIRST_PAUSE, 0, false);
    loop {
        let mut seen = Vec::new();
        for address in &offering.addresses {
            match offer(address, offering, key, mark).await {
                Ok(sealed) => {
                    let Offering { name, slots, .. } = offering;
                    note(&format!("`{name}` is part of a job, with {slots} slots, for {address}"));
                    return Ok(sealed);
                }
                Err(obstacle) => seen.push((address.clone(), obstacle)),
            }
        }
        let is_stranger = |(_, why): &(String, Obstacle)| *why == Obstacle::Stranger;
        strangers = if seen.iter().any(is_stranger) { strangers + 1 } else { 0 };
        let is_final = |(_, why): &(String, Obstacle)| matches!(why, Obstacle::Refused(_));
        if strangers >= STRANGERS || seen.iter().any(is_final) || Instant::now() + pause >= end {
            return Err(explain(&seen, offering.patience));
        }
        if !std::mem::replace(&mut told, true) {
            let why: Vec<String> = seen.iter().map(words).collect();
            note(&format!("waiting for the launcher: {}", why.join("; ")));
        }
        sleep(pause).await;
        pause = (2 * pause).min(LONGEST_PAUSE);
    }
}

async fn offer(
    address: &str,
    offering: &Offering,
    key: &JobKey,
    mark: &str,
) -> Result<Sealed, Obstacle> {
    let stream = connect(address).await?;
    let calling = timeout(CALL, call(stream, key, Callee::Launcher)).await;
    let mut sealed = match calling {
        Ok(Ok(sealed)) => sealed,
        // Whoever holds another key hangs up as soon as it has heard us.
        Ok(Err(_)) => return Err(Obstacle::Stranger),
        Err(_) => return Err(Obstacle::Nobody("it does not say anything".into())),
    };
    let greeting = Greeting::Agent {
        version: VERSION.into(),
        name: offering.name.clone(),
        slots: offering.slots,
        mark: mark.to_owned(),
    };
    let greeting = sealed.sealer.seal(&wire::encode(&greeting));
    sealed.stream.write_all(&greeting).await.map_err(|_| Obstacle::Silent)?;
    let reading = read_sealed(&mut sealed.stream, &mut sealed.opener, LONGEST_ANSWER);
    let Ok(Ok(Some(answer))) = timeout(ANSWER, reading).await else {
        return Err(Obstacle::Silent);
    };
    match wire::decode(&answer) {
        Ok(OfferAnswer::Taken) => Ok(sealed),
        Ok(OfferAnswer::Refused { reason }) => Err(Obstacle::Refused(reason)),
        Err(_) => Err(Obstacle::Silent),
    }
}

/// Reaches the first of the addresses that a name has.
async fn connect(address: &str) -> Result<TcpStream, Obstacle> {
    let nobody = |error: io::Error| Obstacle::Nobody(error.to_string());
    let found: Vec<SocketAddr> = lookup_host(address).await.map_err(nobody)?.collect();
    let mut last = Obstacle::Nobody("the name has no address".into());
    for address in found {
        match timeout(CALL, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = nobody(error),
            Err(_) => last = Obstacle::Nobody("it does not answer".into()),
        }
    }
    Err(last)
}

fn words((address, obstacle): &(String, Obstacle)) -> String {
    match obstacle {
        Obstacle::Nobody(why) => format!("nobody can be reached at {address} ({why})"),
        Obstacle::Stranger => {
            format!("whoever listens at {address} does not hold the key that this agent has")
        }
        Obstacle::Refused(why) => {
            format!("the launcher at {address} does not take this agent: {why}")
        }
        Obstacle::Silent => format!("the launcher at {address} hung up on this agent"),
    }
}

fn explain(seen: &[(String, Obstacle)], patience: Duration) -> Trouble {
    let refused = seen.iter().find(|(_, why)| matches!(why, Obstacle::Refused(_)));
    let stranger = seen.iter().find(|(_, why)| *why == Obstacle::Stranger);
    let silent = seen.iter().find(|(_, why)| *why == Obstacle::Silent);
    if let Some(refused) = refused {
        return Trouble {
            reason: words(refused),
            hint:
                "start the job with `horovodrun --agents`, and have the same version of Ronde on \
                   both sides"
                    .into(),
        };
    }
    if let Some(stranger) = stranger {
        return Trouble {
            reason: words(stranger),
            hint:
                "give it the key of the job (`--key-file`, `--key-fd` or RONDE_JOB_KEY), and see \
                   whether that is the job's address"
                    .into(),
        };
    }
    let all: Vec<String> = seen.iter().map(words).collect();
    let reason =
        format!("no job has taken this agent for {} s: {}", patience.as_secs(), all.join("; "));
    let hint = match silent {
        Some(_) => "have the same version of Ronde on both sides",
        None => {
            "see whether `horovodrun --agents` runs there and no firewall is in between; `--timeout` \
             says how long to try"
        }
    };
    Trouble { reason, hint: hint.into() }
}

fn note(text: &str) {
    let _ = writeln!(io::stderr(), "[ronde] {}", printable(text));
}

fn complain(Trouble { reason, hint }: &Trouble) -> u8 {
    let text = format!("error: {reason}\n\nhint: {hint}");
    let _ = writeln!(io::stderr(), "{}", printable(&text));
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offering_survives_the_command_line() {
        let offering = Offering {
            addresses: vec!["a:1".into(), "[::1]:2".into()],
            name: "node-b".into(),
            slots: 3,
            patience: Duration::from_secs(9),
        };
        assert_eq!(Offering::from_words(&offering.words()), Some(offering));
        assert_eq!(Offering::from_words(&["a:1".into()]), None);
    }

    #[test]
    fn what_is_certain_is_said_before_what_may_change() {
        let nobody = ("a:1".to_owned(), Obstacle::Nobody("refused".into()));
        let stranger = ("b:2".to_owned(), Obstacle::Stranger);
        let refused = ("c:3".to_owned(), Obstacle::Refused("too late".into()));
        let reason = |seen: &[_]| explain(seen, Duration::from_secs(7)).reason;
        assert_eq!(
            reason(&[nobody.clone(), stranger.clone(), refused]),
            "the launcher at c:3 does not take this agent: too late"
        );
        assert_eq!(
            reason(&[nobody.clone(), stranger]),
            "whoever listens at b:2 does not hold the key that this agent has"
        );
        assert_eq!(
            reason(&[nobody]),
            "no job has taken this agent for 7 s: nobody can be reached at a:1 (refused)"
        );
    }
}
