//! Versions of NVIDIA's libraries: how they are written, and which ones we need.
//!
//! The libraries report a version as one number, which `hvd.nccl_built()` passes on.

use std::fmt;

/// The newest CUDA that a driver supports, as the driver reports it: 12040 is 12.4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CudaVersion(pub u32);

/// A version of NCCL, as it reports it: 22809 is 2.28.9.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NcclVersion(pub u32);

impl CudaVersion {
    /// The oldest that has every function we call: 11.2 brought memory in stream order, 11.4 the
    /// identity of a part of a GPU.
    pub const OLDEST: CudaVersion = CudaVersion(11_040);
}

impl NcclVersion {
    /// The oldest whose communicators do not block.
    pub const OLDEST: NcclVersion = NcclVersion(21_400);
    /// The oldest that splits communicators.
    pub const SPLITS: NcclVersion = NcclVersion(21_800);
    /// From here on, several ranks may share a GPU.
    pub const SHARES_GPUS: NcclVersion = NcclVersion(23_000);
}

impl fmt::Display for CudaVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}

impl fmt::Display for NcclVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NcclVersion(number) = self;
        // Until 2.8, a minor version had one digit.
        let major = if *number < 10_000 { 1000 } else { 10_000 };
        write!(f, "{}.{}.{}", number / major, number % major / 100, number % 100)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_read_as_nvidia_writes_them() {
        for (number, text) in [(11_020, "11.2"), (12_040, "12.4"), (13_000, "13.0")] {
            assert_eq!(CudaVersion(number).to_string(), text);
        }
        for (number, text) in [(2708, "2.7.8"), (21_605, "2.16.5"), (23_007, "2.30.7")] {
            assert_eq!(NcclVersion(number).to_string(), text);
        }
    }
}
