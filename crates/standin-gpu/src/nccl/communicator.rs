//! One rank of a communicator: its connection to the server, and what it waits for.
//!
//! A thread reads the answers, and operations on streams wait for theirs. Only an answer or an
//! abort ends such a wait. A lost peer or server does not: NCCL's kernels, too, spin until they are
//! aborted. With `peer-death=error` it becomes an asynchronous error.

use std::collections::HashMap;
use std::net::Shutdown;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::errors::{IN_PROGRESS, NcclFailure, NcclResult, REMOTE_ERROR, SUCCESS};
use super::id::FakeUniqueId;
use super::operators::UserOperators;
use super::wire::{self, NcclHeader, NcclKind};
use crate::config::{self, CallPlan, PeerDeath};
use crate::handles::{Handles, lock};

static COMMUNICATORS: Handles<FakeCommunicator> = Handles::new();

pub(super) struct FakeCommunicator {
    pub(super) rank: u64,
    pub(super) size: u64,
    /// The ordinal of its device.
    pub(super) device: usize,
    pub(super) is_blocking: bool,
    id: FakeUniqueId,
    splits: AtomicU64,
    pub(super) operators: UserOperators,
    /// Whether something was launched on it before.
    pub(super) has_launched: AtomicBool,
    state: Mutex<RankProgress>,
    changed: Condvar,
    /// Set when connected. One message is written at a time.
    link: Mutex<Option<Arc<UnixStream>>>,
    writing: Mutex<()>,
}

type AnswerKey = (NcclKind, u64, u64);

struct RankProgress {
    status: i32,
    text: String,
    is_aborted: bool,
    answers: HashMap<AnswerKey, Vec<u8>>,
    /// Operations queued on streams that have not ended.
    queued: usize,
    /// Operations that are running.
    running: usize,
    /// The last number used for collectives, and for messages to and from each rank.
    numbers: HashMap<(NcclKind, u64), u64>,
}

/// What a rank tells the server about itself.
#[derive(Clone, Copy)]
pub(super) struct NcclMembership {
    pub(super) rank: u64,
    pub(super) size: u64,
    pub(super) device: usize,
    /// The device's number on the machine.
    pub(super) physical: usize,
}

impl FakeCommunicator {
    pub(super) fn find(handle: usize) -> NcclResult<Arc<Self>> {
        COMMUNICATORS.find(handle).ok_or_else(|| NcclFailure::argument("no such communicator"))
    }

    /// The communicator, if it is neither in progress nor failed.
    pub(super) fn ready(handle: usize) -> NcclResult<Arc<Self>> {
        let communicator = Self::find(handle)?;
        let state = lock(&communicator.state);
        match state.status {
            SUCCESS => {}
            IN_PROGRESS => {
                return Err(NcclFailure::argument(
                    "Attempt to use communicator before the previous operation returned ncclSuccess",
                ));
            }
            code => return Err(NcclFailure { code, text: state.text.clone() }),
        }
        drop(state);
        Ok(communicator)
    }

    pub(super) fn forget(handle: usize) {
        COMMUNICATORS.remove(handle);
    }

