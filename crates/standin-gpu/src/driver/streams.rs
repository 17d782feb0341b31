//! Streams: a queue of operations each, and a thread that runs them in order.
//!
//! Null is the default stream of the current context: one more queue, which unlike the real one
//! does not synchronize with other streams. A destroyed stream finishes its queue before its thread
//! ends, except for an operation that was told to hang, which is dropped.
#![expect(unsafe_code, reason = "exports C symbols")]

use std::collections::VecDeque;
use std::ffi::{c_int, c_uint};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::{CuCode, CuResult, answer, devices, driver};
use crate::config::{self, CallPlan};
use crate::handles::{Handles, lock};

/// How often a waiting caller checks for a sticky error.
pub(super) const LOOK: Duration = Duration::from_millis(20);

static STREAMS: Handles<FakeStream> = Handles::new();
static DEFAULTS: Mutex<Vec<Arc<FakeStream>>> = Mutex::new(Vec::new());

pub(crate) struct FakeStream {
    pub(crate) device: usize,
    /// The context that it belongs to.
    life: u64,
    queue: Mutex<StreamQueue>,
    changed: Condvar,
}

type StreamOperation = Box<dyn FnOnce(&FakeStream) -> CuResult + Send>;

struct StreamQueue {
    waiting: VecDeque<StreamOperation>,
    submitted: u64,
    finished: u64,
    is_destroyed: bool,
    has_context: bool,
}

/// The stream of a handle; null and the two special handles are the current context's default.
pub(crate) fn find(handle: usize) -> CuResult<Arc<FakeStream>> {
    if handle <= 2 {
        default_of(devices::current()?)
    } else {
        let stream = STREAMS.find(handle).ok_or(CuCode::INVALID_HANDLE)?;
        devices::check_life(stream.device, stream.life)?;
        Ok(stream)
    }
}

/// The default stream of a device's context.
pub(crate) fn default_of(device: usize) -> CuResult<Arc<FakeStream>> {
    let mut defaults = lock(&DEFAULTS);
    if let Some(stream) = defaults.iter().find(|stream| stream.device == device) {
        return Ok(Arc::clone(stream));
    }
    let stream = FakeStream::start(device)?;
    defaults.push(Arc::clone(&stream));
    Ok(stream)
}

/// All streams of a device's context.
pub(super) fn all_of(device: usize) -> Vec<Arc<FakeStream>> {
    let mut all = STREAMS.all();
    all.extend(lock(&DEFAULTS).iter().cloned());
    all.retain(|stream| stream.device == device && lock(&stream.queue).has_context);
    all
}

pub(super) fn drain_all_of(device: usize) -> CuResult {
    all_of(device).iter().try_for_each(|stream| stream.drain())
}

/// Ends all streams of a context that was destroyed. Their handles stay known, so that calls
/// report the destroyed context.
pub(super) fn cut_off_all_of(device: usize) {
    for stream in all_of(device) {
        lock(&stream.queue).has_context = false;
        stream.destroy();
    }
    lock(&DEFAULTS).retain(|stream| stream.device != device);
}

impl FakeStream {
    fn start(device: usize) -> CuResult<Arc<FakeStream>> {
        let queue = Mutex::new(StreamQueue {
            waiting: VecDeque::new(),
            submitted: 0,
            finished: 0,
            is_destroyed: false,
            has_context: true,
        });
        let stream = Arc::new(FakeStream {
            device,
            life: devices::life(device)?,
            queue,
            changed: Condvar::new(),
        });
        let worker = Arc::clone(&stream);
        let named = thread::Builder::new().name(format!("standin-gpu{device}"));
        named.spawn(move || worker.run()).map_err(|_| CuCode::OUT_OF_MEMORY)?;
        Ok(stream)
    }

    /// Queues an operation.
    pub(crate) fn push(&self, operation: impl FnOnce(&FakeStream) -> CuResult + Send + 'static) {
        let mut queue = lock(&self.queue);
        queue.waiting.push_back(Box::new(operation));
        queue.submitted += 1;
        self.changed.notify_all();
    }

    /// Queues an operation that the configuration can delay or hang.
    pub(super) fn work(
        &self,
        call: &CallPlan,
        operation: impl FnOnce() -> CuResult + Send + 'static,
    ) {
        let call = *call;
        self.push(move |stream| {
            thread::sleep(call.lag);
            if call.hangs {
                stream.wait_until_destroyed();
                return Ok(());
            }
            operation()
        });
    }

    /// Waits for everything queued before this call.
    pub(super) fn drain(&self) -> CuResult {
        let mut queue = lock(&self.queue);
        let target = queue.submitted;
        while queue.finished < target {
            queue = self.look(queue)?;
        }
        Ok(())
    }

    /// Waits for a change or a sticky error.
    fn look<'a>(
        &self,
        queue: MutexGuard<'a, StreamQueue>,
    ) -> CuResult<MutexGuard<'a, StreamQueue>> {
        let (queue, _) =
            self.changed.wait_timeout(queue, LOOK).unwrap_or_else(PoisonError::into_inner);
        check_sticky()?;
        Ok(queue)
    }

    fn is_idle(&self) -> bool {
        let queue = lock(&self.queue);
        queue.finished == queue.submitted
    }

    fn destroy(&self) {
        lock(&self.queue).is_destroyed = true;
        self.changed.notify_all();
    }

    fn wait_until_destroyed(&self) {
        let queue = lock(&self.queue);
        let _queue = self
            .changed
            .wait_while(queue, |queue| !queue.is_destroyed)
            .unwrap_or_else(PoisonError::into_inner);
    }

    fn run(&self) {
        while let Some(operation) = self.next() {
            let result = operation(self);
            let mut queue = lock(&self.queue);
            // An operation that fails leaves its context unusable, as on a GPU.
            if let Err(code) = result
                && queue.has_context
            {
                config::read().sticky = code.0;
            }
            queue.finished += 1;
            drop(queue);
            self.changed.notify_all();
        }
    }

    /// The next operation; `None` when there will be none.
    fn next(&self) -> Option<StreamOperation> {
        let idle = |queue: &mut StreamQueue| queue.waiting.is_empty() && !queue.is_destroyed;
        let queue = lock(&self.queue);
        let mut queue =
            self.changed.wait_while(queue, idle).unwrap_or_else(PoisonError::into_inner);
        queue.waiting.pop_front()
    }
}

pub(super) fn check_sticky() -> CuResult {
    match config::read().sticky {
        0 => Ok(()),
        code => Err(CuCode(code)),
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamCreateWithPriority(to: *mut usize, flags: c_uint, _priority: c_int) -> i32 {
    driver("cuStreamCreateWithPriority", |_| {
        if flags > 1 {
            return Err(CuCode::INVALID_VALUE);
        }
        let stream = FakeStream::start(devices::current()?)?;
        answer(to, STREAMS.add(stream))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamDestroy_v2(stream: usize) -> i32 {
    driver("cuStreamDestroy_v2", |_| {
        if stream <= 2 {
            return Err(CuCode::INVALID_HANDLE);
        }
        find(stream)?.destroy();
        STREAMS.remove(stream);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamQuery(stream: usize) -> i32 {
    driver("cuStreamQuery", |_| {
        if find(stream)?.is_idle() { check_sticky() } else { Err(CuCode::NOT_READY) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetCtx(stream: usize, context: *mut usize) -> i32 {
    driver("cuStreamGetCtx", |_| answer(context, devices::handle_of(find(stream)?.device)))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamSynchronize(stream: usize) -> i32 {
    driver("cuStreamSynchronize", |_| {
        find(stream)?.drain()?;
        check_sticky()
    })
}
