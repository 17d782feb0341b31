//! What there is on this machine for GPU tensors, good enough or not: for people who want to know.

use super::DeviceError;
use super::driver::CudaDriver;
use super::libraries::LibraryPaths;
use super::nccl::Nccl;

/// A library as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundLibrary {
    /// Its version as it reports it; for the driver, the newest CUDA that it supports.
    pub version: u32,
    /// The file that it is in.
    pub path: String,
}

/// A GPU as its driver describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundGpu {
    /// Its name, for people.
    pub name: String,
    /// All of its memory.
    pub memory_bytes: u64,
}

impl LibraryPaths {
    /// The driver, even one that is too old, or why there is none.
    pub fn find_driver(&self) -> Result<FoundLibrary, DeviceError> {
        let (library, name) = self.open_driver()?;
        let (version, path) = CudaDriver::version_of(&library, &name)?;
        // It stays loaded, as it would for a program.
        library.into_raw();
        Ok(FoundLibrary { version: version.0, path })
    }

    /// NCCL, even one that is too old, or why there is none.
    pub fn find_nccl(&self) -> Result<FoundLibrary, DeviceError> {
        let (library, name) = self.open_nccl()?;
        let (version, path) = Nccl::version_of(&library, &name)?;
        // It stays loaded: NCCL is not made to be unloaded.
        library.into_raw();
        Ok(FoundLibrary { version: version.0, path })
    }

    /// The GPUs that this process sees, if any. Initializes the driver, and uses none of them.
    pub fn find_gpus(&self) -> Result<Vec<FoundGpu>, DeviceError> {
        let driver = CudaDriver::open(self)?;
        if !driver.finds_gpus()? {
            return Ok(Vec::new());
        }
        let gpu = |number| {
            let mut total = 0;
            // SAFETY: it writes one number.
            let status = unsafe { (driver.functions.total_memory)(&raw mut total, number) };
            driver.check(status, "cuDeviceTotalMem")?;
            Ok(FoundGpu { name: driver.name(number)?, memory_bytes: total as u64 })
        };
        (0..driver.count()?).map(gpu).collect()
    }
}