    /// Starts to connect; the status is "in progress" until all ranks have joined.
    pub(super) fn join(
        id: &FakeUniqueId,
        own: NcclMembership,
        is_blocking: bool,
        (call, is_split): (&CallPlan, bool),
    ) -> NcclResult<(usize, Arc<Self>)> {
        let (address, token) = (id.address()?, id.token());
        let communicator = Arc::new(Self {
            rank: own.rank,
            size: own.size,
            device: own.device,
            is_blocking,
            id: *id,
            splits: AtomicU64::new(0),
            operators: UserOperators::default(),
            has_launched: AtomicBool::new(false),
            state: Mutex::new(RankProgress {
                status: IN_PROGRESS,
                text: String::new(),
                is_aborted: false,
                answers: HashMap::new(),
                queued: 0,
                running: 0,
                numbers: HashMap::new(),
            }),
            changed: Condvar::new(),
            link: Mutex::new(None),
            writing: Mutex::new(()),
        });
        let may_share = std::env::var("NCCL_MULTI_RANK_GPU_ENABLE").is_ok_and(|value| value == "1");
        let hello = NcclHeader {
            kind: NcclKind::Hello,
            sequence: own.rank,
            count: own.size,
            dtype: own.physical as u64,
            operator: config::read().nccl as u64,
            peer: u64::from(may_share),
        };
        let (reader, hangs) = (Arc::clone(&communicator), call.hangs);
        let connect = move || {
            if hangs {
                return;
            }
            let Some(stream) = reader.dial(&address, if is_split { 5000 } else { 1 }) else {
                return reader
                    .set_status(NcclFailure::system("nobody answers at the id's address"));
            };
            let stream = Arc::new(stream);
            *lock(&reader.link) = Some(Arc::clone(&stream));
            if lock(&reader.state).is_aborted || wire::write(&stream, &hello, &token).is_err() {
                return reader.lose("the server");
            }
            reader.read(&stream);
        };
        let named = thread::Builder::new().name("standin-nccl-rank".into());
        named.spawn(connect).map_err(|error| NcclFailure::system(format!("no thread: {error}")))?;
        Ok((COMMUNICATORS.add(Arc::clone(&communicator)), communicator))
    }

    /// The server of a split starts while other ranks already dial.
    fn dial(&self, address: &SocketAddr, attempts: u32) -> Option<UnixStream> {
        for _ in 0..attempts {
            if let Ok(stream) = UnixStream::connect_addr(address) {
                return Some(stream);
            }
            if lock(&self.state).is_aborted {
                return None;
            }
            thread::sleep(Duration::from_millis(1));
        }
        None
    }

