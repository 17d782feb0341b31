//! The C interface as the tests call it, and what most of them need.
//!
//! The configuration belongs to the process, so tests take turns: each holds a [`Turn`].
#![expect(unsafe_code, reason = "declares the C interface")]

use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ronde_standin_gpu as _;

/// No wait that should end takes longer, however busy the machine.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(30);

pub(crate) const NOT_READY: i32 = 600;
pub(crate) const F32: c_int = 7;
pub(crate) const SUM: c_int = 0;
pub(crate) const IN_PROGRESS: i32 = 7;

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct UniqueId(pub(crate) [u8; 128]);

#[repr(C)]
pub(crate) struct NcclConfig {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
    more: [c_int; 8],
}

impl NcclConfig {
    pub(crate) fn new(blocking: c_int) -> Self {
        let size = size_of::<Self>();
        Self { size, magic: 0xcafe_beef, version: 23007, blocking, more: [c_int::MIN; 8] }
    }
}

// The tests pass addresses of their own variables only, and handles as numbers.
unsafe extern "C" {
    pub(crate) safe fn ronde_standin_configure(text: *const c_char);
    pub(crate) safe fn cuInit(flags: u32) -> i32;
    pub(crate) safe fn cuDriverGetVersion(version: &mut c_int) -> i32;
    pub(crate) safe fn cuDeviceGetCount(count: &mut c_int) -> i32;
    pub(crate) safe fn cuDevicePrimaryCtxRetain(context: &mut usize, device: c_int) -> i32;
    pub(crate) safe fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> i32;
    pub(crate) safe fn cuCtxSetCurrent(context: usize) -> i32;
    pub(crate) safe fn cuCtxGetDevice(device: &mut c_int) -> i32;
    pub(crate) safe fn cuCtxRecordEvent(context: usize, event: usize) -> i32;
    pub(crate) safe fn cuMemAlloc_v2(address: &mut usize, size: usize) -> i32;
    pub(crate) safe fn cuMemFree_v2(address: usize) -> i32;
    pub(crate) safe fn cuMemFreeAsync(address: usize, stream: usize) -> i32;
    pub(crate) safe fn cuMemHostAlloc(address: &mut usize, size: usize, flags: u32) -> i32;
    pub(crate) safe fn cuMemGetInfo_v2(free: &mut usize, total: &mut usize) -> i32;
    pub(crate) safe fn cuPointerGetAttribute(to: &mut u64, attribute: c_int, at: usize) -> i32;
    pub(crate) safe fn cuMemcpyDtoHAsync_v2(
        to: *mut u8,
        from: usize,
        size: usize,
        stream: usize,
    ) -> i32;
    pub(crate) safe fn cuMemcpyHtoDAsync_v2(
        to: usize,
        from: *const u8,
        size: usize,
        stream: usize,
    ) -> i32;
    pub(crate) safe fn cuMemcpyDtoDAsync_v2(
        to: usize,
        from: usize,
        size: usize,
        stream: usize,
    ) -> i32;
    pub(crate) safe fn cuMemsetD8Async(to: usize, byte: u8, size: usize, stream: usize) -> i32;
    pub(crate) safe fn cuStreamCreateWithPriority(
        stream: &mut usize,
        flags: u32,
        priority: c_int,
    ) -> i32;
    pub(crate) safe fn cuStreamDestroy_v2(stream: usize) -> i32;
    pub(crate) safe fn cuStreamWaitEvent(stream: usize, event: usize, flags: u32) -> i32;
    pub(crate) safe fn cuStreamQuery(stream: usize) -> i32;
    pub(crate) safe fn cuStreamGetCtx(stream: usize, context: &mut usize) -> i32;
    pub(crate) safe fn cuStreamSynchronize(stream: usize) -> i32;
    pub(crate) safe fn cuEventCreate(event: &mut usize, flags: u32) -> i32;
    pub(crate) safe fn cuEventRecord(event: usize, stream: usize) -> i32;
    pub(crate) safe fn cuEventQuery(event: usize) -> i32;
    pub(crate) safe fn cuEventSynchronize(event: usize) -> i32;
    pub(crate) safe fn cuEventElapsedTime(ms: &mut f32, start: usize, end: usize) -> i32;
    pub(crate) safe fn cuGetErrorName(code: c_int, name: &mut *const c_char) -> i32;
    pub(crate) safe fn cuModuleLoadData(module: &mut usize, image: *const c_char) -> i32;
    pub(crate) safe fn cuModuleGetFunction(
        function: &mut usize,
        module: usize,
        name: *const c_char,
    ) -> i32;
    pub(crate) safe fn cuLaunchKernel(
        function: usize,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        shared_bytes: u32,
        stream: usize,
        parameters: *const *const c_void,
        extra: *const *const c_void,
    ) -> i32;
    pub(crate) safe fn ncclGetVersion(version: &mut c_int) -> i32;
    pub(crate) safe fn ncclGetUniqueId(id: &mut UniqueId) -> i32;
    pub(crate) safe fn ncclCommInitRankConfig(
        communicator: &mut usize,
        size: c_int,
        id: UniqueId,
        rank: c_int,
        config: &NcclConfig,
    ) -> i32;
    pub(crate) safe fn ncclCommGetAsyncError(communicator: usize, error: &mut i32) -> i32;
    pub(crate) safe fn ncclCommFinalize(communicator: usize) -> i32;
    pub(crate) safe fn ncclCommDestroy(communicator: usize) -> i32;
    pub(crate) safe fn ncclCommAbort(communicator: usize) -> i32;
    pub(crate) safe fn ncclCommCount(communicator: usize, count: &mut c_int) -> i32;
    pub(crate) safe fn ncclGetLastError(communicator: usize) -> *const c_char;
    pub(crate) safe fn ncclAllReduce(
        send: usize,
        receive: usize,
        count: usize,
        dtype: c_int,
        operator: c_int,
        communicator: usize,
        stream: usize,
    ) -> i32;
    pub(crate) safe fn ncclBroadcast(
        send: usize,
        receive: usize,
        count: usize,
        dtype: c_int,
        root: c_int,
        communicator: usize,
        stream: usize,
    ) -> i32;
    pub(crate) safe fn ncclAllGather(
        send: usize,
        receive: usize,
        count: usize,
        dtype: c_int,
        communicator: usize,
        stream: usize,
    ) -> i32;
    pub(crate) safe fn ncclReduceScatter(
        send: usize,
        receive: usize,
        count: usize,
        dtype: c_int,
        operator: c_int,
        communicator: usize,
        stream: usize,
    ) -> i32;
    pub(crate) safe fn ncclSend(
        send: usize,
        count: usize,
        dtype: c_int,
        peer: c_int,
        communicator: usize,
        stream: usize,
    ) -> i32;
    pub(crate) safe fn ncclRecv(
        receive: usize,
        count: usize,
        dtype: c_int,
        peer: c_int,
        communicator: usize,
        stream: usize,
    ) -> i32;
    pub(crate) safe fn ncclGroupStart() -> i32;
    pub(crate) safe fn ncclGroupEnd() -> i32;
    pub(crate) safe fn ncclRedOpCreatePreMulSum(
        operator: &mut c_int,
        scalar: usize,
        dtype: c_int,
        residence: c_int,
        communicator: usize,
    ) -> i32;
    pub(crate) safe fn ncclRedOpDestroy(operator: c_int, communicator: usize) -> i32;
}

