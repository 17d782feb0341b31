"""The one native module: the engine of this process and what the framework adapters call.

Every wait releases the interpreter lock. Tensors are any objects whose type offers DLPack's C
exchange table, NumPy arrays, and objects that look like torch tensors (`data_ptr`, `shape`,
`dtype`, `is_contiguous`). They must be contiguous, and outputs must be writable. `lazy` says that
the caller waits for the handle at once: it then does the work itself, and no thread is woken.
`process_set` is the id of the set of ranks that take part, 0 for all.
"""

import os
from collections.abc import Callable, Iterable
from typing import Any, final

REINSTALL: str
__version__: str

__all__ = [
    "REINSTALL",
    "Memory",
    "Mpi",
    "Tunnel",
    "__version__",
    "add_process_set",
    "allgather",
    "allreduce",
    "alltoall",
    "arena",
    "assign_ranks",
    "barrier",
    "broadcast",
    "check_may_join",
    "claim",
    "cross_rank",
    "cross_size",
    "deliver_result",
    "elastic_departing",
    "elastic_reached",
    "elastic_update",
    "fetch_function",
    "finish_on_gpu",
    "for_children",
    "forked",
    "free_port",
    "gpu_software",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "has_cuda",
    "has_rendezvous",
    "in_arena",
    "in_child",
    "init",
    "init_later",
    "interfaces",
    "is_elastic",
    "is_exportable",
    "is_homogeneous",
    "is_initialized",
    "join",
    "last_loss",
    "launched",
    "local_rank",
    "local_size",
    "may_grow",
    "mxnet_open",
    "mxnet_push",
    "nccl_version",
    "open_rendezvous",
    "parse_discovered",
    "parse_hostfile",
    "parse_hosts",
    "poll",
    "rank",
    "reducescatter",
    "remove_process_set",
    "repeat_allreduce",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
    "tensorflow_problem",
    "tensorflow_xla_problem",
    "tunnel_ask",
    "use_rendezvous",
    "use_streams",
    "wait",
    "xla_expect_futures",
    "xla_handlers",
]

@final
class Memory:
    """A result as one-dimensional bytes; `numpy.asarray` makes an array of it."""

    @property
    def __array_interface__(self) -> dict[str, Any]: ...

def claim(capsule: Any) -> Memory:
    """Takes the memory out of an unused capsule that `wait` returned."""

@final
class Mpi:
    """An MPI library, loaded at run time. OSError if it is not one, or of another family."""

    def __new__(cls, path: str, family: str | None = None) -> Mpi: ...
    @property
    def family(self) -> str:
        """`Open MPI`, `MPICH` or `MPI ABI`."""

    @property
    def world(self) -> int:
        """The communicator of all processes."""

    def is_running(self) -> bool:
        """Whether it is initialized and not yet finalized."""

    def start(self, threads: bool) -> None:
        """Initializes it unless that has been done, with or without thread support."""

    def supports_threads(self) -> bool:
        """Whether it supports concurrent calls from several threads."""

    def rank_and_size(self, comm: int) -> tuple[int, int]:
        """The rank of this process in a communicator, and the size of the communicator."""

    def part(self, ranks: list[int]) -> int:
        """Creates a communicator of these processes; all of them must call this, and no others."""

    def abort_at_exit(self) -> None:
        """Makes MPI abort the whole job when this process ends, if `start` initialized MPI."""

    def finish(self) -> None:
        """Finalizes it if `start` initialized it and nothing else has finalized it."""

def use_streams(
    current_stream: Callable[[int], int], allocate: Callable[[Any, int, int], Any]
) -> None:
    """Registers what the framework knows about the streams of its GPU tensors."""

def finish_on_gpu() -> None: ...
def nccl_version() -> int:
    """The version of NCCL, such as 22809; 0 if there is no driver or no NCCL."""

def gpu_software(list_gpus: bool) -> dict[str, object]:
    """What there is for GPU tensors, for `ronde doctor`; listing GPUs initializes the driver."""

