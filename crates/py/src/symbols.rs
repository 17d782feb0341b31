//! Functions that Horovod's users reach through ctypes: those of its C library that only query
//! something.
//!
//! They may be called without the interpreter lock, at any time and from any thread; those about
//! GPUs take it, because NCCL may be in a Python package. A number that
//! needs a world is -1 without one. Booleans are returned as `int`: ctypes takes every result for
//! one, and only the lowest byte of a C `bool` is defined. Initializing, shutting down and
//! registering process sets need Python here, so their C functions are not among these.
#![expect(unsafe_code, reason = "a C symbol must be unique in the process")]

use std::ffi::c_int;

use pyo3::Python;
use ronde_control::settings::RankInfo;

use super::gpu;
use super::process::{homogeneous, inherited, met_over_mpi};

macro_rules! queries {
    ($($name:ident { $answer:expr })*) => {$(
        /// Horovod's C function of this name.
        // SAFETY: no other symbol in the process has this name, unless Horovod itself is loaded
        // too.
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> c_int {
            c_int::from($answer)
        }
    )*};
}

queries! {
    horovod_is_initialized { inherited(|_| ()).is_some() }
    horovod_rank { number(|place| place.rank.0) }
    horovod_size { number(|place| place.size) }
    horovod_local_rank { number(|place| place.local_rank) }
    horovod_local_size { number(|place| place.local_size) }
    horovod_cross_rank { number(|place| place.cross_rank) }
    horovod_cross_size { number(|place| place.cross_size) }
    horovod_is_homogeneous { inherited(homogeneous) == Some(true) }
    horovod_mpi_enabled { met_over_mpi() }
    horovod_mpi_built { true }
    horovod_gloo_enabled { !met_over_mpi() }
    horovod_gloo_built { true }
    horovod_nccl_built { Python::attach(gpu::nccl_version) as c_int }
    horovod_ddl_built { false }
    horovod_ccl_built { false }
    horovod_cuda_built { Python::attach(gpu::has_cuda) }
    horovod_rocm_built { false }
    horovod_reduce_op_average { 0 }
    horovod_reduce_op_sum { 1 }
    horovod_reduce_op_adasum { 2 }
    horovod_reduce_op_min { 3 }
    horovod_reduce_op_max { 4 }
    horovod_reduce_op_product { 5 }
}

fn number(read: impl FnOnce(&RankInfo) -> u32) -> c_int {
    let answer = inherited(read);
    answer.and_then(|number| c_int::try_from(number).ok()).unwrap_or(-1)
}