/// The right to use the library, with a configuration of one's own.
pub(crate) struct Turn {
    _guard: MutexGuard<'static, ()>,
}

impl Turn {
    pub(crate) fn with(text: &str) -> Turn {
        static TURNS: Mutex<()> = Mutex::new(());
        let guard = TURNS.lock().unwrap_or_else(PoisonError::into_inner);
        configure(&format!("reset,visible=all,{text}"));
        assert_eq!(cuInit(0), 0);
        Turn { _guard: guard }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        configure("reset");
    }
}

pub(crate) fn configure(text: &str) {
    ronde_standin_configure(CString::new(text).expect("no zero in it").as_ptr());
}

/// The result that a call writes to its first argument.
#[track_caller]
pub(crate) fn made<T: Default>(call: impl FnOnce(&mut T) -> i32) -> T {
    let mut made = T::default();
    assert_eq!(call(&mut made), 0);
    made
}

/// Makes a device's context the current one of this thread, and returns it.
pub(crate) fn enter(device: c_int) -> usize {
    let context = made(|to| cuDevicePrimaryCtxRetain(to, device));
    assert_eq!(cuCtxSetCurrent(context), 0);
    context
}

pub(crate) fn stream() -> usize {
    made(|to| cuStreamCreateWithPriority(to, 1, 0))
}