def has_cuda() -> bool:
    """Whether the NVIDIA driver can be opened."""

def parse_hosts(text: str) -> list[tuple[str, int]]:
    """Parses a list such as `node-a:4,node-b:4` into hosts and slots."""

def parse_hostfile(text: str) -> list[tuple[str, int]]:
    """Parses a hostfile into hosts and slots."""

def parse_discovered(text: str, slots: int | None = None) -> list[tuple[str, int]]:
    """Parses the output of a discovery script; `slots` is for hosts without a number."""

def assign_ranks(
    hosts: list[tuple[str, int]], count: int
) -> list[tuple[str, int, int, int, int, int, int]]:
    """Host, rank, local rank, cross rank, size, local size and cross size of each rank."""

def free_port() -> int:
    """A port that is free now, of those that this process may listen on."""

def interfaces() -> list[tuple[str, str]]:
    """The interfaces of this machine that are up, and their addresses."""

def is_exportable(name: str) -> bool:
    """Whether a variable of the launcher's environment is passed on to ranks."""

def launched() -> tuple[str, int, int] | None:
    """The launcher, this process's rank and the size; None under horovodrun or no launcher."""

def open_rendezvous(size: int) -> str:
    """Listens for the ranks of a world whose rank 0 this process will be; the invitation."""

def use_rendezvous(
    invitation: str | None, rank: int = 0, size: int = 1, host: str | None = None
) -> None:
    """Has the next `init` join that world; with None, the environment counts again.

    ValueError if it is not an invitation.
    """

def has_rendezvous() -> bool:
    """Whether the next `init` joins the world of an invitation."""

def init(mpi: Mpi | None = None, comm: int | None = None) -> None:
    """Joins the world described by the environment; a world of one if there is no launcher.

    With `mpi`, the members of the communicator `comm` form the world, and find each other over it.
    Raises `WorkerRemovedError` if this process is no longer part of its elastic job.
    """

def init_later(arrive: Callable[[], object]) -> None:
    """Defers joining the world until its first collective, which calls `arrive`.

    Until then its rank and the like are those in its environment.
    """

def shutdown(error: str | None = None, exiting: bool = False) -> None:
    """Leaves the world; `error` is the exception that ends the process, if one does.

    RuntimeError in a child process of a rank. `exiting` says that the interpreter is exiting:
    threads that wait in a collective then wait forever, because Python would end them in the middle
    of native code.
    """

