//! Feeds malformed bytes from unauthenticated or faulty peers to everything that reads them:
//! nothing may panic, and nothing may be misinterpreted.
//!
//! The fuzzer in `fuzz/` explores each [`FuzzTarget`] for as long as it is left running; a bounded
//! run over random bytes and damaged messages is part of the tests.

use std::time::Duration;

use ronde_control::cause::{CauseKind, Raised};
use ronde_control::event::JobKind;
use ronde_control::job::{AgentId, CooldownScope, HostOffer, JobInput, JobMachine, JobSpec};
use ronde_control::launcher::{self, Invitation};
use ronde_control::negotiate::{
    Announcement, CollectiveKind, Coordinator, CoordinatorToMember, Member, MemberToCoordinator,
    ReleasedItem, Request, TensorId,
};
use ronde_control::status::{DriverToWatcher, WatcherToDriver};
use ronde_control::wire::agent::{
    self, AgentToAgent, AgentToDriver, DriverToAgent, Exit, OfferAnswer,
};
use ronde_control::wire::frame::frame_length;
use ronde_control::wire::handshake::{Callee, Initiator, envelope_length, respond};
use ronde_control::wire::remote_call::CallMessage;
use ronde_control::wire::standing::{StandingAnswer, StandingInfo, StandingRequest};
use ronde_control::wire::{DriverToRank, Greeting, JobKey, Peer, RankToDriver, decode, encode};
use ronde_control::{
    ConnectionId, DType, DeviceKind, Epoch, Rank, ReduceOp, SetId, Tuning, Worker,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A fuzz target: a function that reads bytes, and valid inputs to start from.
pub struct FuzzTarget {
    /// Name of the target.
    pub name: &'static str,
    /// The function under test.
    pub feed: fn(&[u8]),
    /// Valid inputs to start from.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All targets.
pub const TARGETS: &[FuzzTarget] = &[
    FuzzTarget { name: "handshake", feed: handshake, seeds: handshakes },
    FuzzTarget { name: "frames", feed: frames, seeds: edits },
    FuzzTarget { name: "messages", feed: messages, seeds: all_messages },
    FuzzTarget { name: "agent", feed: agent, seeds: agent_frames },
    FuzzTarget { name: "negotiation", feed: negotiation, seeds: negotiations },
    FuzzTarget { name: "jobs", feed: jobs, seeds: job_sequences },
    FuzzTarget { name: "texts", feed: texts, seeds: some_texts },
];

fn key() -> JobKey {
    JobKey::from_entropy([7; 32])
}

/// Reads the bytes as the first and as the second message of a handshake: no one without the key
/// gets through.
pub fn handshake(bytes: &[u8]) {
    if let Some((header, body)) = bytes.split_first_chunk::<2>()
        && let Ok(length) = envelope_length(*header)
    {
        let body = &body[..length.min(body.len())];
        let (initiator, hello) = Initiator::start(&key(), Callee::Launcher);
        assert!(initiator.finish(body).is_err(), "an answer to another handshake is refused");
        if body != &hello[2..] {
            // It may come from another holder of the key, and then there is an answer.
            let _ = respond(&key(), Callee::Launcher, body);
        }
        assert!(
            respond(&JobKey::from_entropy([8; 32]), Callee::Launcher, body).is_err(),
            "a message made with another key is refused"
        );
    }
}

/// Damages an encrypted frame: the bytes are pairs of an offset and the bits to flip there. A
/// changed frame is never opened, an unchanged one always is.
pub fn frames(bytes: &[u8]) {
    let (initiator, hello) = Initiator::start(&key(), Callee::Launcher);
    let Ok((answer, (_, mut opener))) = respond(&key(), Callee::Launcher, &hello[2..]) else {
        return;
    };
    let Ok((mut sealer, _)) = initiator.finish(&answer[2..]) else { return };
    let plain = encode(&Greeting::Control { epoch: Epoch(1), rank: Rank(2) });
    let original = sealer.seal(&plain);
    let mut frame = original.clone();
    for pair in bytes.chunks_exact(2) {
        let place = usize::from(pair[0]);
        match frame.get_mut(place) {
            Some(byte) => *byte ^= pair[1],
            None => frame.truncate(place % (frame.len() + 1)),
        }
    }
    let header = frame.first_chunk::<4>().copied();
    let length = header.and_then(|header| frame_length(header).ok());
    let sealed = length.and_then(|length| frame.get(4..4 + length));
    let opened = sealed.and_then(|sealed| opener.open(sealed).ok());
    assert_eq!(opened.is_some(), frame == original, "{bytes:?}");
    assert!(opened.is_none_or(|opened| opened == plain));
}

/// Reads the bytes as every message that an encrypted frame may contain.
pub fn messages(bytes: &[u8]) {
    check_round_trip::<Greeting>(bytes);
    check_round_trip::<RankToDriver>(bytes);
    check_round_trip::<AgentToAgent>(bytes);
    check_round_trip::<OfferAnswer>(bytes);
    check_round_trip::<StandingRequest>(bytes);
    check_round_trip::<StandingAnswer>(bytes);
    check_round_trip::<DriverToRank>(bytes);
    check_round_trip::<CallMessage>(bytes);
    check_round_trip::<WatcherToDriver>(bytes);
    check_round_trip::<DriverToWatcher>(bytes);
    check_round_trip::<Vec<MemberToCoordinator>>(bytes);
    check_round_trip::<Vec<CoordinatorToMember>>(bytes);
}

/// A message that can be decoded survives another round trip.
fn check_round_trip<M: Serialize + DeserializeOwned>(bytes: &[u8]) {
    if let Ok(message) = decode::<M>(bytes) {
        let once = encode(&message);
        let again: M = decode(&once).expect("an encoded message can be decoded");
        assert_eq!(encode(&again), once);
    }
}

/// Reads the bytes as the stream between a driver and an agent.
pub fn agent(mut bytes: &[u8]) {
    while let Some((header, rest)) = bytes.split_first_chunk::<4>() {
        let Ok(length) = agent::length(*header) else { return };
        let Some((body, rest)) = rest.split_at_checked(length) else { return };
        if let Ok(AgentToDriver::Exited { exit, .. }) = decode::<AgentToDriver>(body) {
            let _ = (exit.code(), exit.to_string());
        }
        let _ = decode::<DriverToAgent>(body);
        bytes = rest;
    }
}

/// Reads the bytes as messages of three members to the coordinator, and of the coordinator to a
/// member.
pub fn negotiation(bytes: &[u8]) {
    let mut coordinator = Coordinator::new(3, 1000, 2);
    let mut members = [0, 1, 2].map(|rank| Member::new(Rank(rank)));
    for (time, (from, body)) in packets(bytes).enumerate() {
        if let Ok(message) = decode::<MemberToCoordinator>(body) {
            let now = Duration::from_millis(time as u64);
            coordinator.on(Rank(u32::from(from % 3)), message, now);
            coordinator.release(|_| true);
            coordinator.stalls(now);
            for message in coordinator.take_messages() {
                members.iter_mut().for_each(|member| drop(member.on(message.clone())));
            }
        }
        if let Ok(message) = decode::<CoordinatorToMember>(body) {
            let _ = members[usize::from(from % 3)].on(message);
        }
    }
}

/// Reads the bytes as messages of workers and agents: of a fixed job, of one that another launcher
/// has started, and of an elastic one.
pub fn jobs(bytes: &[u8]) {
    let limit = Duration::from_secs(5);
    let elastic = JobSpec {
        min: 1,
        max: Some(3),
        kind: JobKind::Elastic,
        cooldown_scope: CooldownScope::Slot,
        ..JobSpec::fixed(2, Duration::from_secs(9), Some(Duration::from_secs(1)))
    };
    let mut machines = [
        JobMachine::new("1", JobSpec::fixed(2, limit, Some(limit)), 1),
        JobMachine::kept_by_a_rank("1", 2, limit),
        JobMachine::new("1", JobSpec { timeout: limit, ..elastic }, 1),
    ];
    let offers = vec![HostOffer { host: "node".into(), slots: 3 }];
    for machine in &mut machines {
        machine.on(JobInput::Discovered(offers.clone()), Duration::ZERO);
        machine.on(JobInput::Ready(AgentId(0)), Duration::ZERO);
    }
    for (time, (from, body)) in packets(bytes).enumerate() {
        let now = Duration::from_millis(300 * time as u64);
        let connection = ConnectionId(u64::from(from % 3));
        let events = [
            decode(body).ok().map(|greeting| JobInput::Greeted(connection, greeting)),
            decode(body).ok().map(|message| JobInput::Said(connection, message)),
            body.is_empty().then_some(JobInput::Closed(connection)),
            (body == [9]).then(|| JobInput::Exited(Worker(from.into()), Exit::Signal(9))),
            decode(body).ok().and_then(agent_input),
        ];
        for event in events.into_iter().flatten() {
            for machine in &mut machines {
                machine.on(event.clone(), now);
            }
        }
        machines.iter().for_each(|machine| drop((machine.next_wakeup(), machine.outcome())));
    }
}

fn agent_input(message: AgentToDriver) -> Option<JobInput> {
    match message {
        AgentToDriver::Started { worker, pid } => Some(JobInput::Started(worker, pid)),
        AgentToDriver::Exited { worker, exit } => Some(JobInput::Exited(worker, exit)),
        AgentToDriver::Stopped { worker } => Some(JobInput::Stopped(worker)),
        AgentToDriver::Continued { worker } => Some(JobInput::Continued(worker)),
        AgentToDriver::Looked { found } => Some(JobInput::Looked(found)),
        AgentToDriver::Leaving => Some(JobInput::Leaving(AgentId(0), Duration::from_secs(3))),
        _ => None,
    }
}

/// Reads the bytes as text written by users.
pub fn texts(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(tuning) = Tuning::parse(&text) {
        assert_eq!(Tuning::parse(&tuning.to_string()), Ok(tuning), "it survives a round trip");
    }
    if let Ok(key) = JobKey::from_hex(&text) {
        assert_eq!(key.to_hex(), text.to_ascii_lowercase());
    }
    if let Some(invitation) = Invitation::from_text(&text) {
        let again = Invitation::from_text(&invitation.to_text());
        assert!(invitation.addresses.len() > 32 || again == Some(invitation));
    }
    let read = |name: &str| (!name.is_empty()).then(|| text.to_string());
    let _ = ronde_control::settings::read(read);
    // A task of Slurm whose host list is the text.
    let step = |name: &str| match name {
        "SLURM_STEP_NODELIST" => Some(text.to_string()),
        "SLURM_PROCID" | "SLURM_STEP_ID" => Some("0".into()),
        "SLURM_STEP_NUM_TASKS" => Some("2".into()),
        _ => None,
    };
    let _ = launcher::detect(step);
}

/// Cuts the bytes into packets: sender, length, and body.
fn packets(mut bytes: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let ([from, length], rest) = bytes.split_first_chunk::<2>()?;
        let (body, rest) = rest.split_at(rest.len().min(usize::from(*length)));
        bytes = rest;
        Some((*from, body))
    })
}

