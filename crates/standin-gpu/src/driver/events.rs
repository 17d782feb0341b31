//! Events: each record completes when the queue that it was put in reaches it.
//!
//! A wait is for the latest record at the time of the call, not for later ones. An event that was
//! never recorded is complete.
#![expect(unsafe_code, reason = "exports C symbols")]

use std::ffi::c_uint;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use super::streams::{self, FakeStream, LOOK, check_sticky};
use super::{CuCode, CuResult, answer, devices, driver};
use crate::handles::{Handles, lock};

const DISABLE_TIMING: c_uint = 2;

static EVENTS: Handles<FakeEvent> = Handles::new();

struct FakeEvent {
    device: usize,
    /// The context that it belongs to.
    life: u64,
    has_timing: bool,
    latest: Mutex<Option<Arc<EventRecord>>>,
}

/// One recording of an event.
struct EventRecord {
    state: Mutex<RecordProgress>,
    changed: Condvar,
}

struct RecordProgress {
    /// How many queues have not reached it yet.
    awaited: usize,
    /// When the last queue reached it.
    reached: Option<Instant>,
}

impl FakeEvent {
    fn latest(&self) -> Option<Arc<EventRecord>> {
        lock(&self.latest).clone()
    }

    fn record_on(&self, streams: &[Arc<FakeStream>]) {
        let state = RecordProgress { awaited: streams.len().max(1), reached: None };
        let record = Arc::new(EventRecord { state: Mutex::new(state), changed: Condvar::new() });
        *lock(&self.latest) = Some(Arc::clone(&record));
        if streams.is_empty() {
            record.reach();
        }
        for stream in streams {
            let record = Arc::clone(&record);
            stream.push(move |_| {
                record.reach();
                Ok(())
            });
        }
    }
}

impl EventRecord {
    fn reach(&self) {
        let mut state = lock(&self.state);
        state.awaited -= 1;
        if state.awaited == 0 {
            state.reached = Some(Instant::now());
            self.changed.notify_all();
        }
    }

    fn reached(&self) -> Option<Instant> {
        lock(&self.state).reached
    }

    /// Blocks a stream's thread until the record completes.
    fn wait(&self) {
        let state = lock(&self.state);
        let _state = self
            .changed
            .wait_while(state, |state| state.reached.is_none())
            .unwrap_or_else(PoisonError::into_inner);
    }

    /// Blocks a caller's thread until the record completes, or until a sticky error.
    fn synchronize(&self) -> CuResult {
        let mut state = lock(&self.state);
        while state.reached.is_none() {
            (state, _) =
                self.changed.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner);
            check_sticky()?;
        }
        check_sticky()
    }
}

fn find(handle: usize) -> CuResult<Arc<FakeEvent>> {
    let event = EVENTS.find(handle).ok_or(CuCode::INVALID_HANDLE)?;
    devices::check_life(event.device, event.life)?;
    Ok(event)
}

#[unsafe(no_mangle)]
extern "C" fn cuEventCreate(to: *mut usize, flags: c_uint) -> i32 {
    driver("cuEventCreate", |_| {
        let device = devices::current()?;
        let (life, has_timing) = (devices::life(device)?, flags & DISABLE_TIMING == 0);
        answer(
            to,
            EVENTS.add(Arc::new(FakeEvent { device, life, has_timing, latest: Mutex::new(None) })),
        )
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventDestroy_v2(event: usize) -> i32 {
    driver("cuEventDestroy_v2", |_| {
        find(event)?;
        EVENTS.remove(event);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecord(event: usize, stream: usize) -> i32 {
    driver("cuEventRecord", |_| {
        let (event, stream) = (find(event)?, streams::find(stream)?);
        if event.device != stream.device {
            return Err(CuCode::INVALID_HANDLE);
        }
        event.record_on(&[stream]);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxRecordEvent(context: usize, event: usize) -> i32 {
    driver("cuCtxRecordEvent", |_| {
        find(event)?.record_on(&streams::all_of(devices::ordinal_of(context)?));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitEvent(stream: usize, event: usize, _flags: c_uint) -> i32 {
    driver("cuStreamWaitEvent", |_| {
        let stream = streams::find(stream)?;
        if let Some(record) = find(event)?.latest() {
            stream.push(move |_| {
                record.wait();
                Ok(())
            });
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventQuery(event: usize) -> i32 {
    driver("cuEventQuery", |_| match find(event)?.latest() {
        Some(record) if record.reached().is_none() => Err(CuCode::NOT_READY),
        _ => check_sticky(),
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventSynchronize(event: usize) -> i32 {
    driver("cuEventSynchronize", |_| match find(event)?.latest() {
        Some(record) => record.synchronize(),
        None => Ok(()),
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventElapsedTime(milliseconds: *mut f32, start: usize, end: usize) -> i32 {
    driver("cuEventElapsedTime", |_| {
        let (start, end) = (find(start)?, find(end)?);
        if !start.has_timing || !end.has_timing {
            return Err(CuCode::INVALID_HANDLE);
        }
        let (Some(start), Some(end)) = (start.latest(), end.latest()) else {
            return Err(CuCode::INVALID_HANDLE);
        };
        let (Some(start), Some(end)) = (start.reached(), end.reached()) else {
            return Err(CuCode::NOT_READY);
        };
        let elapsed = match end.checked_duration_since(start) {
            Some(after) => after.as_secs_f32(),
            None => -start.duration_since(end).as_secs_f32(),
        };
        answer(milliseconds, elapsed * 1000.0)
    })
}