    /// The id of the next communicator that is split off this one.
    pub(super) fn id_of_split(&self) -> FakeUniqueId {
        self.id.split(self.splits.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Waits until the set-up has succeeded or failed.
    pub(super) fn wait_for_setup(&self) -> NcclResult {
        let waits = |state: &mut RankProgress| state.status == IN_PROGRESS && !state.is_aborted;
        let state = lock(&self.state);
        let state = self.changed.wait_while(state, waits).unwrap_or_else(PoisonError::into_inner);
        match state.status {
            SUCCESS => Ok(()),
            code => Err(NcclFailure { code, text: state.text.clone() }),
        }
    }

    pub(super) fn status(&self) -> i32 {
        lock(&self.state).status
    }

    pub(super) fn set_in_progress(&self) {
        lock(&self.state).status = IN_PROGRESS;
    }

    /// Ends "in progress", unless there was an error meanwhile.
    pub(super) fn set_done(&self) {
        let mut state = lock(&self.state);
        if state.status == IN_PROGRESS {
            state.status = SUCCESS;
        }
        self.changed.notify_all();
    }

    /// Makes the error of a call stick; the first one stays.
    pub(super) fn fail(&self, code: i32) {
        let mut state = lock(&self.state);
        if matches!(state.status, SUCCESS | IN_PROGRESS) {
            (state.status, state.text) = (code, "a call on this communicator has failed".into());
        }
    }

    fn set_status(&self, failure: NcclFailure) {
        let mut state = lock(&self.state);
        (state.status, state.text) = (failure.code, failure.text);
        self.changed.notify_all();
    }

    fn read(&self, stream: &UnixStream) {
        while let Ok((header, payload)) = wire::read(stream) {
            match header.kind {
                NcclKind::Welcome if header.dtype == 0 => self.set_done(),
                NcclKind::Welcome | NcclKind::Mismatch => {
                    let text = String::from_utf8_lossy(&payload).into_owned();
                    let failure = NcclFailure::usage(text);
                    failure.tell();
                    self.set_status(failure);
                }
                NcclKind::Lost => self.lose(&format!("rank {}", header.peer)),
                _ => {
                    lock(&self.state).answers.insert(header.key(), payload);
                    self.changed.notify_all();
                }
            }
        }
        self.lose("the server");
    }

    /// Reports a lost peer if the configuration says so.
    fn lose(&self, peer: &str) {
        let is_over = lock(&self.state).is_aborted;
        if !is_over && config::read().peer_death == PeerDeath::Error {
            let text = format!("connection closed by {peer}");
            self.set_status(NcclFailure { code: REMOTE_ERROR, text });
        }
    }

    /// The next number of a collective (without a peer) or of a message.
    pub(super) fn number(&self, kind: NcclKind, peer: u64) -> u64 {
        let key = match kind {
            NcclKind::Send | NcclKind::Receive => (kind, peer),
            _ => (NcclKind::AllReduce, 0),
        };
        let mut state = lock(&self.state);
        let next = state.numbers.entry(key).or_default();
        *next += 1;
        *next
    }

    pub(super) fn has_queued(&self) {
        lock(&self.state).queued += 1;
    }

    /// Runs an operation on a stream's thread, unless the communicator was aborted.
    pub(super) fn run<T>(&self, operation: impl FnOnce() -> T) -> Option<T> {
        let may_begin = {
            let mut state = lock(&self.state);
            state.running += 1;
            !state.is_aborted
        };
        let result = may_begin.then(operation);
        let mut state = lock(&self.state);
        state.running -= 1;
        state.queued -= 1;
        self.changed.notify_all();
        result
    }

    pub(super) fn send(&self, header: &NcclHeader, payload: &[u8]) {
        let Some(link) = lock(&self.link).clone() else { return };
        let _turn = lock(&self.writing);
        // If the server is gone there will be no answer, and the operation waits for an abort.
        let _ = wire::write(&link, header, payload);
    }

    /// Waits for an answer; `None` when aborted.
    pub(super) fn receive(&self, header: &NcclHeader) -> Option<Vec<u8>> {
        let key = header.key();
        let waits =
            |state: &mut RankProgress| !state.is_aborted && !state.answers.contains_key(&key);
        let state = lock(&self.state);
        let mut state =
            self.changed.wait_while(state, waits).unwrap_or_else(PoisonError::into_inner);
        if state.is_aborted { None } else { state.answers.remove(&key) }
    }

    pub(super) fn wait_for_abort(&self) {
        let state = lock(&self.state);
        let _state = self
            .changed
            .wait_while(state, |state| !state.is_aborted)
            .unwrap_or_else(PoisonError::into_inner);
    }

    /// Waits until nothing is queued any more.
    pub(super) fn drain(&self) {
        let state = lock(&self.state);
        let _state = self
            .changed
            .wait_while(state, |state| state.queued > 0 && !state.is_aborted)
            .unwrap_or_else(PoisonError::into_inner);
    }

    /// Disconnects in an orderly way.
    pub(super) fn leave(&self) {
        self.send(&NcclHeader::of(NcclKind::Goodbye), &[]);
        self.disconnect();
    }

    /// Ends all waits, and returns once no operation touches memory any more.
    pub(super) fn abort(&self) {
        lock(&self.state).is_aborted = true;
        self.changed.notify_all();
        self.disconnect();
        let state = lock(&self.state);
        let _state = self
            .changed
            .wait_while(state, |state| state.running > 0)
            .unwrap_or_else(PoisonError::into_inner);
    }

    fn disconnect(&self) {
        lock(&self.state).is_aborted = true;
        if let Some(link) = lock(&self.link).take() {
            // It may be closed already.
            let _ = link.shutdown(Shutdown::Both);
        }
        self.changed.notify_all();
    }

    /// Whether this is the first launch on this communicator.
    pub(super) fn launches_first(&self) -> bool {
        !self.has_launched.swap(true, Ordering::Relaxed)
    }
}
