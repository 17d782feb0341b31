//! One of each event, for tests and for the reference page.

use std::time::Duration;

use super::*;
use crate::cause::CauseKind;
use crate::wire::agent::ProcessState;

pub(crate) fn member() -> Member {
    Member { worker: Worker(5), rank: Rank(2), host: "node-b".into(), slot: 0 }
}

pub(crate) fn culprit(kind: CauseKind, what: &str) -> Culprit {
    Culprit { member: member(), cause: Cause::plain(kind, what) }
}

/// One of each; several of those whose lines differ.
pub(crate) fn examples() -> Vec<Happening> {
    let started = Happening::JobStarted {
        version: "0.28.1+ronde.0.1.0".into(),
        kind: JobKind::Elastic,
        ranks: 4,
        min: 2,
        max: None,
        command: vec!["python".into(), "train.py".into()],
    };
    let written = [
        Happening::OutputLost {
            output: Output::EventLog,
            reason: "No space left on device (os error 28)".into(),
        },
        Happening::EventsDropped { count: 12 },
        ended(),
    ];
    let before = [started].into_iter().chain(of_hosts()).chain(of_answers());
    before.chain(of_workers()).chain(written).collect()
}

const SOME: Seconds = seconds(8);

const fn seconds(seconds: u64) -> Seconds {
    Seconds(Duration::from_secs(seconds))
}

fn of_hosts() -> Vec<Happening> {
    let host = || "node-b".to_owned();
    let source = Source::Script;
    let rests = |seconds, keeps_workers| {
        let host = host();
        Happening::HostRests { host, seconds, keeps_workers }
    };
    vec![
        Happening::HostFound { host: host(), slots: 2, source },
        Happening::HostResized { host: host(), slots: 4, before: 2, source },
        Happening::HostUnlisted { host: host(), source },
        Happening::HostsUnknown { reason: "`./hosts.sh` ended with code 1".into() },
        Happening::HostsKnown,
        Happening::HostReady { host: host() },
        Happening::HostUnreachable {
            host: host(),
            reason: "nothing answers at port 22".into(),
            hint: "see whether sshd runs there".into(),
            retry_seconds: Some(SOME),
        },
        Happening::HostLost {
            host: host(),
            reason: "it does not answer any more".into(),
            hint: "see whether the host is up".into(),
        },
        Happening::HostLeaving { host: host(), grace_seconds: seconds(30) },
        rests(Some(SOME), false),
        rests(None, false),
        rests(Some(SOME), true),
        Happening::HostUsable { host: host() },
    ]
}

fn of_answers() -> Vec<Happening> {
    let host = || "node-b".to_owned();
    let process = |state| Condition { pid: 4711, command: "python".into(), state };
    let halted = |state, limit_seconds| {
        let (member, process) = (member(), process(state));
        Happening::WorkerHalted { member, process, seconds: SOME, limit_seconds }
    };
    let silent = |process| Happening::WorkerSilent { member: member(), process, seconds: SOME };
    vec![
        halted(ProcessState::Stopped, Some(seconds(600))),
        halted(ProcessState::Frozen, None),
        halted(ProcessState::Traced, None),
        silent(Some(process(ProcessState::Runs))),
        silent(Some(process(ProcessState::Blocked))),
        silent(None),
        Happening::WorkerResumed { member: member(), seconds: SOME },
        Happening::HostSilent { host: host(), answering: vec![member()], seconds: SOME },
        Happening::HostSilent { host: host(), answering: vec![], seconds: SOME },
        Happening::HostAnswers { host: host(), seconds: SOME },
    ]
}

fn of_workers() -> Vec<Happening> {
    let killed = Cause::plain(CauseKind::Signal, "was killed by signal 9 (SIGKILL)");
    let zero = Member { worker: Worker(0), rank: Rank(0), host: "node-a".into(), slot: 0 };
    let one = Member { worker: Worker(1), rank: Rank(1), slot: 1, ..zero.clone() };
    let three = Member { worker: Worker(6), rank: Rank(3), slot: 1, ..member() };
    vec![
        Happening::WorkerStarted { member: member(), pid: 4711 },
        Happening::WorkerJoined { member: member() },
        Happening::Stalled {
            tensor: "gradient.layer1".into(),
            seconds: seconds(60),
            waiting: vec![Rank(0)],
            late: vec![Rank(1), Rank(2)],
        },
        Happening::lost(member(), killed, Some(&Exit::Signal(9))),
        Happening::WorkerRemoved {
            member: member(),
            reason: "its host is not listed any more".into(),
        },
        Happening::stopped(member(), &Exit::Code(0)),
        Happening::TooFewWorkers { there: 1, needed: 2, timeout_seconds: seconds(600) },
        Happening::WorldFormed {
            world: 3,
            epoch: Epoch(4),
            members: vec![zero, one, member(), three],
            newcomers: 1,
        },
        Happening::Recovered {
            ranks: 3,
            met_seconds: Seconds(Duration::from_millis(90)),
            state_seconds: Seconds(Duration::from_millis(140)),
            commit_seconds: Seconds(Duration::from_millis(260)),
        },
        Happening::WorkerFinished { member: member(), first: true },
    ]
}

fn ended() -> Happening {
    let mut first = culprit(CauseKind::Exception, "raised KeyError: 'lr'");
    first.cause.details = vec!["at train.py:12 in step: rate = config['lr']".into()];
    let text = "error: rank 2 (node-b, slot 0) raised KeyError: 'lr'\n".to_owned();
    let reason = EndReason::AllFailed;
    let verdict = Judgement { reason, signal: None, first: Some(first), text: Some(text) };
    Happening::JobEnded { exit_code: 1, verdict }
}
