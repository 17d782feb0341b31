"""Functions to join and leave the world, and to query it.

Every framework module offers all of these under the same names: it imports everything in `__all__`
here, and adds it to its own. They are functions rather than the methods of `_basics`, so that tools
that read the source find their signatures and their documentation.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from horovod.common.basics import _basics
from horovod.common.process_sets import ProcessSet
from horovod.common.rendezvous import use_rendezvous

__all__ = [
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]


def init(
    comm: object = None,
    process_sets: Sequence[ProcessSet] | str | None = None,
    *,
    rank: int | None = None,
    size: int | None = None,
    invitation: str | None = None,
    host: str | None = None,
) -> None:
    """Join the other ranks of the job.

    Call it once, before any other function. A second call while Horovod is running checks the
    process sets and does nothing else. Without a launcher the job has a single rank. Child
    processes of a rank, such as the workers of a data loader, need not and cannot call it.

    Args:
        comm: Ranks that form the world: None for all (default), an mpi4py communicator, or a list
            of ranks. Anything but all ranks needs `mpirun`.
        process_sets: Process sets to register, the same list of ranks on every rank; or `"dynamic"`
            to allow adding and removing them later (default: none). Under `mpirun` a set may be
            made from a communicator; each rank then passes those that it belongs to.
        rank: The rank of this process, with `size` and `invitation`, in programs that start their
            processes themselves (default: what the launcher says).
        size: Number of ranks of that world (default: what the launcher says).
        invitation: What `horovod.open_rendezvous` returned on rank 0 (default: None).
        host: The identity of this host; ranks with the same one share a host (default: its host
            name).

    Raises:
        ValueError: If an argument is of the wrong type, a process set is listed twice, or the
            settings in the environment are invalid.
        NotImplementedError: If `comm` names only some of the ranks and the job was not started by
            `mpirun`, or process sets from communicators are combined with a list of ranks as
            `comm`.
        HorovodInternalError: If the other ranks did not join in time.

    Example:
        ```python
        import horovod.torch as hvd

        hvd.init()
        print(f"rank {hvd.rank()} of {hvd.size()}")
        ```
    """
    if (rank, size, invitation, host) != (None, None, None, None):
        if rank is None or size is None or invitation is None:
            raise ValueError("rank, size and invitation belong together; pass all three or none")
        if not is_initialized():
            use_rendezvous(invitation, rank, size, host)
    _basics.init(comm, process_sets)


def shutdown() -> None:
    """Leave the job; operations in flight fail.

    `init` can be called again afterwards. It runs automatically when the interpreter exits.
    """
    _basics.shutdown()


def is_initialized() -> bool:
    """Return whether `init` has been called.

    Returns:
        True if this process is a rank of a job, or a child process of one; False before `init` and
        after `shutdown`.
    """
    return _basics.is_initialized()


def start_timeline(file_path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
    """Start writing a timeline of all operations to a file, for `chrome://tracing`.

    A timeline that is already running ends. Rank 0 writes the file.

    Args:
        file_path: Where rank 0 writes the timeline; an existing file is overwritten.
        mark_cycles: Whether to mark each round of negotiation between the ranks (default: False).

    Raises:
        ValueError: If Horovod is not initialized, or `HOROVOD_TIMELINE` was not set when `init` was
            called; `HOROVOD_TIMELINE=DYNAMIC` allows timelines without starting one.
    """
    _basics.start_timeline(file_path, mark_cycles)


def stop_timeline() -> None:
    """Stop the timeline; the file is complete when this returns.

    Raises:
        ValueError: If Horovod is not initialized.
    """
    _basics.stop_timeline()


def rank() -> int:
    """Return the rank of this process in the job.

    Returns:
        A number from 0 to `size() - 1`.

    Raises:
        ValueError: If Horovod is not initialized.
    """
    return _basics.rank()


def size() -> int:
    """Return the number of ranks in the job.

    Returns:
        The number of processes.

    Raises:
        ValueError: If Horovod is not initialized.
    """
    return _basics.size()


def local_rank() -> int:
    """Return the rank of this process on its host.

    Returns:
        A number from 0 to `local_size() - 1`; commonly used to pick a device.

    Raises:
        ValueError: If Horovod is not initialized.
    """
    return _basics.local_rank()


def local_size() -> int:
    """Return the number of ranks on this host.

    Returns:
        The number of processes.

    Raises:
        ValueError: If Horovod is not initialized.
    """
    return _basics.local_size()


def cross_rank() -> int:
    """Return the rank of this host among the hosts that have this local rank.

    Returns:
        A number from 0 to `cross_size() - 1`.

    Raises:
        ValueError: If Horovod is not initialized.
    """
    return _basics.cross_rank()


def cross_size() -> int:
    """Return the number of hosts that have a process with this local rank.

    Returns:
        The number of hosts; it differs between local ranks if hosts have different numbers of
        ranks.

    Raises:
        ValueError: If Horovod is not initialized.
    """
    return _basics.cross_size()


def is_homogeneous() -> bool:
    """Return whether every host has the same number of ranks.

    Returns:
        True if it has.

    Raises:
        ValueError: If Horovod is not initialized.
    """
    return _basics.is_homogeneous()


def mpi_threads_supported() -> bool:
    """Return whether the MPI through which the ranks connected supports calls from several threads.

    Returns:
        True if it does.

    Raises:
        ValueError: If the ranks did not connect through MPI.
    """
    return _basics.mpi_threads_supported()


def mpi_enabled() -> bool:
    """Return whether the ranks connected through MPI.

    Returns:
        True under `mpirun`, if the MPI library could be loaded.
    """
    return _basics.mpi_enabled()


def mpi_built() -> bool:
    """Return whether ranks can connect through MPI.

    Returns:
        Always True: MPI is looked for when the job starts.
    """
    return _basics.mpi_built()


def gloo_enabled() -> bool:
    """Return whether the ranks connected without MPI, which Horovod calls Gloo.

    Returns:
        The opposite of `mpi_enabled()`.
    """
    return _basics.gloo_enabled()


def gloo_built() -> bool:
    """Return whether ranks can connect without MPI, which Horovod calls Gloo.

    Returns:
        Always True.
    """
    return _basics.gloo_built()


def nccl_built() -> int:
    """Return the version of NCCL that collectives on GPUs use.

    NCCL is looked for at run time, in the program itself, in its packages, and in the system.

    Returns:
        The version code, such as 22809 for 2.28.9; 0 if there is no NCCL that is new enough, or no
        driver.
    """
    return _basics.nccl_built()


def ddl_built() -> bool:
    """Return whether IBM DDL is built in.

    Returns:
        Always False.
    """
    return _basics.ddl_built()


def ccl_built() -> bool:
    """Return whether oneCCL is built in.

    Returns:
        Always False.
    """
    return _basics.ccl_built()


def cuda_built() -> bool:
    """Return whether collectives take tensors on NVIDIA GPUs here.

    Looks for the driver, and does not start to use a GPU. `torch.cuda.is_available()` and the like
    tell whether the framework finds one.

    Returns:
        Whether there is an NVIDIA driver that is new enough.
    """
    return _basics.cuda_built()


def rocm_built() -> bool:
    """Return whether ROCm is built in.

    Returns:
        False in this release.
    """
    return _basics.rocm_built()