fn packet(from: u8, message: &impl Serialize) -> Vec<u8> {
    let body = encode(message);
    [&[from, body.len() as u8], body.as_slice()].concat()
}

fn handshakes() -> Vec<Vec<u8>> {
    let (_, hello) = Initiator::start(&key(), Callee::Launcher);
    let answer = respond(&key(), Callee::Launcher, &hello[2..])
        .map(|(answer, _)| answer)
        .unwrap_or_default();
    vec![hello, answer]
}

fn edits() -> Vec<Vec<u8>> {
    vec![vec![], vec![0, 1], vec![5, 1], vec![200, 0], vec![0, 1, 0, 1]]
}

fn requests() -> Vec<Request> {
    let (op, prescale, postscale) = (ReduceOp::Sum, 1.0, 0.5);
    let kinds = [
        CollectiveKind::Allreduce { op, prescale, postscale },
        CollectiveKind::Allgather,
        CollectiveKind::Broadcast { root: Rank(1) },
        CollectiveKind::Alltoall { splits: vec![1, 2, 3] },
        CollectiveKind::Reducescatter { op, prescale, postscale },
        CollectiveKind::Barrier,
        CollectiveKind::AddSet { ranks: vec![Rank(0), Rank(2)] },
        CollectiveKind::RemoveSet { set: SetId(1) },
    ];
    let request = |kind: CollectiveKind| Request {
        name: "x".into(),
        set: SetId::WORLD,
        kind,
        dtype: DType::F32,
        shapes: vec![vec![6, 2]],
        device: DeviceKind::Cpu,
    };
    let mut requests: Vec<Request> = kinds.into_iter().map(request).collect();
    requests.push(Request { shapes: vec![vec![u64::MAX, 3]; 2], ..requests[0].clone() });
    requests
}