pub(crate) fn event() -> usize {
    made(|to| cuEventCreate(to, 0))
}

pub(crate) fn room(size: usize) -> usize {
    made(|to| cuMemAlloc_v2(to, size))
}

pub(crate) fn pinned(size: usize) -> usize {
    made(|to| cuMemHostAlloc(to, size, 0))
}

/// Device memory with these bytes in it.
pub(crate) fn upload(bytes: &[u8]) -> usize {
    let (address, stream) = (room(bytes.len()), stream());
    assert_eq!(cuMemcpyHtoDAsync_v2(address, bytes.as_ptr(), bytes.len(), stream), 0);
    assert_eq!(cuStreamSynchronize(stream), 0);
    assert_eq!(cuStreamDestroy_v2(stream), 0);
    address
}

/// What is in device memory now, whatever streams are doing.
pub(crate) fn download(address: usize, size: usize) -> Vec<u8> {
    let (mut bytes, stream) = (vec![0; size], stream());
    assert_eq!(cuMemcpyDtoHAsync_v2(bytes.as_mut_ptr(), address, size, stream), 0);
    assert_eq!(cuStreamDestroy_v2(stream), 0);
    bytes
}

pub(crate) fn upload_floats(values: &[f32]) -> usize {
    upload(&values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>())
}

pub(crate) fn download_floats(address: usize, count: usize) -> Vec<f32> {
    let bytes = download(address, count * 4);
    bytes.as_chunks().0.iter().map(|bits| f32::from_le_bytes(*bits)).collect()
}

/// A rank that is a thread of this process, with a device of its own.
#[derive(Clone, Copy)]
pub(crate) struct Rank {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) communicator: usize,
    pub(crate) stream: usize,
}

pub(crate) fn unique_id() -> UniqueId {
    let mut id = UniqueId([0; 128]);
    assert_eq!(ncclGetUniqueId(&mut id), 0);
    id
}

impl Rank {
    pub(crate) fn join(id: UniqueId, rank: usize, size: usize) -> Rank {
        let config = NcclConfig::new(1);
        let communicator =
            made(|to| ncclCommInitRankConfig(to, size as c_int, id, rank as c_int, &config));
        Rank { rank, size, communicator, stream: stream() }
    }

    pub(crate) fn all_reduce(&self, buffer: usize, count: usize) -> i32 {
        ncclAllReduce(buffer, buffer, count, F32, SUM, self.communicator, self.stream)
    }

    #[track_caller]
    pub(crate) fn synchronize(&self) {
        assert_eq!(cuStreamSynchronize(self.stream), 0);
    }

    pub(crate) fn status(&self) -> i32 {
        status(self.communicator)
    }
}

pub(crate) fn status(communicator: usize) -> i32 {
    made(|to| ncclCommGetAsyncError(communicator, to))
}

/// Runs ranks as threads of this process.
pub(crate) fn ranks<T: Send>(size: usize, body: impl Fn(Rank) -> T + Sync) -> Vec<T> {
    let id = unique_id();
    thread::scope(|scope| {
        let start = |rank| {
            let body = &body;
            scope.spawn(move || {
                enter(rank as c_int);
                let rank = Rank::join(id, rank, size);
                let result = body(rank);
                ncclCommDestroy(rank.communicator);
                assert_eq!(cuStreamDestroy_v2(rank.stream), 0);
                result
            })
        };
        let threads: Vec<_> = (0..size).map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank failed")).collect()
    })
}

/// Waits for something that must happen, without a word about how soon.
#[track_caller]
pub(crate) fn eventually(what: &str, mut happened: impl FnMut() -> bool) {
    let start = Instant::now();
    while !happened() {
        assert!(start.elapsed() < TIME_LIMIT, "{what} has not happened");
        thread::sleep(Duration::from_millis(2));
    }
}
