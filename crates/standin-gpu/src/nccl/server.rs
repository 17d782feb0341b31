//! The server of a communicator: a thread for each rank, in the process that made the id.
//!
//! 1. A rank presents the token, its rank and its device.
//! 2. Once all have joined, all are welcomed, or all are told why not.
//! 3. Contributions to a collective are matched by number; the last one completes it. A send and a
//!    receive are matched by ranks and number.
//! 4. If a rank disconnects without a goodbye, the others are told that it is lost. Collectives
//!    that need it never complete.
//!
//! Each connection has its own thread, so a silent rank holds up nobody else.

use std::collections::{BTreeMap, HashMap};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::{Arc, Mutex};
use std::thread;

use super::elements::{NcclType, ReduceOperator, reduce};
use super::errors::{INVALID_USAGE, NcclFailure, NcclResult, SUCCESS};
use super::id::IdToken;
use super::wire::{self, NcclHeader, NcclKind};
use crate::handles::lock;

/// The first version of NCCL that lets ranks share a device.
const SHARES_DEVICES: u64 = 23000;
const MOST_RANKS: u64 = 4096;

struct NcclServer {
    token: IdToken,
    address: SocketAddr,
    state: Mutex<ServerState>,
}

#[derive(Default)]
struct ServerState {
    /// Set by the first rank to join.
    size: u64,
    members: BTreeMap<u64, NcclMember>,
    is_complete: bool,
    collectives: HashMap<u64, BTreeMap<u64, NcclContribution>>,
    /// By sender, receiver and number.
    sends: HashMap<(u64, u64, u64), NcclContribution>,
    receives: HashMap<(u64, u64, u64), NcclHeader>,
}

type NcclContribution = (NcclHeader, Vec<u8>);
/// One message is written at a time.
type MemberWriter = Arc<Mutex<UnixStream>>;

#[derive(Clone)]
struct NcclMember {
    stream: MemberWriter,
    device: u64,
    version: u64,
    may_share: bool,
}

/// Messages to send once the state is unlocked.
#[derive(Default)]
struct NcclOutbox {
    messages: Vec<(MemberWriter, NcclHeader, Arc<Vec<u8>>)>,
}

/// Starts the server of an id.
pub(super) fn start(listener: UnixListener, address: SocketAddr, token: IdToken) -> NcclResult {
    let server = Arc::new(NcclServer { token, address, state: Mutex::default() });
    let accept = move || {
        for stream in listener.incoming().map_while(Result::ok) {
            if lock(&server.state).is_complete {
                return;
            }
            let server = Arc::clone(&server);
            let named = thread::Builder::new().name("standin-nccl-peer".into());
            // Without a thread, the connection closes and the rank notices.
            let _ = named.spawn(move || server.serve(&stream));
        }
    };
    let named = thread::Builder::new().name("standin-nccl".into());
    named.spawn(accept).map_err(|error| NcclFailure::system(format!("no thread: {error}")))?;
    Ok(())
}

impl NcclServer {
    fn serve(&self, stream: &UnixStream) {
        let Ok((hello, token)) = wire::read_up_to(stream, 16) else { return };
        if hello.kind != NcclKind::Hello || token != self.token {
            return;
        }
        let Ok(writer) = stream.try_clone() else { return };
        let Some(outbox) = self.admit(&hello, writer) else { return };
        outbox.send();
        let rank = hello.sequence;
        while let Ok((header, payload)) = wire::read(stream) {
            if header.kind == NcclKind::Goodbye {
                return;
            }
            self.on(rank, header, payload).send();
        }
        self.lose(rank).send();
    }

    /// Admits a rank. The last one completes the communicator.
    fn admit(&self, hello: &NcclHeader, stream: UnixStream) -> Option<NcclOutbox> {
        let (rank, size) = (hello.sequence, hello.count);
        let member = NcclMember {
            stream: Arc::new(Mutex::new(stream)),
            device: hello.dtype,
            version: hello.operator,
            may_share: hello.peer != 0,
        };
        let mut outbox = NcclOutbox::default();
        let mut state = lock(&self.state);
        if state.members.is_empty() {
            state.size = size;
        }
        let is_wrong = rank >= size || size > MOST_RANKS || size != state.size;
        if is_wrong || state.members.contains_key(&rank) {
            let text = format!("rank {rank} of {size} has no place in this communicator");
            let welcome =
                NcclHeader { dtype: INVALID_USAGE as u64, ..NcclHeader::of(NcclKind::Welcome) };
            outbox.add(&member, welcome, text.into_bytes());
            drop(state);
            outbox.send();
            return None;
        }
        state.members.insert(rank, member);
        if state.members.len() as u64 == state.size {
            state.is_complete = true;
            let (code, text) = match duplicate_device(&state.members) {
                Some(text) => (INVALID_USAGE, text),
                None => (SUCCESS, String::new()),
            };
            let welcome = NcclHeader { dtype: code as u64, ..NcclHeader::of(NcclKind::Welcome) };
            outbox.add_all(state.members.values(), welcome, text.into_bytes());
            // Wakes the listening thread, which then ends.
            let _ = UnixStream::connect_addr(&self.address);
        }
        Some(outbox)
    }

