//! The native module `horovod._native`: the engine of this process as Python sees it.
//!
//! Thin on purpose: arguments become requests, outcomes become objects, errors become the
//! exceptions that Horovod's users catch. The interpreter lock is released around every wait.

mod array;
mod capsule;
mod child;
mod elastic;
mod errors;
mod gpu;
mod handles;
mod hosts;
mod launched;
mod mpi;
mod mxnet;
mod native;
mod process;
mod remote_call;
mod repeat;
mod submit;
mod symbols;
mod tensor;
mod tensorflow;
mod tunnel;
mod xla;

use pyo3::prelude::*;

/// The engine of this process, and the functions that the framework adapters call.
#[pymodule]
mod _native {
    use super::*;

    #[pymodule_export]
    use super::process::{
        cross_rank, cross_size, init, init_later, is_homogeneous, is_initialized, local_rank,
        local_size, rank, shutdown, size, start_timeline, stop_timeline,
    };

    #[pymodule_export]
    use super::array::Memory;

    #[pymodule_export]
    use super::capsule::{arena, claim, in_arena};

    #[pymodule_export]
    use super::child::{check_may_join, for_children, in_child};

    #[pymodule_export]
    use super::elastic::{
        elastic_departing, elastic_reached, elastic_update, is_elastic, may_grow,
    };

    #[pymodule_export]
    use super::remote_call::{deliver_result, fetch_function};

    #[pymodule_export]
    use super::errors::last_loss;

    #[pymodule_export]
    use super::gpu::{finish_on_gpu, gpu_software, has_cuda, nccl_version, use_streams};

    #[pymodule_export]
    use super::handles::{forked, poll, wait};

    #[pymodule_export]
    use super::hosts::{
        assign_ranks, free_port, interfaces, is_exportable, parse_discovered, parse_hostfile,
        parse_hosts,
    };

    #[pymodule_export]
    use super::launched::{has_rendezvous, launched, open_rendezvous, use_rendezvous};

    #[pymodule_export]
    use super::mpi::Mpi;

    #[pymodule_export]
    use super::mxnet::{mxnet_open, mxnet_push};

    #[pymodule_export]
    use super::repeat::repeat_allreduce;

    #[pymodule_export]
    use super::submit::{
        add_process_set, allgather, allreduce, alltoall, barrier, broadcast, grouped_allgather,
        grouped_allreduce, grouped_reducescatter, join, reducescatter, remove_process_set,
    };

    #[pymodule_export]
    use super::tensorflow::tensorflow_problem;

    #[pymodule_export]
    use super::tunnel::{Tunnel, tunnel_ask};

    #[pymodule_export]
    use super::xla::{tensorflow_xla_problem, xla_expect_futures, xla_handlers};

    #[pymodule_init]
    fn start(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("REINSTALL", ronde_control::install::again())?;
        module.add("__version__", ronde_control::VERSION)
    }
}
