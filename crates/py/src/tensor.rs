//! A framework's tensor as the engine needs it: address, shape, element type.
//!
//! If the object's type has DLPack's C exchange table, one call of a C function returns all of
//! this; NumPy arrays are read through their array interface, and everything else through the
//! attributes of torch tensors.
#![expect(unsafe_code, reason = "addresses of tensors, and DLPack's C table")]

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::slice;
use std::sync::{Arc, LazyLock, Mutex};

use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyType;
use ronde_control::{DType, DeviceKind};
use ronde_core::buffer::{Input, KeepAlive, Operand, Output, Space};
use ronde_core::device::Event;
use ronde_core::engine::{GpuMemory, GpuTensors, Tensors};

use super::{array, gpu};

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct DLDevice {
    pub(crate) kind: i32,
    pub(crate) id: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct DLDataType {
    pub(crate) code: u8,
    pub(crate) bits: u8,
    pub(crate) lanes: u16,
}

#[repr(C)]
pub(crate) struct DLTensor {
    pub(crate) data: *mut c_void,
    pub(crate) device: DLDevice,
    pub(crate) ndim: i32,
    pub(crate) dtype: DLDataType,
    pub(crate) shape: *mut i64,
    pub(crate) strides: *mut i64,
    pub(crate) byte_offset: u64,
}

type FromPython = unsafe extern "C" fn(*mut c_void, *mut DLTensor) -> c_int;

/// The beginning of DLPack's exchange table, version 1.
#[repr(C)]
struct DlpackExchange {
    major: u32,
    _minor: u32,
    _previous: *mut c_void,
    _allocator: *mut c_void,
    _managed_from_python: *mut c_void,
    _managed_to_python: *mut c_void,
    tensor_from_python: Option<FromPython>,
}

/// How to read tensors of a type.
#[derive(Clone, Copy)]
enum TensorAccess {
    Table(FromPython),
    Array,
    Attributes,
}

/// The access by the address of the type; the reference keeps the type alive, so that its address
/// stays unique.
type AccessCache = HashMap<usize, (TensorAccess, Py<PyType>)>;
static TYPES: LazyLock<Mutex<AccessCache>> = LazyLock::new(Mutex::default);

const CPU: i32 = 1;
const CUDA: i32 = 2;

/// The location and type of a tensor according to its framework. This alone permits no access.
#[derive(Clone)]
pub(crate) struct View {
    start: usize,
    pub(crate) shape: Vec<u64>,
    pub(crate) dtype: DType,
    pub(crate) is_read_only: bool,
    /// The GPU whose memory it is in, if it is not in host memory.
    gpu: Option<u32>,
}

impl View {
    pub(crate) fn at(start: usize, shape: Vec<u64>, dtype: DType) -> View {
        View { start, shape, dtype, is_read_only: false, gpu: None }
    }

    fn of(tensor: &Bound<'_, PyAny>) -> PyResult<View> {
        match access(tensor)? {
            TensorAccess::Table(from_python) => View::by_table(tensor, from_python),
            TensorAccess::Array => array::view(tensor),
            TensorAccess::Attributes => View::by_attributes(tensor),
        }
    }

    fn length(&self) -> usize {
        self.shape.iter().product::<u64>() as usize * self.dtype.size()
    }

    fn place(&self) -> Range<usize> {
        self.start..self.start.saturating_add(self.length())
    }

    /// Its memory, for reading.
    ///
    /// # Safety
    /// As for [`Input::new`].
    pub(crate) unsafe fn input<S: Space>(&self, keeper: Option<KeepAlive>) -> Input<S> {
        // SAFETY: guaranteed by the caller.
        unsafe { Input::new(self.start as *const u8, self.length(), keeper) }
    }

    /// Its memory, for writing.
    ///
    /// # Safety
    /// As for [`Output::new`].
    pub(crate) unsafe fn output<S: Space>(&self, keeper: Option<KeepAlive>) -> Output<S> {
        // SAFETY: guaranteed by the caller.
        unsafe { Output::new(self.start as *mut u8, self.length(), keeper) }
    }

    fn by_table(tensor: &Bound<'_, PyAny>, from_python: FromPython) -> PyResult<View> {
        let mut raw = DLTensor {
            data: std::ptr::null_mut(),
            device: DLDevice { kind: 0, id: 0 },
            ndim: 0,
            dtype: DLDataType { code: 0, bits: 0, lanes: 0 },
            shape: std::ptr::null_mut(),
            strides: std::ptr::null_mut(),
            byte_offset: 0,
        };
        // SAFETY: the table belongs to the type of this object, and the structure is ours.
        if unsafe { from_python(tensor.as_ptr().cast(), &raw mut raw) } != 0 {
            return Err(PyErr::fetch(tensor.py()));
        }
        let gpu = match raw.device.kind {
            CPU => None,
            CUDA => u32::try_from(raw.device.id).ok(),
            other => return Err(unknown_device(&format!("device type {other}"))),
        };
        let dtype = match (raw.dtype.code, raw.dtype.bits) {
            (0, 8) => DType::I8,
            (0, 16) => DType::I16,
            (0, 32) => DType::I32,
            (0, 64) => DType::I64,
            (1, 8) => DType::U8,
            (1, 16) => DType::U16,
            (2, 16) => DType::F16,
            (2, 32) => DType::F32,
            (2, 64) => DType::F64,
            (4, 16) => DType::BF16,
            (6, 8) => DType::Bool,
            _ => return Err(unsupported(tensor)),
        };
        let dimensions = raw.ndim.max(0) as usize;
        let shape = numbers(raw.shape, dimensions);
        let strides = (!raw.strides.is_null()).then(|| numbers(raw.strides, dimensions));
        if strides.is_some_and(|strides| !is_contiguous(&shape, &strides)) {
            return Err(PyValueError::new_err("Tensor is required to be contiguous."));
        }
        let shape: Vec<u64> = shape.into_iter().map(|size| size as u64).collect();
        let start = raw.data as usize + raw.byte_offset as usize;
        Ok(View { gpu, ..View::at(start, shape, dtype) })
    }

    fn by_attributes(tensor: &Bound<'_, PyAny>) -> PyResult<View> {
        let device = tensor.getattr("device")?;
        let gpu = match device.getattr("type")?.extract::<String>()?.as_str() {
            "cpu" => None,
            "cuda" => device.getattr("index")?.extract()?,
            other => return Err(unknown_device(other)),
        };
        if !tensor.call_method0("is_contiguous")?.extract::<bool>()? {
            return Err(PyValueError::new_err("Tensor is required to be contiguous."));
        }
        let name = tensor.getattr("dtype")?.str()?.to_string();
        let name = name.rsplit('.').next().unwrap_or_default();
        let dtype: DType = name.parse().map_err(|_| unsupported(tensor))?;
        let shape = tensor.getattr("shape")?.extract()?;
        let start = tensor.call_method0("data_ptr")?.extract()?;
        Ok(View { gpu, ..View::at(start, shape, dtype) })
    }
}

/// The memory of tensors and of their results, pairwise of the same length; no output may overlap
/// another tensor.
///
/// # Safety
/// Until the handles are dropped, the tensors exist, nobody else touches the targets, and nobody
/// writes to the sources. This may rely on the keeper being alive.
pub(crate) unsafe fn operands<S: Space>(
    sources: &[View],
    targets: &[View],
    keeper: Option<&KeepAlive>,
) -> Result<Vec<Operand<S>>, &'static str> {
    let same = |(a, b): (&View, &View)| (a.dtype, a.length()) == (b.dtype, b.length());
    if sources.len() != targets.len() || !sources.iter().zip(targets).all(same) {
        return Err("input and output differ in number, type or size");
    }
    if !are_apart(sources, targets) {
        return Err(
            "an output shares memory with another tensor; give every output its own memory, or \
             that of its input",
        );
    }
    let operand = |(source, target): (&View, &View)| {
        // SAFETY: the caller guarantees access to the memory, which overlaps no other tensor.
        let output = unsafe { target.output(keeper.cloned()) };
        if source.start == target.start {
            return Operand::InPlace(output);
        }
        // SAFETY: as above.
        let input = unsafe { source.input(keeper.cloned()) };
        Operand::Apart { input, output }
    };
    Ok(sources.iter().zip(targets).map(operand).collect())
}

