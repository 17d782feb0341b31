//! GPUs of the stand-in, and tensors on them.
#![expect(unsafe_code, reason = "plays a framework, which calls the driver and lends memory")]

use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use libloading::os::unix::Library;
use ronde_control::DType;
use ronde_control::negotiate::{CollectiveKind, Request};
use ronde_control::{DeviceKind, SetId};
use ronde_core::Error;
use ronde_core::buffer::{DeviceMemory, Input, Operand, Output};
use ronde_core::device::{DeviceError, Event, Gpu, GpuLibraries, LibraryPaths};
use ronde_core::engine::{AfterSubmit, GpuMemory, GpuTensors, Outcome, Tensors, Ticket};
use ronde_testkit::TestRank;
use {libloading as _, ronde_standin_gpu as _};

static LIBRARY: LazyLock<Library> = LazyLock::new(|| {
    // SAFETY: the stand-in runs nothing when it is loaded.
    unsafe { Library::new(path()) }.expect("the stand-in is next to the test")
});
static TURN: Mutex<()> = Mutex::new(());

/// With NCCL, and without: one rank per GPU, and all on one with an NCCL that refuses that.
pub(crate) const PATHS: [&str; 2] = ["devices=4,lag=1ms", "devices=1,nccl=22809,lag=1ms"];

pub(crate) fn gpu_of(path: &str, rank: usize) -> u32 {
    if path.starts_with("devices=1") { 0 } else { rank as u32 }
}

/// The configuration belongs to the process, so tests take turns.
pub(crate) struct Standin {
    _turn: MutexGuard<'static, ()>,
}

/// Where cargo puts the library of a dependency: next to the test's own executable.
fn path() -> std::path::PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    test.with_file_name("libronde_standin_gpu.so")
}

fn call<F: Copy>(name: &str) -> F {
    // SAFETY: every caller below names the type that the header documents.
    *unsafe { LIBRARY.get::<F>(name.as_bytes()) }.expect("the stand-in has this function")
}

impl Standin {
    pub(crate) fn with(text: &str) -> Standin {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let standin = Standin { _turn: turn };
        standin.configure(&format!("reset,{text}"));
        standin
    }

    pub(crate) fn configure(&self, text: &str) {
        let configure: extern "C" fn(*const c_char) = call("ronde_standin_configure");
        configure(CString::new(text).expect("no zeros").as_ptr());
    }

    pub(crate) fn libraries(&self) -> Result<Arc<GpuLibraries>, DeviceError> {
        self.libraries_with(LibraryPaths { connects_early: true, ..LibraryPaths::default() })
    }

    fn libraries_with(&self, paths: LibraryPaths) -> Result<Arc<GpuLibraries>, DeviceError> {
        GpuLibraries::open(LibraryPaths { driver: Some(path()), nccl: Some(path()), ..paths })
    }

    /// A GPU whose NCCL may connect ranks in the first collective.
    pub(crate) fn gpu_that_connects_late(&self, index: u32) -> Arc<Gpu> {
        let libraries = self.libraries_with(LibraryPaths::default()).expect("the stand-in opens");
        Arc::new(Gpu::open(&libraries, index).expect("it has this GPU"))
    }

    pub(crate) fn gpu(&self, index: u32) -> Arc<Gpu> {
        let libraries = self.libraries().expect("the stand-in opens");
        Arc::new(Gpu::open(&libraries, index).expect("it has this GPU"))
    }
}

/// A framework's stream on a GPU.
pub(crate) struct Stream {
    gpu: Arc<Gpu>,
    handle: usize,
}

/// A tensor of single-precision floats on a GPU.
#[derive(Clone)]
pub(crate) struct GpuTensor {
    pub(crate) address: usize,
    pub(crate) length: usize,
}

impl Stream {
    pub(crate) fn on(gpu: &Arc<Gpu>) -> Stream {
        let mut context = std::ptr::null_mut::<c_void>();
        let retain: extern "C" fn(*mut *mut c_void, c_int) -> c_int =
            call("cuDevicePrimaryCtxRetain");
        assert_eq!(retain(&raw mut context, gpu.index() as c_int), 0);
        let set: extern "C" fn(*mut c_void) -> c_int = call("cuCtxSetCurrent");
        assert_eq!(set(context), 0);
        let mut handle = 0;
        let create: extern "C" fn(*mut usize, u32, c_int) -> c_int =
            call("cuStreamCreateWithPriority");
        assert_eq!(create(&raw mut handle, 1, 0), 0);
        Stream { gpu: gpu.clone(), handle }
    }

    /// A tensor that this stream fills, later, with bytes.
    pub(crate) fn tensor(&self, bytes: &[u8]) -> GpuTensor {
        let tensor = self.empty(bytes.len());
        let bytes = Box::leak(bytes.to_vec().into_boxed_slice());
        let copy: extern "C" fn(usize, *const u8, usize, usize) -> c_int =
            call("cuMemcpyHtoDAsync_v2");
        assert_eq!(copy(tensor.address, bytes.as_ptr(), bytes.len(), self.handle), 0);
        tensor
    }

    pub(crate) fn empty(&self, length: usize) -> GpuTensor {
        let allocate: extern "C" fn(*mut usize, usize) -> c_int = call("cuMemAlloc_v2");
        let mut address = 0;
        assert_eq!(allocate(&raw mut address, length.max(1)), 0);
        GpuTensor { address, length }
    }

