//! Tensors for tests: our own memory, written and read as plain bytes.

use std::sync::{Arc, Mutex, MutexGuard};

use ronde_control::DType;
use ronde_control::negotiate::CollectiveKind;
use ronde_core::buffer::{Buffer, Operand, Output, Owner};
use ronde_core::engine::Tensors;

/// A dense tensor. While it is lent to the engine, it cannot be accessed.
pub struct Tensor<O: Owner = Buffer> {
    /// `None` while it is lent.
    memory: Arc<Mutex<Option<O>>>,
    shape: Vec<u64>,
    dtype: DType,
}

impl Tensor {
    /// A tensor of this shape with the given bytes.
    pub fn new(dtype: DType, shape: &[u64], bytes: &[u8]) -> Tensor {
        Tensor::lying_in(Buffer::new(bytes.len()), dtype, shape, bytes)
    }

    /// A one-dimensional tensor of single-precision floats.
    pub fn floats(values: &[f32]) -> Tensor {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
        Tensor::new(DType::F32, &[values.len() as u64], &bytes)
    }

    /// A tensor of zeros.
    pub fn zeros(dtype: DType, shape: &[u64]) -> Tensor {
        let length = shape.iter().product::<u64>() as usize * dtype.size();
        let memory = Arc::new(Mutex::new(Some(Buffer::zeros(length))));
        Tensor { memory, shape: shape.to_vec(), dtype }
    }

    /// The tensors of a submission. If the sizes of the results are known, each result goes to the
    /// target paired with its source; if that is the same tensor, in place.
    pub fn submission<'a>(
        kind: &CollectiveKind,
        tensors: impl IntoIterator<Item = (&'a Tensor, &'a Tensor)>,
    ) -> Tensors {
        let tensors = tensors.into_iter();
        match kind {
            CollectiveKind::Allreduce { .. } | CollectiveKind::Broadcast { .. } => {
                Tensors::Given(tensors.map(|(source, target)| source.into(target)).collect())
            }
            _ => Tensors::Made(tensors.map(|(source, _)| source.lend().into()).collect()),
        }
    }

    fn into(&self, target: &Tensor) -> Operand {
        match std::ptr::eq(self, target) {
            true => Operand::InPlace(self.lend()),
            false => Operand::Apart { input: self.lend().into(), output: target.lend() },
        }
    }
}

impl<O: Owner> Tensor<O> {
    /// A tensor of this shape with the given bytes, in the given memory.
    pub fn lying_in(mut memory: O, dtype: DType, shape: &[u64], bytes: &[u8]) -> Tensor<O> {
        assert_eq!(shape.iter().product::<u64>() as usize * dtype.size(), bytes.len());
        memory.bytes_mut().copy_from_slice(bytes);
        Tensor { memory: Arc::new(Mutex::new(Some(memory))), shape: shape.to_vec(), dtype }
    }

    /// Overwrites the bytes from `at` on.
    pub fn mark(&self, at: usize, bytes: &[u8]) {
        self.look(|memory| memory[at..at + bytes.len()].copy_from_slice(bytes));
    }

    /// The elements as single-precision floats.
    pub fn as_floats(&self) -> Vec<f32> {
        let bytes = self.bytes();
        let (chunks, _) = bytes.as_chunks::<4>();
        chunks.iter().map(|chunk| f32::from_ne_bytes(*chunk)).collect()
    }

    /// A copy of the bytes.
    pub fn bytes(&self) -> Vec<u8> {
        self.look(|memory| memory.to_vec())
    }

    /// Passes the bytes to `look`.
    pub fn look<T>(&self, look: impl FnOnce(&mut [u8]) -> T) -> T {
        let mut memory = self.lock();
        look(memory.as_mut().expect("a lent tensor is not accessed").bytes_mut())
    }

    /// The dimensions.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Lends the memory to the engine; the tensor gets it back when the operation is over.
    pub fn lend(&self) -> Output {
        let memory = self.lock().take().expect("a tensor is lent only once at a time");
        let home = self.memory.clone();
        Output::lent(memory, move |memory| {
            // A failed test no longer looks at it.
            if let Ok(mut home) = home.lock() {
                *home = Some(memory);
            }
        })
    }

    fn lock(&self) -> MutexGuard<'_, Option<O>> {
        self.memory.lock().expect("nothing panics while it holds this lock")
    }
}