    fn on(&self, rank: u64, header: NcclHeader, payload: Vec<u8>) -> NcclOutbox {
        let mut state = lock(&self.state);
        match header.kind {
            NcclKind::AllReduce
            | NcclKind::Broadcast
            | NcclKind::AllGather
            | NcclKind::ReduceScatter => {
                let parts = state.collectives.entry(header.sequence).or_default();
                parts.insert(rank, (header, payload));
                if (parts.len() as u64) < state.size {
                    return NcclOutbox::default();
                }
                let parts = state.collectives.remove(&header.sequence).unwrap_or_default();
                let members = state.members.clone();
                drop(state);
                complete(&members, &parts)
            }
            NcclKind::Send => {
                state.sends.insert((rank, header.peer, header.sequence), (header, payload));
                state.deliver((rank, header.peer, header.sequence))
            }
            NcclKind::Receive => {
                state.receives.insert((header.peer, rank, header.sequence), header);
                state.deliver((header.peer, rank, header.sequence))
            }
            NcclKind::Hello
            | NcclKind::Welcome
            | NcclKind::Goodbye
            | NcclKind::Lost
            | NcclKind::Mismatch => NcclOutbox::default(),
        }
    }

    /// Tells the others. Nobody can join in its place.
    fn lose(&self, rank: u64) -> NcclOutbox {
        let mut outbox = NcclOutbox::default();
        let state = lock(&self.state);
        let others = state.members.iter().filter(|(other, _)| **other != rank);
        let lost = NcclHeader { peer: rank, ..NcclHeader::of(NcclKind::Lost) };
        outbox.add_all(others.map(|(_, member)| member), lost, Vec::new());
        outbox
    }
}

impl ServerState {
    /// Answers sender and receiver if both have called.
    fn deliver(&mut self, key: (u64, u64, u64)) -> NcclOutbox {
        let mut outbox = NcclOutbox::default();
        if !self.sends.contains_key(&key) || !self.receives.contains_key(&key) {
            return outbox;
        }
        let (Some((sent, payload)), Some(received)) =
            (self.sends.remove(&key), self.receives.remove(&key))
        else {
            return outbox;
        };
        let (Some(sender), Some(receiver)) = (self.members.get(&key.0), self.members.get(&key.1))
        else {
            return outbox;
        };
        if (sent.dtype, sent.count) != (received.dtype, received.count) {
            let text =
                format!("rank {} sent {sent:?}, rank {} expected {received:?}", key.0, key.1);
            outbox.add_all(
                [sender, receiver],
                NcclHeader::of(NcclKind::Mismatch),
                text.into_bytes(),
            );
            return outbox;
        }
        outbox.add(sender, sent, Vec::new());
        outbox.add(receiver, received, payload);
        outbox
    }
}

impl NcclOutbox {
    fn add(&mut self, to: &NcclMember, header: NcclHeader, payload: Vec<u8>) {
        self.messages.push((Arc::clone(&to.stream), header, Arc::new(payload)));
    }

    fn add_all<'a>(
        &mut self,
        to: impl IntoIterator<Item = &'a NcclMember>,
        header: NcclHeader,
        payload: Vec<u8>,
    ) {
        let payload = Arc::new(payload);
        let message =
            |member: &NcclMember| (Arc::clone(&member.stream), header, Arc::clone(&payload));
        self.messages.extend(to.into_iter().map(message));
    }

    fn send(self) {
        for (stream, header, payload) in self.messages {
            // The thread that reads from this rank notices that it is gone.
            let _ = wire::write(&lock(&stream), &header, &payload);
        }
    }
}

/// The result of a collective that all ranks have joined.
fn complete(
    members: &BTreeMap<u64, NcclMember>,
    parts: &BTreeMap<u64, NcclContribution>,
) -> NcclOutbox {
    let mut outbox = NcclOutbox::default();
    let Some((first, _)) = parts.values().next() else { return outbox };
    if let Some((rank, (other, _))) = parts.iter().find(|(_, (other, _))| other != first) {
        let text = format!("rank 0 called {first:?}, rank {rank} called {other:?}");
        outbox.add_all(members.values(), NcclHeader::of(NcclKind::Mismatch), text.into_bytes());
        return outbox;
    }
    let inputs: Vec<&[u8]> = parts.values().map(|(_, payload)| payload.as_slice()).collect();
    let (Ok(dtype), Some(reduction)) =
        (NcclType::from_number(first.dtype), ReduceOperator::from_number(first.operator))
    else {
        return outbox;
    };
    let result = match first.kind {
        NcclKind::Broadcast => {
            inputs.get(first.peer as usize).copied().unwrap_or_default().to_vec()
        }
        NcclKind::AllGather => inputs.concat(),
        _ => reduce(dtype, reduction, &inputs),
    };
    if first.kind == NcclKind::ReduceScatter {
        let share = result.len() / members.len().max(1);
        for (rank, member) in members {
            let start = *rank as usize * share;
            outbox.add(member, *first, result[start..start + share].to_vec());
        }
    } else {
        outbox.add_all(members.values(), *first, result);
    }
    outbox
}

/// NCCL's message if two ranks share a device and may not.
fn duplicate_device(members: &BTreeMap<u64, NcclMember>) -> Option<String> {
    let may_share = |member: &NcclMember| member.version >= SHARES_DEVICES && member.may_share;
    let mut seen: HashMap<u64, u64> = HashMap::new();
    for (rank, member) in members {
        if let Some(other) = seen.insert(member.device, *rank)
            && !(may_share(member) && members.get(&other).is_some_and(may_share))
        {
            let device = member.device + 1;
            return Some(format!(
                "Duplicate GPU detected : rank {rank} and rank {other} both on CUDA device {device:x}000"
            ));
        }
    }
    None
}
