//! What strangers and confused peers may send, fed to whoever would read it: nothing may panic, and
//! nothing may be taken for something else.
//!
//! Each [`Target`] is one entry. The fuzzer in `fuzz/` explores them for as long as one likes; a
//! bounded run over random bytes and damaged messages belongs to the tests.

use std::time::Duration;

use ronde_control::cause::{CauseKind, Raised};
use ronde_control::event::JobKind;
use ronde_control::job::{AgentId, Event, Machine, Offer, Resting, Terms};
use ronde_control::launcher::{self, Invitation};
use ronde_control::negotiate::{
    Bulletin, Coordinator, CoordinatorToMember, Item, Kind, Member, MemberToCoordinator, Request,
    TensorId,
};
use ronde_control::status::{DriverToWatcher, WatcherToDriver};
use ronde_control::wire::agent::{
    self, AgentToAgent, AgentToDriver, DriverToAgent, Exit, OfferAnswer,
};
use ronde_control::wire::errand::Parcel;
use ronde_control::wire::frame::frame_length;
use ronde_control::wire::handshake::{Callee, Initiator, envelope_length, respond};
use ronde_control::wire::{DriverToRank, Greeting, JobKey, Peer, RankToDriver, decode, encode};
use ronde_control::{Connection, DType, Epoch, Rank, ReduceOp, SetId, Tuning, Worker};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// One entry: what takes the bytes, and bytes that mean something to it.
pub struct Target {
    /// Its name.
    pub name: &'static str,
    /// What takes the bytes.
    pub feed: fn(&[u8]),
    /// Bytes that mean something to it, to start from.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All entries.
pub const TARGETS: &[Target] = &[
    Target { name: "handshake", feed: handshake, seeds: handshakes },
    Target { name: "frames", feed: frames, seeds: edits },
    Target { name: "messages", feed: messages, seeds: all_messages },
    Target { name: "agent", feed: agent, seeds: agent_frames },
    Target { name: "negotiation", feed: negotiation, seeds: negotiations },
    Target { name: "jobs", feed: jobs, seeds: meetings },
    Target { name: "texts", feed: texts, seeds: some_texts },
];

fn key() -> JobKey {
    JobKey::from_entropy([7; 32])
}

/// The bytes as the first and as the second envelope of a handshake: a stranger never gets through.
pub fn handshake(bytes: &[u8]) {
    if let Some((header, body)) = bytes.split_first_chunk::<2>()
        && let Ok(length) = envelope_length(*header)
    {
        let body = &body[..length.min(body.len())];
        let (initiator, hello) = Initiator::start(&key(), Callee::Launcher);
        assert!(initiator.finish(body).is_err(), "nobody answers without having been asked");
        if body != &hello[2..] {
            // Another holder of the key may have said it, and then there is an answer.
            let _ = respond(&key(), Callee::Launcher, body);
        }
        assert!(
            respond(&JobKey::from_entropy([8; 32]), Callee::Launcher, body).is_err(),
            "that key is not theirs"
        );
    }
}

/// The bytes as damage to a sealed frame: pairs of a place and what is turned there. A frame that was
/// changed is never opened, and one that was not always is.
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

/// The bytes as each message that a sealed frame may hold.
pub fn messages(bytes: &[u8]) {
    same_again::<Greeting>(bytes);
    same_again::<RankToDriver>(bytes);
    same_again::<AgentToAgent>(bytes);
    same_again::<OfferAnswer>(bytes);
    same_again::<DriverToRank>(bytes);
    same_again::<Parcel>(bytes);
    same_again::<WatcherToDriver>(bytes);
    same_again::<DriverToWatcher>(bytes);
    same_again::<Vec<MemberToCoordinator>>(bytes);
    same_again::<Vec<CoordinatorToMember>>(bytes);
}

/// What can be decoded means the same when it is sent on.
fn same_again<M: Serialize + DeserializeOwned>(bytes: &[u8]) {
    if let Ok(message) = decode::<M>(bytes) {
        let once = encode(&message);
        let again: M = decode(&once).expect("what we encode can be decoded");
        assert_eq!(encode(&again), once);
    }
}

/// The bytes as a pipe between a driver and an agent.
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

/// The bytes as what three members tell the coordinator, and as what it tells a member.
pub fn negotiation(bytes: &[u8]) {
    let mut coordinator = Coordinator::new(3, 1000, 2);
    let mut members = [0, 1, 2].map(|rank| Member::new(Rank(rank)));
    for (time, (from, body)) in letters(bytes).enumerate() {
        if let Ok(message) = decode::<MemberToCoordinator>(body) {
            let now = Duration::from_millis(time as u64);
            coordinator.on(Rank(u32::from(from % 3)), message, now);
            coordinator.release();
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

/// The bytes as what workers and agents of jobs say: of a fixed one, of one whose ranks somebody else has
/// started, and of an elastic one.
pub fn jobs(bytes: &[u8]) {
    let limit = Duration::from_secs(5);
    let elastic = Terms {
        min: 1,
        max: Some(3),
        kind: JobKind::Elastic,
        resting: Resting::Slot,
        ..Terms::fixed(2, Duration::from_secs(9), Some(Duration::from_secs(1)))
    };
    let mut machines = [
        Machine::new("1", Terms::fixed(2, limit, Some(limit)), 1),
        Machine::kept_by_a_rank("1", 2, limit),
        Machine::new("1", Terms { timeout: limit, ..elastic }, 1),
    ];
    let offers = vec![Offer { host: "node".into(), slots: 3 }];
    for machine in &mut machines {
        machine.on(Event::Discovered(offers.clone()), Duration::ZERO);
        machine.on(Event::Ready(AgentId(0)), Duration::ZERO);
    }
    for (time, (from, body)) in letters(bytes).enumerate() {
        let now = Duration::from_millis(300 * time as u64);
        let connection = Connection(u64::from(from % 3));
        let events = [
            decode(body).ok().map(|greeting| Event::Greeted(connection, greeting)),
            decode(body).ok().map(|message| Event::Said(connection, message)),
            body.is_empty().then_some(Event::Closed(connection)),
            (body == [9]).then(|| Event::Exited(Worker(from.into()), Exit::Signal(9))),
            decode(body).ok().and_then(said_by_agent),
        ];
        for event in events.into_iter().flatten() {
            for machine in &mut machines {
                machine.on(event.clone(), now);
            }
        }
        machines.iter().for_each(|machine| drop((machine.next_wakeup(), machine.outcome())));
    }
}

fn said_by_agent(message: AgentToDriver) -> Option<Event> {
    match message {
        AgentToDriver::Started { worker, pid } => Some(Event::Started(worker, pid)),
        AgentToDriver::Exited { worker, exit } => Some(Event::Exited(worker, exit)),
        AgentToDriver::Stopped { worker } => Some(Event::Stopped(worker)),
        AgentToDriver::Continued { worker } => Some(Event::Continued(worker)),
        AgentToDriver::Looked { found } => Some(Event::Looked(found)),
        AgentToDriver::Leaving => Some(Event::Leaving(AgentId(0), Duration::from_secs(3))),
        _ => None,
    }
}

/// The bytes as what people write.
pub fn texts(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(tuning) = Tuning::parse(&text) {
        assert_eq!(Tuning::parse(&tuning.to_string()), Ok(tuning), "it can be read again");
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
    // A task of Slurm, whose list of hosts is the text.
    let step = |name: &str| match name {
        "SLURM_STEP_NODELIST" => Some(text.to_string()),
        "SLURM_PROCID" | "SLURM_STEP_ID" => Some("0".into()),
        "SLURM_STEP_NUM_TASKS" => Some("2".into()),
        _ => None,
    };
    let _ = launcher::detect(step);
}

/// Cuts bytes into letters: who wrote it, its length, and it.
fn letters(mut bytes: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let ([from, length], rest) = bytes.split_first_chunk::<2>()?;
        let (body, rest) = rest.split_at(rest.len().min(usize::from(*length)));
        bytes = rest;
        Some((*from, body))
    })
}

fn letter(from: u8, message: &impl Serialize) -> Vec<u8> {
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
        Kind::Allreduce { op, prescale, postscale },
        Kind::Allgather,
        Kind::Broadcast { root: Rank(1) },
        Kind::Alltoall { splits: vec![1, 2, 3] },
        Kind::Reducescatter { op, prescale, postscale },
        Kind::Barrier,
        Kind::AddSet { ranks: vec![Rank(0), Rank(2)] },
        Kind::RemoveSet { set: SetId(1) },
    ];
    let request = |kind: Kind| Request {
        name: "x".into(),
        set: SetId::WORLD,
        kind,
        dtype: DType::F32,
        shapes: vec![vec![6, 2]],
    };
    let mut requests: Vec<Request> = kinds.into_iter().map(request).collect();
    requests.push(Request { shapes: vec![vec![u64::MAX, 3]; 2], ..requests[0].clone() });
    requests
}

fn to_coordinator() -> Vec<MemberToCoordinator> {
    let announced = requests().into_iter().map(MemberToCoordinator::Announce);
    let others = [
        MemberToCoordinator::Known(TensorId(0)),
        MemberToCoordinator::Join,
        MemberToCoordinator::Leave { reason: Some("x".into()) },
    ];
    announced.chain(others).collect()
}

fn to_member() -> Vec<CoordinatorToMember> {
    let named = Item::Named {
        name: "x".into(),
        id: Some(TensorId(1)),
        shares: vec![vec![1]; 3],
        request: requests().pop(),
    };
    vec![
        CoordinatorToMember::Release(vec![named, Item::Known(TensorId(1))]),
        CoordinatorToMember::Forget(TensorId(1)),
        CoordinatorToMember::SetAdded { name: "x".into(), id: SetId(1), generation: 1 },
        CoordinatorToMember::Bulletin(Bulletin::Left { rank: Rank(1), reason: None }),
    ]
}

fn to_driver() -> Vec<RankToDriver> {
    let addresses = vec!["127.0.0.1:1".parse().expect("an address")];
    let (host, unix) = ("h".to_owned(), Some("u".to_owned()));
    vec![
        RankToDriver::Join(Peer { pid: 1, host, local_rank: 0, addresses, unix }),
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
    all.push(encode(&Greeting::Agent { version, name, slots: 2, mark }));
    all.push(encode(&OfferAnswer::Refused { reason: "x".into() }));
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

/// Every message from everybody, one after the other.
fn negotiations() -> Vec<Vec<u8>> {
    let from_all =
        |message: &MemberToCoordinator| (0..3).flat_map(|rank| letter(rank, message)).collect();
    let mut all: Vec<Vec<u8>> = to_coordinator().iter().map(from_all).collect();
    all.push(all.concat());
    all.push(to_member().iter().flat_map(|message| letter(0, message)).collect());
    all
}

fn meetings() -> Vec<Vec<u8>> {
    let greet = |rank: u8| {
        letter(rank, &Greeting::Rendezvous { version: "1".into(), rank: Rank(rank.into()) })
    };
    let worker = |number: u8| {
        letter(number, &Greeting::Worker { version: "1".into(), worker: Worker(number.into()) })
    };
    let story = |last: &RankToDriver| {
        let [join, located, ..] = &to_driver()[..] else { return Vec::new() };
        let greetings = [greet(0), greet(1), worker(0), worker(1)];
        let all = [letter(0, join), letter(1, join), letter(0, located)];
        [greetings.concat(), all.concat(), letter(1, located), letter(0, last), vec![1, 0, 0, 1, 9]]
            .concat()
    };
    to_driver().iter().map(story).collect()
}

fn some_texts() -> Vec<Vec<u8>> {
    let texts =
        [Tuning::default().to_string(), key().to_hex(), "12".into(), "127.0.0.1:1,x".into()];
    let addresses = vec!["127.0.0.1:1".parse().expect("this is an address")];
    let invitation = Invitation { addresses, key: key() }.to_text();
    let texts = texts.into_iter().chain([invitation, "node[03-05,9]-ib,x".into()]);
    texts.map(String::into_bytes).collect()
}
