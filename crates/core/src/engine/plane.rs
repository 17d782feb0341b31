//! The control plane: carries the negotiation's messages between the members and the coordinator
//! through shared memory or sockets, in order and without blocking.
//!
//! In shared memory, a message that does not fit into one frame is split; each frame starts with a
//! byte that says whether more frames follow. Frames that do not fit into the queue or the log wait
//! in a backlog.

use std::collections::VecDeque;
use std::sync::Arc;

use ronde_control::Rank;
use ronde_control::negotiate::{CoordinatorToMember, MemberToCoordinator};
use ronde_control::wire::{decode, encode};
use serde::de::DeserializeOwned;

use crate::transport::shm::{LogReader, LogWriter, Queue, Segment};
use crate::transport::wire::SealedWire;

/// Messages that go into one sealed frame.
const BATCH: usize = 1000;

/// The coordinator's end.
pub(super) struct LeadPlane {
    island: Option<Island>,
    wires: Vec<(Rank, SealedWire)>,
}

/// The members that share memory with the coordinator.
struct Island {
    queues: Vec<(Rank, Queue, Vec<u8>)>,
    log: LogWriter,
    backlog: VecDeque<Vec<u8>>,
}

/// A member's end.
pub(super) enum FollowPlane {
    Shared { queue: Queue, log: LogReader, backlog: VecDeque<Vec<u8>>, partial: Vec<u8> },
    Linked { wire: SealedWire },
}

/// A broken control connection.
pub(super) struct Broken {
    pub(super) rank: Rank,
    pub(super) cause: String,
    pub(super) transport: ControlPath,
}

/// What carries the messages between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ControlPath {
    Memory,
    Socket,
}

impl LeadPlane {
    /// Connects the coordinator to the ranks of its island, in the order of their local indices,
    /// and to the ranks that have dialed in.
    pub(super) fn new(
        island: Option<(&Arc<Segment>, &[Rank])>,
        wires: Vec<(Rank, SealedWire)>,
    ) -> LeadPlane {
        LeadPlane { island: island.map(|(segment, ranks)| Island::new(segment, ranks)), wires }
    }

    pub(super) fn send(&mut self, messages: &[CoordinatorToMember]) -> Result<(), Broken> {
        if let Some(island) = &mut self.island {
            island.backlog.extend(fragments(&encode(&messages), LogWriter::limit()));
        }
        for (rank, wire) in &mut self.wires {
            for batch in messages.chunks(BATCH) {
                wire.send(&batch).map_err(|error| broken(*rank, &error))?;
            }
        }
        self.flush().map(|_| ())
    }

    /// Sends the backlog; returns whether it is empty now.
    pub(super) fn flush(&mut self) -> Result<bool, Broken> {
        let mut all = self.island.as_mut().is_none_or(Island::flush);
        for (rank, wire) in &mut self.wires {
            all &= wire.flush().map_err(|error| broken(*rank, &error))?;
        }
        Ok(all)
    }

    /// The next messages from any member.
    pub(super) fn receive(&mut self) -> Result<Option<(Rank, Vec<MemberToCoordinator>)>, Broken> {
        if let Some(island) = &mut self.island
            && let Some(received) = island.receive()?
        {
            return Ok(Some(received));
        }
        for (rank, wire) in &mut self.wires {
            let received = wire.receive().map_err(|error| broken(*rank, &error))?;
            if let Some(messages) = received {
                return Ok(Some((*rank, messages)));
            }
        }
        Ok(None)
    }

    /// Whether messages have arrived that were not received yet. Sockets are not polled.
    pub(super) fn has_input(&self) -> bool {
        let has_message = |(_, queue, _): &(Rank, Queue, Vec<u8>)| !queue.is_empty();
        self.island.as_ref().is_some_and(|island| island.queues.iter().any(has_message))
            || self.wires.iter().any(|(_, wire)| wire.has_frame())
    }

    pub(super) fn has_backlog(&self) -> bool {
        self.island.as_ref().is_some_and(|island| !island.backlog.is_empty())
            || self.wires.iter().any(|(_, wire)| wire.wants_to_write())
    }

    /// Tells all members that no more messages will follow and that they may close.
    pub(super) fn finish(&mut self) {
        self.wires.iter().for_each(|(_, wire)| wire.socket().finish());
    }
}

impl Island {
    fn new(segment: &Arc<Segment>, ranks: &[Rank]) -> Island {
        let local_ranks = ranks.iter().enumerate().skip(1);
        let queue = |(local_index, rank): (usize, &Rank)| {
            (*rank, Queue::of(segment.clone(), local_index), vec![])
        };
        let log = LogWriter::new(segment.clone());
        Island { queues: local_ranks.map(queue).collect(), log, backlog: VecDeque::new() }
    }

    fn flush(&mut self) -> bool {
        while self.backlog.front().is_some_and(|frame| self.log.push(frame)) {
            self.backlog.pop_front();
        }
        self.backlog.is_empty()
    }

    fn receive(&mut self) -> Result<Option<(Rank, Vec<MemberToCoordinator>)>, Broken> {
        for (rank, queue, partial) in &mut self.queues {
            let frame = || queue.pop().map_err(|_| "its queue is corrupt");
            let received = assemble(partial, frame).map_err(|cause| Broken {
                rank: *rank,
                cause: cause.into(),
                transport: ControlPath::Memory,
            })?;
            if let Some(messages) = received {
                return Ok(Some((*rank, messages)));
            }
        }
        Ok(None)
    }
}

