//! Examples of every event, for tests and for the reference page.

use std::time::Duration;

use super::*;
use crate::cause::CauseKind;
use crate::wire::agent::ProcessState;

pub(crate) fn member() -> WorkerInfo {
    WorkerInfo { worker: Worker(5), rank: Rank(2), host: "node-b".into(), slot: 0 }
}

pub(crate) fn failed_worker(kind: CauseKind, what: &str) -> FailedWorker {
    FailedWorker {
        member: member(),
        cause: Cause::plain(kind, what),
        pid: Some(4711),
        time: Some("14:03:59".into()),
    }
}

/// At least one of each event, and several of those whose texts vary.
pub(crate) fn examples() -> Vec<JobEventKind> {
    let started = JobEventKind::JobStarted {
        version: "0.28.1+ronde.0.1.0".into(),
        kind: JobKind::Elastic,
        ranks: 4,
        min: 2,
        max: None,
        command: vec!["python".into(), "train.py".into()],
    };
    let written = [
        JobEventKind::OutputLost {
            output: OutputKind::EventLog,
            reason: "No space left on device (os error 28)".into(),
        },
        JobEventKind::EventsDropped { count: 12 },
        ended(),
    ];
    let before = [started].into_iter().chain(of_hosts()).chain(of_answers());
    before.chain(of_workers()).chain(written).collect()
}

const SOME: Seconds = seconds(8);

const fn seconds(seconds: u64) -> Seconds {
    Seconds(Duration::from_secs(seconds))
}

fn of_hosts() -> Vec<JobEventKind> {
    let host = || "node-b".to_owned();
    let source = HostSourceKind::Script;
    let rests = |seconds, keeps_workers| {
        let host = host();
        JobEventKind::HostRests { host, seconds, keeps_workers }
    };
    vec![
        JobEventKind::HostFound { host: host(), slots: 2, source },
        JobEventKind::HostResized { host: host(), slots: 4, before: 2, source },
        JobEventKind::HostUnlisted { host: host(), source },
        JobEventKind::HostsUnknown { reason: "`./hosts.sh` ended with code 1".into() },
        JobEventKind::HostsKnown,
        JobEventKind::HostReady { host: host() },
        JobEventKind::HostUnreachable {
            host: host(),
            reason: "nothing answers at port 22".into(),
            hint: "see whether sshd runs there".into(),
            retry_seconds: Some(SOME),
        },
        JobEventKind::HostLost {
            host: host(),
            reason: "it no longer answers".into(),
            hint: "see whether the host is up".into(),
        },
        JobEventKind::HostLeaving { host: host(), grace_seconds: seconds(30) },
        rests(Some(SOME), false),
        rests(None, false),
        rests(Some(SOME), true),
        JobEventKind::HostUsable { host: host() },
    ]
}

fn of_answers() -> Vec<JobEventKind> {
    let host = || "node-b".to_owned();
    let process = |state| Condition { pid: 4711, command: "python".into(), state };
    let halted = |state, limit_seconds| {
        let (member, process) = (member(), process(state));
        JobEventKind::WorkerHalted { member, process, seconds: SOME, limit_seconds }
    };
    let silent = |process| JobEventKind::WorkerSilent { member: member(), process, seconds: SOME };
    vec![
        halted(ProcessState::Stopped, Some(seconds(600))),
        halted(ProcessState::Frozen, None),
        halted(ProcessState::Traced, None),
        silent(Some(process(ProcessState::Runs))),
        silent(Some(process(ProcessState::Blocked))),
        silent(None),
        JobEventKind::WorkerResumed { member: member(), seconds: SOME },
        JobEventKind::HostSilent {
            host: host(),
            answering: vec![member()],
            seconds: SOME,
            limit_seconds: None,
        },
        JobEventKind::HostSilent {
            host: host(),
            answering: vec![],
            seconds: SOME,
            limit_seconds: None,
        },
        JobEventKind::HostSilent {
            host: host(),
            answering: vec![],
            seconds: SOME,
            limit_seconds: Some(SOME),
        },
        JobEventKind::HostAnswers { host: host(), seconds: SOME },
    ]
}

fn of_workers() -> Vec<JobEventKind> {
    let killed = Cause::plain(CauseKind::Signal, "was killed by signal 9 (SIGKILL)");
    let zero = WorkerInfo { worker: Worker(0), rank: Rank(0), host: "node-a".into(), slot: 0 };
    let one = WorkerInfo { worker: Worker(1), rank: Rank(1), slot: 1, ..zero.clone() };
    let three = WorkerInfo { worker: Worker(6), rank: Rank(3), slot: 1, ..member() };
    vec![
        JobEventKind::WorkerStarted { member: member(), pid: 4711 },
        JobEventKind::WorkerJoined { member: member() },
        JobEventKind::Stalled {
            tensor: "gradient.layer1".into(),
            seconds: seconds(60),
            waiting: vec![Rank(0)],
            late: vec![Rank(1), Rank(2)],
        },
        JobEventKind::lost(member(), killed, Some(&Exit::Signal(9))),
        JobEventKind::WorkerRemoved {
            member: member(),
            reason: "its host is no longer listed".into(),
        },
        JobEventKind::stopped(member(), &Exit::Code(0)),
        JobEventKind::TooFewWorkers { there: 1, needed: 2, timeout_seconds: seconds(600) },
        JobEventKind::WorldFormed {
            world: 3,
            epoch: Epoch(4),
            members: vec![zero, one, member(), three],
            newcomers: 1,
        },
        JobEventKind::Recovered {
            ranks: 3,
            met_seconds: Seconds(Duration::from_millis(90)),
            state_seconds: Seconds(Duration::from_millis(140)),
            commit_seconds: Seconds(Duration::from_millis(260)),
        },
        JobEventKind::WorkerFinished { member: member(), first: true },
    ]
}

fn ended() -> JobEventKind {
    let mut first = failed_worker(CauseKind::Exception, "raised KeyError: 'lr'");
    first.cause.details = vec!["at train.py:12 in step: rate = config['lr']".into()];
    let text = "error: rank 2 (node-b, slot 0) raised KeyError: 'lr'\n".to_owned();
    let reason = EndReason::AllFailed;
    let verdict = Verdict { reason, signal: None, first: Some(first), text: Some(text) };
    JobEventKind::JobEnded { exit_code: 1, verdict }
}