fn to_coordinator() -> Vec<MemberToCoordinator> {
    let announced = requests().into_iter().map(MemberToCoordinator::Announce);
    let others = [
        MemberToCoordinator::Known(TensorId(0)),
        MemberToCoordinator::Waits {
            request: requests().swap_remove(0),
            round: 1,
            since: Duration::from_secs(1),
        },
        MemberToCoordinator::Join,
        MemberToCoordinator::Leave { reason: Some("x".into()) },
    ];
    announced.chain(others).collect()
}

fn to_member() -> Vec<CoordinatorToMember> {
    let named = ReleasedItem::Named {
        name: "x".into(),
        id: Some(TensorId(1)),
        shares: vec![vec![1]; 3],
        request: requests().pop(),
    };
    vec![
        CoordinatorToMember::Release(vec![named, ReleasedItem::Known(TensorId(1))]),
        CoordinatorToMember::Forget(TensorId(1)),
        CoordinatorToMember::SetAdded { name: "x".into(), id: SetId(1), generation: 1 },
        CoordinatorToMember::Bulletin(Announcement::Left { rank: Rank(1), reason: None }),
    ]
}

fn to_driver() -> Vec<RankToDriver> {
    let addresses = vec!["127.0.0.1:1".parse().expect("a valid address")];
    let (host, unix) = ("h".to_owned(), Some("u".to_owned()));
    vec![
        RankToDriver::Join(Peer {
            pid: 1,
            host,
            machine: String::new(),
            local_rank: 0,
            addresses,
            unix,
        }),
        RankToDriver::Located { leader: Rank(0) },
        RankToDriver::Leaving { error: Some(Raised::by_program("x")), blames: Some(Rank(1)) },
        RankToDriver::GivenUp { rank: Rank(1), cause: "x".into() },
    ]
}