def start_timeline(path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
    """Starts a timeline in a file that rank 0 writes.

    ValueError unless HOROVOD_TIMELINE was set at `init`.
    """

def stop_timeline() -> None:
    """Ends the timeline; the file is then complete."""

def is_initialized() -> bool:
    """Whether this process is part of a world, or a child process of one that is."""

def in_child() -> bool:
    """Whether this process is a child of a rank and not a rank itself.

    Then rank, size and the like are those of the rank; everything else raises RuntimeError.
    """

def check_may_join() -> None:
    """Raises RuntimeError in a child of a rank that a launcher has started."""

def for_children() -> tuple[int, int, int, int, int, int, int, bool]:
    """What child processes need to know about this rank.

    Its process id, rank, size, local rank and size, cross rank and size, and whether a launcher
    started it.
    """

def forked() -> None:
    """Marks this process as a forked child, in which the handles of its parent are invalid."""

def rank() -> int:
    """This process among all."""

def size() -> int:
    """The number of processes."""

def local_rank() -> int:
    """The rank of this process on its host."""

def local_size() -> int:
    """The number of processes on this host."""

def cross_rank() -> int:
    """The rank of this host among the hosts that have this local rank."""

def cross_size() -> int:
    """The number of hosts that have this local rank."""

def is_homogeneous() -> bool:
    """Whether every host has the same number of processes."""

def allreduce(
    input: Any,
    output: Any,
    name: str,
    op: int,
    prescale: float = 1.0,
    postscale: float = 1.0,
    lazy: bool = False,
    process_set: int = 0,
) -> int:
    """Submits a reduction and returns its handle; `op` is Horovod's number, average included."""

def grouped_allreduce(
    inputs: Iterable[Any],
    outputs: Iterable[Any],
    name: str,
    op: int,
    prescale: float = 1.0,
    postscale: float = 1.0,
    lazy: bool = False,
    process_set: int = 0,
) -> int:
    """Submits reductions that are negotiated and run as one; all of one element type."""

def allgather(input: Any, name: str, lazy: bool = False, process_set: int = 0) -> int:
    """Submits an allgather along the first dimension; `wait` returns `(capsule, rows)`."""

def grouped_allgather(
    inputs: Iterable[Any], name: str, lazy: bool = False, process_set: int = 0
) -> int:
    """Submits allgathers that are negotiated and run as one; all of one element type."""

def broadcast(
    input: Any, output: Any, name: str, root: int, lazy: bool = False, process_set: int = 0
) -> int:
    """Submits a broadcast from the global rank `root` into `output`."""

def alltoall(
    input: Any, splits: Iterable[int], name: str, lazy: bool = False, process_set: int = 0
) -> int:
    """Submits an exchange of rows: `splits[i]` of them, in order, go to member `i`."""

def reducescatter(
    input: Any,
    name: str,
    op: int,
    prescale: float = 1.0,
    postscale: float = 1.0,
    lazy: bool = False,
    process_set: int = 0,
) -> int:
    """Submits a reduction; each member gets its share of the first dimension."""

def grouped_reducescatter(
    inputs: Iterable[Any],
    name: str,
    op: int,
    prescale: float = 1.0,
    postscale: float = 1.0,
    lazy: bool = False,
    process_set: int = 0,
) -> int:
    """Submits such reductions that are negotiated and run as one; all of one element type."""

def arena(length: int) -> Any | None:
    """Memory shared by all ranks of this host: a DLPack capsule of `length` bytes that owns it.

    Reducing tensors in place copies nothing if they are in such memory on every rank. Its contents
    are undefined. None if there is no such memory, or not enough of it.
    """

def in_arena(address: int) -> bool:
    """Whether this address is in memory that `arena` allocates in this world."""

def barrier(name: str, lazy: bool = False, process_set: int = 0) -> int:
    """Submits a barrier."""

def join(lazy: bool = False) -> int:
    """Contributes zeros to the reductions of others until all have joined.

    `wait` returns the rank that joined last.
    """

def add_process_set(ranks: Iterable[int]) -> int:
    """Submits the registration of a set, which all ranks must do; `wait` returns its id."""

def remove_process_set(id: int) -> int:
    """Submits the removal of a set, which all ranks must do."""

def repeat_allreduce(tensor: Any, name: str, times: int) -> list[float]:
    """Sums a tensor over all ranks, in place and repeatedly; returns the seconds of each call.

    The calls are made without Python between them, for measuring the engine itself.
    """

def poll(handle: int) -> bool:
    """Whether `wait` would return at once; ValueError for an unknown handle."""

def wait(handle: int) -> Any:
    """Waits for a handle and forgets it; returns None for an unknown handle.

    Returns the output of `allreduce` and `broadcast`, None for a barrier. For `allgather`,
    `alltoall` and `reducescatter` it returns `(capsule, rows)`: a DLPack capsule of one-dimensional
    bytes that owns the result, and the number of rows from each member; a share of a reduction has
    one such number. For a grouped operation it returns a list of these.
    """

def is_elastic() -> bool:
    """Whether this process is a worker of an elastic job; read once from its environment."""

def may_grow() -> bool:
    """Whether the next world may have another number of ranks (HOROVOD_ELASTIC)."""

def last_loss() -> Any:
    """The first `HorovodInternalError` that reported the end of the world to a caller.

    None until then, and again in the next world. It is kept because frameworks pass on only its
    text.
    """

def elastic_update(seen: int, timeout: float) -> tuple[int, int] | None:
    """Waits for a notice about the next world with a number above `seen`, 0 for any.

    Returns the number of the newest notice and what has happened since `seen`, as flags: 1 if
    workers leave, 2 if workers join, 4 if hosts were found for workers that are not ready. Returns
    None when `timeout` seconds have passed, or earlier if there is no world or it ends. Numbers
    increase from world to world.
    """

def elastic_reached(milestone: str) -> None:
    """Reports to the launcher that this worker has the "state", or has made its first "commit".

    Does nothing outside an elastic world.
    """

def elastic_departing(reason: str) -> None:
    """Tells the launcher that this worker wants to be left out of the next world.

    Does nothing outside an elastic world.
    """

def fetch_function() -> bytes:
    """The bytes that the caller of `horovod.run` passed for this job."""

def deliver_result(result: bytes) -> None:
    """Sends bytes from this rank to the caller of `horovod.run`; returns once they arrived."""

def tensorflow_problem() -> str | None:
    """Why TensorFlow lacks our ops after it has loaded their library; None if it has them."""

def tensorflow_xla_problem() -> str | None:
    """Registers our handlers with TensorFlow's XLA, once; returns why that failed, or None."""

def mxnet_open(path: str) -> None:
    """Finds the functions of the MXNet loaded from `path`; ImportError names a missing one."""

def mxnet_push(
    name: str,
    process_set: int,
    how: tuple[int | None, float, float, int],
    inputs: list[tuple[int, list[int], int]],
    outputs: list[tuple[int, list[int], int]],
    priority: int,
) -> None:
    """Makes MXNet's engine run a reduction or a broadcast when the arrays are ready.

    `how` is the number of the reduction, or None for a broadcast, the factors before and after it,
    and the root. Arrays are given by their handles, shapes and MXNet's numbers of their types,
    which must all be the same. In-place operands are only in `outputs`.
    """

def xla_expect_futures() -> None:
    """Declares that XLA's function table has futures although its size does not show it.

    This applies to the 0.5 releases of jaxlib. In some earlier ones the functions are elsewhere.
    """

def xla_handlers(platform: str) -> dict[str, Any]:
    """The handlers for compiled programs, as `jax.ffi.register_ffi_target` expects them.

    `platform` is "cpu" or "CUDA", as for that function. The names of the handlers are those that
    programs call them by: `ronde_allreduce` and so on.
    """

@final
class Tunnel:
    """This process's end of a data service's tunnel (`horovod.tensorflow.data`).

    It listens on a port of the address, if one is given. `answer` answers requests to a registry,
    in threads of the tunnel; if it raises, the request gets no answer.
    """

    def __new__(
        cls,
        key: bytes,
        listen: str | None = None,
        answer: Callable[[bytes], bytes] | None = None,
    ) -> Tunnel: ...
    @property
    def port(self) -> int:
        """The port on which it listens; 0 if it does not."""

    def reserve(self) -> int:
        """Reserves a port for a server of this process; connections fail until `serve`."""

    def serve(self, name: str, port: int, path: str) -> None:
        """Forwards callers of this name, and no others, to the server on a reserved port."""

    def reach(self, name: str, path: str, addresses: list[tuple[str, int]]) -> None:
        """Forwards callers at this path to the server of this name behind another tunnel."""

    def retire(self) -> None:
        """Removes the unix sockets, so that another process can take over; connections stay."""

    def linger(self, seconds: float) -> None:
        """Waits, up to a limit, until no connections of other processes go through it."""

    def close(self) -> None:
        """Ends all connections and everything that listens."""

def tunnel_ask(
    key: bytes, address: str, port: int, question: bytes, seconds: float
) -> tuple[bytes, str]:
    """Sends a request to a registry; returns its answer and this host's address as seen there."""