/// Whether no target overlaps another tensor, except for a source that is the same memory.
fn are_apart(sources: &[View], targets: &[View]) -> bool {
    if let ([source], [target]) = (sources, targets) {
        let (read, written) = (source.place(), target.place());
        return read == written || read.end <= written.start || written.end <= read.start;
    }
    let others =
        sources.iter().zip(targets).filter(|(source, target)| source.start != target.start);
    let reads = others.map(|(source, _)| (source.place(), false));
    let writes = targets.iter().map(|target| (target.place(), true));
    let mut places: Vec<(Range<usize>, bool)> =
        reads.chain(writes).filter(|(place, _)| !place.is_empty()).collect();
    places.sort_unstable_by_key(|(place, _)| place.start);
    // End of all earlier memory, and of the part of it that is written.
    let (mut read, mut written) = (0, 0);
    places.into_iter().all(|(place, writes)| {
        let is_apart = written <= place.start && (!writes || read <= place.start);
        read = read.max(place.end);
        if writes {
            written = written.max(place.end);
        }
        is_apart
    })
}

/// A Python tensor: its description by the framework, and the object that keeps it alive.
pub(crate) struct PyTensor {
    view: View,
    object: Py<PyAny>,
}

impl PyTensor {
    pub(crate) fn of(tensor: &Bound<'_, PyAny>) -> PyResult<PyTensor> {
        Ok(PyTensor { view: View::of(tensor)?, object: tensor.clone().unbind() })
    }