fn all_messages() -> Vec<Vec<u8>> {
    let greeting = Greeting::Rendezvous { version: "1".into(), rank: Rank(0) };
    let (rank, host, kind) = (Rank(1), "h".into(), CauseKind::Signal);
    let lost = DriverToRank::Lost { rank, host, kind, cause: "x".into() };
    let mut all = vec![encode(&greeting), encode(&lost)];
    all.extend([encode(&to_coordinator()), encode(&to_member())]);
    let (version, name, mark) = ("1".into(), "node".into(), "m-0".into());
    all.push(encode(&Greeting::Agent {
        version,
        name,
        slots: 2,
        mark,
        shared_host: Some("a".into()),
    }));
    all.push(encode(&OfferAnswer::Refused { reason: "x".into() }));
    all.push(encode(&StandingRequest::Start { mark: "0f-1".into() }));
    let info = StandingInfo { version: "1".into(), name: "node-a".into(), slots: 4, instance: 9 };
    all.push(encode(&StandingAnswer::Here(info)));
    all.push(encode(&AgentToAgent::Carried { bytes: 1 << 40, micros: 80_000 }));
    all.extend(to_driver().iter().map(encode));
    all
}

fn agent_frames() -> Vec<Vec<u8>> {
    let exited = AgentToDriver::Exited { worker: Worker(1), exit: Exit::Signal(9) };
    let examined = AgentToDriver::Examined { facts: Box::default() };
    let signal = DriverToAgent::Signal { signal: 15 };
    vec![agent::frame(&exited), agent::frame(&examined), agent::frame(&signal)]
}

/// Every message from every member, one after the other.
fn negotiations() -> Vec<Vec<u8>> {
    let from_all =
        |message: &MemberToCoordinator| (0..3).flat_map(|rank| packet(rank, message)).collect();
    let mut all: Vec<Vec<u8>> = to_coordinator().iter().map(from_all).collect();
    all.push(all.concat());
    all.push(to_member().iter().flat_map(|message| packet(0, message)).collect());
    all
}

fn job_sequences() -> Vec<Vec<u8>> {
    let greet = |rank: u8| {
        packet(rank, &Greeting::Rendezvous { version: "1".into(), rank: Rank(rank.into()) })
    };
    let worker = |number: u8| {
        packet(number, &Greeting::Worker { version: "1".into(), worker: Worker(number.into()) })
    };
    let sequence = |last: &RankToDriver| {
        let [join, located, ..] = &to_driver()[..] else { return Vec::new() };
        let greetings = [greet(0), greet(1), worker(0), worker(1)];
        let all = [packet(0, join), packet(1, join), packet(0, located)];
        [greetings.concat(), all.concat(), packet(1, located), packet(0, last), vec![1, 0, 0, 1, 9]]
            .concat()
    };
    to_driver().iter().map(sequence).collect()
}

fn some_texts() -> Vec<Vec<u8>> {
    let texts =
        [Tuning::default().to_string(), key().to_hex(), "12".into(), "127.0.0.1:1,x".into()];
    let addresses = vec!["127.0.0.1:1".parse().expect("a valid address")];
    let invitation = Invitation { addresses, key: key() }.to_text();
    let texts = texts.into_iter().chain([invitation, "node[03-05,9]-ib,x".into()]);
    texts.map(String::into_bytes).collect()
}
