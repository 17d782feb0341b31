//! Groups of calls, and launching: calls between `ncclGroupStart` and `ncclGroupEnd` are queued
//! together, so that sends and receives do not deadlock.
//!
//! On a non-blocking communicator a launch may return before it is queued, as with NCCL, where
//! connections are made at the first use. An event recorded on the stream before the communicator
//! is ready again is then recorded too early.
#![expect(unsafe_code, reason = "exports C symbols")]

use std::cell::RefCell;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::calls::FakeOperation;
use super::communicator::FakeCommunicator;
use super::errors::{IN_PROGRESS, NcclFailure, NcclResult};
use super::nccl;
use crate::config::{self, CallPlan, InProgress};
use crate::driver::streams::FakeStream;

thread_local! {
    static GROUP: RefCell<OpenGroup> = const { RefCell::new(OpenGroup::new()) };
}

/// What a thread has asked for since `ncclGroupStart`.
struct OpenGroup {
    depth: usize,
    setups: Vec<Arc<FakeCommunicator>>,
    launches: Vec<GroupLaunch>,
    failure: Option<NcclFailure>,
}

impl OpenGroup {
    const fn new() -> Self {
        Self { depth: 0, setups: Vec::new(), launches: Vec::new(), failure: None }
    }
}

/// Operations for one stream.
struct GroupLaunch {
    communicator: Arc<FakeCommunicator>,
    stream: Arc<FakeStream>,
    operations: Vec<FakeOperation>,
    call: CallPlan,
}

/// Waits for the set-up of a blocking communicator, now or at the end of the group.
pub(super) fn begin_setup(communicator: Arc<FakeCommunicator>) -> NcclResult {
    if !communicator.is_blocking {
        return Err(NcclFailure::in_progress());
    }
    if is_open() {
        GROUP.with_borrow_mut(|group| group.setups.push(communicator));
        return Ok(());
    }
    communicator.wait_for_setup()
}

/// Queues an operation now or at the end of the group.
pub(super) fn submit(
    communicator: Arc<FakeCommunicator>,
    stream: Arc<FakeStream>,
    operation: FakeOperation,
    call: &CallPlan,
) -> NcclResult {
    let launch = GroupLaunch { communicator, stream, operations: vec![operation], call: *call };
    if is_open() {
        GROUP.with_borrow_mut(|group| group.add(launch));
        return Ok(());
    }
    launch.start()
}

/// Makes the open group fail, because a call in it has failed.
pub(super) fn note(failure: &NcclFailure) {
    GROUP.with_borrow_mut(|group| {
        if group.depth > 0 && failure.code != IN_PROGRESS {
            group.failure.get_or_insert_with(|| failure.clone());
        }
    });
}

fn is_open() -> bool {
    GROUP.with_borrow(|group| group.depth > 0)
}

impl OpenGroup {
    fn add(&mut self, launch: GroupLaunch) {
        let same = |other: &&mut GroupLaunch| {
            Arc::ptr_eq(&other.communicator, &launch.communicator)
                && Arc::ptr_eq(&other.stream, &launch.stream)
        };
        match self.launches.iter_mut().find(same) {
            Some(other) => {
                other.operations.extend(launch.operations);
                other.call.lag = other.call.lag.max(launch.call.lag);
                other.call.hangs |= launch.call.hangs;
            }
            None => self.launches.push(launch),
        }
    }

    fn run(self) -> NcclResult {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        for communicator in &self.setups {
            communicator.wait_for_setup()?;
        }
        let mut result = Ok(());
        for launch in self.launches {
            if let Err(failure) = launch.start() {
                result = Err(failure);
            }
        }
        result
    }
}

impl GroupLaunch {
    fn start(self) -> NcclResult {
        let mode = config::read().in_progress;
        let is_first = self.communicator.launches_first();
        let is_later = !self.communicator.is_blocking
            && match mode {
                InProgress::First => is_first,
                InProgress::Always => true,
                InProgress::Never => false,
            };
        self.communicator.has_queued();
        if !is_later {
            self.queue();
            return Ok(());
        }
        let communicator = Arc::clone(&self.communicator);
        communicator.set_in_progress();
        let named = thread::Builder::new().name("standin-nccl-launch".into());
        named
            .spawn(move || {
                thread::sleep(self.call.lag.max(Duration::from_millis(1)));
                let communicator = Arc::clone(&self.communicator);
                self.queue();
                communicator.set_done();
            })
            .map_err(|error| NcclFailure::system(format!("no thread: {error}")))?;
        Err(NcclFailure::in_progress())
    }

    fn queue(self) {
        let Self { communicator, stream, mut operations, call } = self;
        for operation in &mut operations {
            operation.header.sequence =
                communicator.number(operation.header.kind, operation.header.peer);
        }
        stream.push(move |_| {
            thread::sleep(call.lag);
            let all = || {
                if call.hangs {
                    communicator.wait_for_abort();
                    return Ok(());
                }
                run_together(&communicator, &operations)
            };
            communicator.run(all).unwrap_or(Ok(()))
        });
    }
}

/// Sends the requests of all operations, then waits for the answers or an abort.
fn run_together(
    communicator: &FakeCommunicator,
    operations: &[FakeOperation],
) -> crate::driver::CuResult {
    for operation in operations {
        communicator.send(&operation.header, &operation.payload()?);
    }
    for operation in operations {
        let Some(answer) = communicator.receive(&operation.header) else { return Ok(()) };
        operation.finish(&answer)?;
    }
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn ncclGroupStart() -> i32 {
    nccl("ncclGroupStart", |_| {
        GROUP.with_borrow_mut(|group| group.depth += 1);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn ncclGroupEnd() -> i32 {
    nccl("ncclGroupEnd", |_| {
        let ended = GROUP.with_borrow_mut(|group| match group.depth {
            0 => Err(NcclFailure::usage("ncclGroupEnd without ncclGroupStart")),
            1 => Ok(Some(std::mem::replace(group, OpenGroup::new()))),
            _ => {
                group.depth -= 1;
                Ok(None)
            }
        });
        ended?.map_or(Ok(()), OpenGroup::run)
    })
}