    /// Like [`PyTensor::of`], for a tensor that a result is written to.
    pub(crate) fn of_target(tensor: &Bound<'_, PyAny>) -> PyResult<PyTensor> {
        let tensor = PyTensor::of(tensor)?;
        match tensor.view.is_read_only {
            true => Err(PyValueError::new_err(
                "the array for the result is read-only; pass a writable one, such as a \
                 copy of it",
            )),
            false => Ok(tensor),
        }
    }

    pub(crate) fn dtype(&self) -> DType {
        self.view.dtype
    }

    pub(crate) fn shape(&self) -> &[u64] {
        &self.view.shape
    }

    pub(crate) fn device(&self) -> DeviceKind {
        if self.view.gpu.is_some() { DeviceKind::Gpu } else { DeviceKind::Cpu }
    }
}

/// Python tensors lent to the engine. The engine drops its keepers before it completes a ticket,
/// without the interpreter lock; holding on to this keeper until then makes sure that the objects
/// are dropped under the lock.
pub(crate) struct BorrowedTensors {
    pub(crate) tensors: Tensors,
    pub(crate) keeper: KeepAlive,
    /// The results on a GPU, once their sizes are known.
    pub(crate) placed: PlacedResults,
}

/// Results that the framework allocates while the engine runs their collective.
pub(crate) type PlacedResults = Arc<Mutex<Vec<Py<PyAny>>>>;

impl BorrowedTensors {
    /// No tensors, as for a barrier.
    pub(crate) fn nothing() -> BorrowedTensors {
        BorrowedTensors::of(Tensors::NONE, Arc::new(()))
    }

    /// A tensor, with one for its result.
    pub(crate) fn pair(source: PyTensor, target: PyTensor) -> PyResult<BorrowedTensors> {
        same(&source.view, &target.view)?;
        let views = (source.view, target.view);
        BorrowedTensors::given(
            slice::from_ref(&views.0),
            slice::from_ref(&views.1),
            (source.object, target.object),
        )
    }

    fn of(tensors: Tensors, keeper: KeepAlive) -> BorrowedTensors {
        BorrowedTensors { tensors, keeper, placed: PlacedResults::default() }
    }

    /// Tensors, each with one for its result.
    pub(crate) fn pairs(
        sources: Vec<PyTensor>,
        targets: Vec<PyTensor>,
    ) -> PyResult<BorrowedTensors> {
        let one_type = sources.iter().all(|source| source.dtype() == sources[0].dtype());
        if sources.len() != targets.len() {
            return Err(PyValueError::new_err("a group needs as many outputs as inputs"));
        }
        let (sources, mut kept) = divide(sources);
        let (targets, more) = divide(targets);
        sources.iter().zip(&targets).try_for_each(|(source, target)| same(source, target))?;
        if !one_type {
            return Err(mixed_types());
        }
        kept.extend(more);
        BorrowedTensors::given(&sources, &targets, kept)
    }