    pub(crate) fn floats(&self, values: &[f32]) -> GpuTensor {
        self.tensor(&values.iter().flat_map(|value| value.to_ne_bytes()).collect::<Vec<u8>>())
    }

    /// What this stream reads from a tensor, behind everything enqueued so far.
    pub(crate) fn read(&self, tensor: &GpuTensor) -> Vec<u8> {
        let mut bytes = vec![0xaa; tensor.length];
        let copy: extern "C" fn(*mut u8, usize, usize, usize) -> c_int =
            call("cuMemcpyDtoHAsync_v2");
        assert_eq!(copy(bytes.as_mut_ptr(), tensor.address, bytes.len(), self.handle), 0);
        let synchronize: extern "C" fn(usize) -> c_int = call("cuStreamSynchronize");
        assert_eq!(synchronize(self.handle), 0);
        bytes
    }

    pub(crate) fn read_floats(&self, tensor: &GpuTensor) -> Vec<f32> {
        let bytes = self.read(tensor);
        bytes.as_chunks::<4>().0.iter().map(|chunk| f32::from_ne_bytes(*chunk)).collect()
    }

    pub(crate) fn wait_for(&self, event: &Event) {
        event.make_stream_wait(self.handle).expect("both exist");
    }

    fn now(&self) -> Event {
        Event::on_stream(&self.gpu, self.handle).expect("both exist")
    }

    /// Submits a reduction of these tensors, in place.
    pub(crate) fn reduce(
        &self,
        rank: &TestRank,
        request: Request,
        tensors: &[&GpuTensor],
    ) -> Result<Outcome, Error> {
        let memory = GpuMemory::Given(tensors.iter().map(|tensor| tensor.in_place()).collect());
        self.run(rank, request, memory)
    }

    /// Submits a collective that allocates its results, one by one.
    pub(crate) fn make(
        &self,
        rank: &TestRank,
        request: Request,
        tensors: &[&GpuTensor],
    ) -> (Result<Outcome, Error>, Vec<GpuTensor>) {
        let unit = request.dtype.size() * request.shapes[0][1..].iter().product::<u64>() as usize;
        let made: Arc<Mutex<Vec<GpuTensor>>> = Arc::default();
        let (results, stream) =
            (made.clone(), Stream { gpu: self.gpu.clone(), handle: self.handle });
        let allocate = move |_: usize, rows: &[u64]| {
            // The engine's thread has no context of its own.
            let stream = Stream { handle: stream.handle, ..Stream::on(&stream.gpu) };
            let tensor = stream.empty(rows.iter().sum::<u64>() as usize * unit);
            let output = tensor.output();
            results.lock().expect("no panics").push(tensor);
            Ok((output, stream.now()))
        };
        let inputs = tensors.iter().map(|tensor| tensor.input()).collect();
        let outcome = self.run(rank, request, GpuMemory::Placed(inputs, Box::new(allocate)));
        let made = made.lock().expect("no panics").clone();
        (outcome, made)
    }

    fn run(&self, rank: &TestRank, request: Request, memory: GpuMemory) -> Result<Outcome, Error> {
        let tensors = Tensors::OnGpu(GpuTensors { ready: self.now(), memory });
        self.wait(rank, &*rank.engine.submit(request, tensors, AfterSubmit::Waits)?)
    }

    /// Waits for a ticket, and makes the stream wait for its collective.
    pub(crate) fn wait(&self, rank: &TestRank, ticket: &Ticket) -> Result<Outcome, Error> {
        let outcome = rank.wait(ticket)?;
        if let Outcome::Launched { done, .. } = &outcome {
            self.wait_for(done);
        }
        Ok(outcome)
    }

    /// Tensors that are ready now, reduced in place.
    pub(crate) fn tensors(&self, tensors: &[&GpuTensor]) -> Tensors {
        let memory = GpuMemory::Given(tensors.iter().map(|tensor| tensor.in_place()).collect());
        Tensors::OnGpu(GpuTensors { ready: self.now(), memory })
    }

    pub(crate) fn submit(
        rank: &TestRank,
        request: Request,
        tensors: Tensors,
    ) -> Result<Outcome, Error> {
        let ticket = rank.engine.submit(request, tensors, AfterSubmit::Waits)?;
        rank.wait(&ticket)
    }
}

impl GpuTensor {
    fn output(&self) -> Output<DeviceMemory> {
        // SAFETY: nothing frees the memory, and each test touches it through one stream only.
        unsafe { Output::new(self.address as *mut u8, self.length, None) }
    }

    fn input(&self) -> Input<DeviceMemory> {
        // SAFETY: as above.
        unsafe { Input::new(self.address as *const u8, self.length, None) }
    }

    fn in_place(&self) -> Operand<DeviceMemory> {
        Operand::InPlace(self.output())
    }
}

/// A request for tensors on GPUs.
pub(crate) fn request(
    name: &str,
    kind: CollectiveKind,
    dtype: DType,
    shapes: &[&[u64]],
) -> Request {
    Request {
        name: name.into(),
        set: SetId::WORLD,
        kind,
        dtype,
        shapes: shapes.iter().map(|shape| shape.to_vec()).collect(),
        device: DeviceKind::Gpu,
    }
}

/// Waits for something that must happen, however busy the machine.
pub(crate) fn eventually(mut is_true: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !is_true() {
        assert!(Instant::now() < until, "it never happened");
        std::thread::sleep(Duration::from_millis(1));
    }
}
