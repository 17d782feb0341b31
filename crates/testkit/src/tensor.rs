//! Tensors for tests: memory of our own, filled and read as plain bytes.

use ronde_control::DType;
use ronde_core::buffer::{Buffer, Region};

/// A dense tensor.
pub struct Tensor {
    buffer: Buffer,
    shape: Vec<u64>,
    dtype: DType,
}

impl Tensor {
    /// A tensor of that shape with the given bytes.
    pub fn new(dtype: DType, shape: &[u64], bytes: &[u8]) -> Tensor {
        let buffer = Buffer::new(bytes.len());
        assert_eq!(shape.iter().product::<u64>() as usize * dtype.size(), bytes.len());
        buffer.fill(bytes);
        Tensor { buffer, shape: shape.to_vec(), dtype }
    }

    /// A one-dimensional tensor of single-precision floats.
    pub fn floats(values: &[f32]) -> Tensor {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
        Tensor::new(DType::F32, &[values.len() as u64], &bytes)
    }

    /// A tensor of zeros.
    pub fn zeros(dtype: DType, shape: &[u64]) -> Tensor {
        let length = shape.iter().product::<u64>() as usize * dtype.size();
        Tensor { buffer: Buffer::zeros(length), shape: shape.to_vec(), dtype }
    }

    /// Writes bytes from `at` on.
    pub fn mark(&self, at: usize, bytes: &[u8]) {
        let source = Buffer::new(bytes.len());
        source.fill(bytes);
        source.region().copy_to(self.region().part(at..at + bytes.len()));
    }

    /// The bytes of that range of a region.
    pub fn peek(region: Region, range: std::ops::Range<usize>) -> Vec<u8> {
        let target = Buffer::new(range.len());
        region.part(range).copy_to(target.region());
        target.bytes()
    }

    /// Its elements as single-precision floats.
    pub fn as_floats(&self) -> Vec<f32> {
        let bytes = self.buffer.bytes();
        let (chunks, _) = bytes.as_chunks::<4>();
        chunks.iter().map(|chunk| f32::from_ne_bytes(*chunk)).collect()
    }

    /// Its bytes.
    pub fn bytes(&self) -> Vec<u8> {
        self.buffer.bytes()
    }

    /// Its shape.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// The type of its elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Its memory, for the engine; the tensor must outlive the operation.
    pub fn region(&self) -> Region {
        self.buffer.region()
    }
}