    fn given<K: Send + Sync + 'static>(
        sources: &[View],
        targets: &[View],
        objects: K,
    ) -> PyResult<BorrowedTensors> {
        let keeper: KeepAlive = Arc::new(objects);
        let views = || sources.iter().chain(targets);
        if let Some(index) = one_gpu(views())? {
            let ready = Python::attach(|py| gpu::now(py, index))?.0;
            // SAFETY: as below.
            let operands = unsafe { operands(sources, targets, Some(&keeper)) };
            let memory = GpuMemory::Given(operands.map_err(PyValueError::new_err)?);
            return Ok(BorrowedTensors::of(Tensors::OnGpu(GpuTensors { ready, memory }), keeper));
        }
        // SAFETY: according to the framework the tensors exist as long as their objects, which the
        // keeper holds; that nobody touches them meanwhile is the program's obligation, as with
        // every asynchronous call.
        let operands = unsafe { operands(sources, targets, Some(&keeper)) };
        let tensors = Tensors::Given(operands.map_err(PyValueError::new_err)?);
        Ok(BorrowedTensors::of(tensors, keeper))
    }

    /// Tensors whose results we allocate.
    pub(crate) fn sources(sources: Vec<PyTensor>) -> PyResult<BorrowedTensors> {
        if sources.iter().any(|source| source.dtype() != sources[0].dtype()) {
            return Err(mixed_types());
        }
        let (sources, kept) = divide(sources);
        if let Some(index) = one_gpu(sources.iter())? {
            return Python::attach(|py| BorrowedTensors::on_gpu(py, index, &sources, kept));
        }
        let keeper: KeepAlive = Arc::new(kept);
        let input = |source: &View| {
            // SAFETY: as in `given`.
            unsafe { source.input(Some(keeper.clone())) }
        };
        let tensors = Tensors::Made(sources.iter().map(input).collect());
        Ok(BorrowedTensors::of(tensors, keeper))
    }

    /// Tensors on a GPU whose results their framework allocates.
    fn on_gpu(
        py: Python<'_>,
        index: u32,
        sources: &[View],
        objects: Vec<Py<PyAny>>,
    ) -> PyResult<BorrowedTensors> {
        let (ready, stream) = gpu::now(py, index)?;
        let placed = PlacedResults::default();
        let likes: Vec<Py<PyAny>> = objects.iter().map(|object| object.clone_ref(py)).collect();
        let keeper: KeepAlive = Arc::new(objects);
        let input = |source: &View| {
            // SAFETY: as in `given`.
            unsafe { source.input(Some(keeper.clone())) }
        };
        let inputs = sources.iter().map(input).collect();
        let results = placed.clone();
        let allocate = move |number: usize, rows: &[u64]| {
            Python::attach(|py| {
                let result = gpu::allocate(py, &likes[number], rows.iter().sum(), stream)?;
                let view = View::of(result.bind(py))?;
                let gpu = gpu::of(py, index)?;
                let free = Event::on_stream(&gpu, stream).map_err(|error| gpu::failed(&error))?;
                results.lock().expect("nothing panics with this lock").push(result);
                // SAFETY: the table of handles keeps the result until the caller's stream waits
                // for it, and nobody else knows it.
                Ok((unsafe { view.output(None) }, free))
            })
            .map_err(|error: PyErr| error.to_string())
        };
        let memory = GpuMemory::Placed(inputs, Box::new(allocate));
        let tensors = Tensors::OnGpu(GpuTensors { ready, memory });
        Ok(BorrowedTensors { tensors, keeper, placed })
    }
}

/// The GPU that all of these are on; none if they are in host memory.
fn one_gpu<'a>(mut views: impl Iterator<Item = &'a View>) -> PyResult<Option<u32>> {
    let first = views.next().and_then(|view| view.gpu);
    match views.all(|view| view.gpu == first) {
        true => Ok(first),
        false => Err(PyValueError::new_err(
            "the tensors of one call are on different devices; move them to the same one",
        )),
    }
}