impl FollowPlane {
    pub(super) fn shared(segment: &Arc<Segment>, me: usize) -> FollowPlane {
        FollowPlane::Shared {
            queue: Queue::of(segment.clone(), me),
            log: LogReader::new(segment.clone(), me),
            backlog: VecDeque::new(),
            partial: Vec::new(),
        }
    }

    pub(super) fn send(&mut self, messages: &[MemberToCoordinator]) -> Result<(), Broken> {
        match self {
            FollowPlane::Shared { backlog, .. } => {
                backlog.extend(fragments(&encode(&messages), Queue::limit()));
            }
            FollowPlane::Linked { wire } => {
                for batch in messages.chunks(BATCH) {
                    wire.send(&batch).map_err(|error| broken(Rank(0), &error))?;
                }
            }
        }
        self.flush().map(|_| ())
    }

    pub(super) fn flush(&mut self) -> Result<bool, Broken> {
        match self {
            FollowPlane::Shared { queue, backlog, .. } => {
                while backlog.front().is_some_and(|frame| queue.push(frame)) {
                    backlog.pop_front();
                }
                Ok(backlog.is_empty())
            }
            FollowPlane::Linked { wire } => wire.flush().map_err(|error| broken(Rank(0), &error)),
        }
    }

    pub(super) fn receive(&mut self) -> Result<Option<Vec<CoordinatorToMember>>, Broken> {
        match self {
            FollowPlane::Shared { log, partial, .. } => {
                let frame = || log.pop().map_err(|_| "its log is corrupt");
                assemble(partial, frame).map_err(|cause| Broken {
                    rank: Rank(0),
                    cause: cause.into(),
                    transport: ControlPath::Memory,
                })
            }
            FollowPlane::Linked { wire } => wire.receive().map_err(|error| broken(Rank(0), &error)),
        }
    }

    pub(super) fn has_input(&self) -> bool {
        match self {
            FollowPlane::Shared { log, .. } => !log.is_empty(),
            FollowPlane::Linked { wire } => wire.has_frame(),
        }
    }

    pub(super) fn has_backlog(&self) -> bool {
        match self {
            FollowPlane::Shared { backlog, .. } => !backlog.is_empty(),
            FollowPlane::Linked { wire } => wire.wants_to_write(),
        }
    }

    /// Whether a doorbell of this island wakes the coordinator.
    pub(super) fn is_shared(&self) -> bool {
        matches!(self, FollowPlane::Shared { .. })
    }

    /// Whether the coordinator should be woken even if it has no work of its own.
    pub(super) fn is_pressing(&self) -> bool {
        match self {
            FollowPlane::Shared { queue, backlog, .. } => {
                !backlog.is_empty() || queue.is_half_full()
            }
            FollowPlane::Linked { .. } => false,
        }
    }

    pub(super) fn finish(&mut self) {
        if let FollowPlane::Linked { wire } = self {
            wire.socket().finish();
        }
    }
}

fn broken(rank: Rank, error: &std::io::Error) -> Broken {
    Broken { rank, cause: format!("its connection broke: {error}"), transport: ControlPath::Socket }
}

/// Cuts a message into frames of at most `limit` bytes.
fn fragments(bytes: &[u8], limit: usize) -> Vec<Vec<u8>> {
    let mut frames: Vec<Vec<u8>> =
        bytes.chunks(limit - 1).map(|chunk| [&[1], chunk].concat()).collect();
    if let Some(last) = frames.last_mut() {
        last[0] = 0;
    }
    frames
}

/// Joins frames until one says that it is the last.
fn assemble<M: DeserializeOwned>(
    partial: &mut Vec<u8>,
    mut next: impl FnMut() -> Result<Option<Vec<u8>>, &'static str>,
) -> Result<Option<M>, &'static str> {
    while let Some(frame) = next()? {
        let (more, body) = frame.split_first().ok_or("it sent an empty frame")?;
        partial.extend_from_slice(body);
        if *more == 0 {
            let bytes = std::mem::take(partial);
            return decode(&bytes)
                .map(Some)
                .map_err(|_| "it sent a message that cannot be decoded");
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use ronde_control::negotiate::{CollectiveKind, Request};
    use ronde_control::{DType, DeviceKind, ReduceOp, SetId};

    use super::*;

    fn request(tensors: usize) -> Request {
        Request {
            name: "group".into(),
            set: SetId::WORLD,
            kind: CollectiveKind::Allreduce { op: ReduceOp::Sum, prescale: 1.0, postscale: 1.0 },
            dtype: DType::F32,
            shapes: vec![vec![1000, 1000, 1000]; tensors],
            device: DeviceKind::Cpu,
        }
    }

    #[test]
    fn messages_of_any_length_arrive_in_order() {
        let (segment, _fd) = Segment::create(2).unwrap();
        let segment = Arc::new(segment);
        let mut lead = LeadPlane::new(Some((&segment, &[Rank(0), Rank(1)])), vec![]);
        let mut follow = FollowPlane::shared(&segment, 1);
        let sizes = [1, 50_000, 3, 20_000];
        for size in sizes {
            let message = [MemberToCoordinator::Announce(request(size))];
            assert!(follow.send(&message).is_ok());
        }
        let mut seen = Vec::new();
        while seen.len() < sizes.len() {
            match lead.receive().ok().unwrap() {
                Some((Rank(1), messages)) => match messages.as_slice() {
                    [MemberToCoordinator::Announce(request)] => seen.push(request.shapes.len()),
                    other => panic!("{other:?}"),
                },
                Some((rank, _)) => panic!("{rank}"),
                None => drop(follow.flush()),
            }
        }
        assert_eq!(seen, sizes);
        assert!(!follow.has_backlog() && !lead.has_input());
    }
}