fn divide(tensors: Vec<PyTensor>) -> (Vec<View>, Vec<Py<PyAny>>) {
    tensors.into_iter().map(|tensor| (tensor.view, tensor.object)).unzip()
}

/// Input and output must have the same type and shape.
fn same(source: &View, target: &View) -> PyResult<()> {
    if source.dtype == target.dtype && source.shape == target.shape {
        return Ok(());
    }
    Err(PyValueError::new_err(format!(
        "input and output differ: {} {:?} and {} {:?}",
        source.dtype, source.shape, target.dtype, target.shape
    )))
}

fn mixed_types() -> PyErr {
    PyValueError::new_err("the tensors of a group must have one element type")
}

/// A tensor that is reduced in place repeatedly.
pub(crate) struct Repeated {
    view: View,
    keeper: KeepAlive,
}

impl Repeated {
    pub(crate) fn new(PyTensor { view, object }: PyTensor) -> Repeated {
        Repeated { view, keeper: Arc::new(object) }
    }

    /// Its memory, unless the previous borrower still has it.
    pub(crate) fn lend(&mut self) -> Option<Operand> {
        Arc::get_mut(&mut self.keeper)?;
        // SAFETY: the object is kept alive, nobody else has borrowed its memory here, and the
        // program must not touch it meanwhile.
        Some(Operand::InPlace(unsafe { self.view.output(Some(self.keeper.clone())) }))
    }

    /// Never frees the tensor: the engine still has its memory.
    pub(crate) fn leave(self) {
        std::mem::forget(self.keeper);
    }
}

fn access(tensor: &Bound<'_, PyAny>) -> PyResult<TensorAccess> {
    let class = tensor.get_type();
    let address = class.as_ptr() as usize;
    let lock = || TYPES.lock().expect("nothing panics while it holds this lock");
    if let Some((known, _)) = lock().get(&address) {
        return Ok(*known);
    }
    let found = match class.getattr("__dlpack_c_exchange_api__") {
        Ok(capsule) => {
            // SAFETY: a wrong object gives null and an exception.
            let table = unsafe {
                ffi::PyCapsule_GetPointer(capsule.as_ptr(), c"dlpack_exchange_api".as_ptr())
            };
            if table.is_null() {
                return Err(PyErr::fetch(tensor.py()));
            }
            // SAFETY: a capsule of this name contains such a table, which lives as long as the
            // type.
            let table = unsafe { &*table.cast::<DlpackExchange>() };
            let found = table.tensor_from_python.filter(|_| table.major == 1);
            found.map_or(TensorAccess::Attributes, TensorAccess::Table)
        }
        Err(_) if class.hasattr("__array_interface__")? => TensorAccess::Array,
        Err(_) => TensorAccess::Attributes,
    };
    lock().insert(address, (found, class.unbind()));
    Ok(found)
}

fn numbers(start: *const i64, count: usize) -> Vec<i64> {
    if count == 0 {
        return Vec::new();
    }
    // SAFETY: DLPack's arrays have one entry per dimension and live as long as the tensor.
    unsafe { slice::from_raw_parts(start, count) }.to_vec()
}

pub(crate) fn is_contiguous(shape: &[i64], strides: &[i64]) -> bool {
    if shape.contains(&0) {
        return true;
    }
    let mut expected = 1;
    shape.iter().zip(strides).rev().all(|(size, stride)| {
        let fits = *size == 1 || *stride == expected;
        expected *= size;
        fits
    })
}

pub(crate) fn unsupported(tensor: &Bound<'_, PyAny>) -> PyErr {
    let name = tensor.getattr("dtype").and_then(|dtype| dtype.str().map(|name| name.to_string()));
    let name = name.unwrap_or_else(|_| "of this element type".into());
    PyValueError::new_err(format!("Tensor type {name} is not supported."))
}

fn unknown_device(device: &str) -> PyErr {
    PyValueError::new_err(format!(
        "tensors must be on the CPU or on an NVIDIA GPU, and this one is on {device}; move it with \
         `.cpu()`"
    ))
}
