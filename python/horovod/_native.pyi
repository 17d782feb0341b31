"""The one native module: the engine of this process and what the framework adapters call.

Every wait releases the interpreter lock. Tensors are any objects whose type offers DLPack's C
exchange table, NumPy arrays, and what looks like torch tensors (`data_ptr`, `shape`, `dtype`,
`is_contiguous`). They must be contiguous, and writable where a result goes.
`lazy` says that the caller waits for the handle at once: it does the work, and nobody is woken.
`process_set` is the id of the ranks that take part, 0 for all.
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
    "for_children",
    "forked",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
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
    "wait",
    "xla_expect_futures",
    "xla_handler",
]

@final
class Memory:
    """A result as one-dimensional bytes; `numpy.asarray` makes an array of it."""

    @property
    def __array_interface__(self) -> dict[str, Any]: ...

def claim(capsule: Any) -> Memory:
    """Takes the memory out of a capsule that `wait` gave, and that nobody has used."""

@final
class Mpi:
    """An MPI library, opened at run time. OSError if it is none, or of another family."""

    def __new__(cls, path: str, family: str | None = None) -> Mpi: ...
    @property
    def family(self) -> str:
        """`Open MPI`, `MPICH` or `MPI ABI`."""

    @property
    def world(self) -> int:
        """The communicator of all processes."""

    def is_running(self) -> bool:
        """Whether it is initialised and not yet finalised."""

    def start(self, threads: bool) -> None:
        """Initialises it, for many threads or for one, unless somebody has done so already."""

    def supports_threads(self) -> bool:
        """Whether it takes calls from many threads at a time."""

    def seat(self, comm: int) -> tuple[int, int]:
        """This process among those of a communicator, and their number."""

    def part(self, ranks: list[int]) -> int:
        """A communicator of these processes, all of which must ask for it, and nobody else."""

    def abort_at_exit(self) -> None:
        """Has MPI end the whole job when this process ends, if MPI was initialised here."""

    def finish(self) -> None:
        """Finalises it if it was initialised here and nobody else has finalised it."""

def parse_hosts(text: str) -> list[tuple[str, int]]:
    """The hosts of `node-a:4,node-b:4` and their slots."""

def parse_hostfile(text: str) -> list[tuple[str, int]]:
    """The same of a hostfile."""

def parse_discovered(text: str, slots: int | None = None) -> list[tuple[str, int]]:
    """The same of what a discovery script prints; `slots` is for hosts without a number."""

def assign_ranks(
    hosts: list[tuple[str, int]], count: int
) -> list[tuple[str, int, int, int, int, int, int]]:
    """Host, rank, local rank, cross rank, size, local size and cross size of so many ranks."""

def interfaces() -> list[tuple[str, str]]:
    """The interfaces of this machine that are up, and their addresses."""

def is_exportable(name: str) -> bool:
    """Whether a variable of the launcher's environment is passed on to ranks."""

def launched() -> tuple[str, int, int] | None:
    """The launcher that is not horovodrun, this process's rank and their number; None without."""

def init(mpi: Mpi | None = None, comm: int | None = None) -> None:
    """Joins the world described by the environment; a world of one if there is no launcher.

    With `mpi`, the members of the communicator `comm` are the world, and meet over it.
    Raises `WorkerRemovedError` if this process is no longer part of its elastic job.
    """

def init_later(arrive: Callable[[], object]) -> None:
    """Lets this process join its world later, by `arrive`: when it has something to say there.

    Until then its rank and the like are those that its environment names.
    """

def shutdown(error: str | None = None, exiting: bool = False) -> None:
    """Leaves the world; `error` is the exception that ends the process, if one does.

    RuntimeError in a child process of a rank. `exiting` says that the interpreter ends: threads
    that wait in a collective then wait for ever, since Python would end them in the middle of
    native code.
    """

def start_timeline(path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
    """Starts a timeline in a file that rank 0 writes.

    ValueError unless HOROVOD_TIMELINE was set at `init`.
    """

def stop_timeline() -> None:
    """Ends the timeline; everything until now is in the file then."""

def is_initialized() -> bool:
    """Whether this process is part of a world, or a child process of one that is."""

def in_child() -> bool:
    """Whether this process is a child of a rank and not a rank itself.

    Then it answers as the rank to all questions about places, and raises RuntimeError for the rest.
    """

def check_may_join() -> None:
    """RuntimeError in a child of a rank that a launcher has started."""

def for_children() -> tuple[int, int, int, int, int, int, int, bool]:
    """What child processes are to know of this rank.

    Its process, rank, size, local rank and size, cross rank and size, and whether a launcher has
    started it.
    """

def forked() -> None:
    """Says that this is a forked child, to which the handles of its parent mean nothing."""

def rank() -> int:
    """This process among all."""

def size() -> int:
    """The number of processes."""

def local_rank() -> int:
    """This process among those of its host."""

def local_size() -> int:
    """The number of processes on this host."""

def cross_rank() -> int:
    """This host among those that have this local rank."""

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
    """Submits a gathering along the first dimension; `wait` gives `(capsule, rows)`."""

def grouped_allgather(
    inputs: Iterable[Any], name: str, lazy: bool = False, process_set: int = 0
) -> int:
    """Submits gatherings that are negotiated and run as one; all of one element type."""

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
    """Submits a reduction of which each member gets its share of the first dimension."""

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
    """Memory that all ranks of this host see: a DLPack capsule of `length` bytes that owns it.

    Reducing tensors in place that lie there on every rank copies nothing. What is in the memory is
    not defined. None if there is no such memory, or no more of it.
    """

def in_arena(address: int) -> bool:
    """Whether something at this address lies in memory that `arena` gives out in this world."""

def barrier(name: str, lazy: bool = False, process_set: int = 0) -> int:
    """Submits a barrier."""

def join(lazy: bool = False) -> int:
    """Contributes zeros to the reductions of others until all have joined.

    `wait` gives the rank that joined last.
    """

def add_process_set(ranks: Iterable[int]) -> int:
    """Submits the registration of a set, which all ranks must do; `wait` gives its id."""

def remove_process_set(id: int) -> int:
    """Submits the removal of a set, which all ranks must do."""

def repeat_allreduce(tensor: Any, name: str, times: int) -> list[float]:
    """Sums a tensor over all ranks, in place, so many times; gives the seconds of each.

    The calls are made without Python between them, for measuring the engine itself.
    """

def poll(handle: int) -> bool:
    """Whether `wait` would return at once; ValueError for a handle that is not known."""

def wait(handle: int) -> Any:
    """Waits for a handle and forgets it; None for a handle that is not known.

    Gives the output of `allreduce` and `broadcast`, None for a barrier. For `allgather`, `alltoall`
    and `reducescatter` it gives `(capsule, rows)`: a DLPack capsule of one-dimensional bytes that
    owns the result, and the numbers of rows that it got from each member; a share of a reduction
    has one such number. For a grouped operation it gives the list of these.
    """

def is_elastic() -> bool:
    """Whether this process is a worker of an elastic job, as its environment has said once."""

def may_grow() -> bool:
    """Whether the next world may have another number of ranks: HOROVOD_ELASTIC says so."""

def last_loss() -> Any:
    """The `HorovodInternalError` by which a caller was first told of the end of the world.

    None until then, and again in the next world. It is kept for frameworks, which pass on no more
    than its text.
    """

def elastic_update(seen: int, timeout: float) -> tuple[int, int] | None:
    """Waits for news of the next world that are later than number `seen`, 0 for any.

    Gives the number of the newest and what has happened since `seen`, added up: 1 if workers will
    have gone, 2 if some will have come, 4 if hosts were found for some that are not ready. None
    when `timeout` seconds have passed, and soon if there is no world or it ends. Numbers rise from
    world to world.
    """

def elastic_reached(milestone: str) -> None:
    """Tells the launcher that this worker has the "state", or has made its first "commit".

    Does nothing outside an elastic world.
    """

def elastic_departing(reason: str) -> None:
    """Tells the launcher that this worker wants to be left out of the next world.

    Does nothing outside an elastic world.
    """

def fetch_function() -> bytes:
    """The bytes that the caller of `horovod.run` gave for this job."""

def deliver_result(result: bytes) -> None:
    """Gives the caller of `horovod.run` bytes from this rank; returns when they are there."""

def tensorflow_problem() -> str | None:
    """Why TensorFlow has no ops of ours after it has loaded their library; None if it has."""

def tensorflow_xla_problem() -> str | None:
    """Gives TensorFlow's XLA our handlers, once; why it cannot have them, None if it has."""

def mxnet_open(path: str) -> None:
    """Finds the functions of the MXNet loaded from `path`; ImportError names what is gone."""

def mxnet_push(
    name: str,
    process_set: int,
    how: tuple[int | None, float, float, int],
    inputs: list[tuple[int, list[int], int]],
    outputs: list[tuple[int, list[int], int]],
    priority: int,
) -> None:
    """Lets MXNet's engine run a reduction or a broadcast when the arrays are ready.

    `how` is the number of the reduction, or None for a broadcast, the factors before and behind it,
    and the root. Arrays are their handles, shapes and MXNet's numbers of their types, which must be
    one. What goes in place stands in `outputs` only.
    """

def xla_expect_futures() -> None:
    """Says that XLA's table of functions has futures though its size does not tell.

    So it is in the releases 0.5 of jaxlib. In some before, the functions are in other places.
    """

def xla_handler(collective: str) -> Any:
    """The handler of a collective for compiled programs, as `jax.ffi.register_ffi_target` wants it.

    ValueError for what is none of `allreduce`, `allgather`, `broadcast`, `alltoall` and
    `reducescatter`.
    """

@final
class Tunnel:
    """This process's end of a data service's tunnel (`horovod.tensorflow.data`).

    It listens at a port of the address, if one is given. `answer` answers questions to a registry,
    in threads of the tunnel; what it raises leaves the question without an answer.
    """

    def __new__(
        cls,
        key: bytes,
        listen: str | None = None,
        answer: Callable[[bytes], bytes] | None = None,
    ) -> Tunnel: ...
    @property
    def port(self) -> int:
        """The port at which it listens; 0 if it does not."""

    def reserve(self) -> int:
        """A port for a server of this process, to which nobody can connect before `serve`."""

    def serve(self, name: str, port: int, path: str) -> None:
        """Lets callers of this name talk to the server at a reserved port, and nobody else."""

    def reach(self, name: str, path: str, addresses: list[tuple[str, int]]) -> None:
        """Lets callers at this path talk to the server of this name that another tunnel has."""

    def retire(self) -> None:
        """Removes the unix sockets, so that another process may have them; connections stay."""

    def linger(self, seconds: float) -> None:
        """Waits at most so long for connections that other processes have through it."""

    def close(self) -> None:
        """Ends all connections and everything that listens."""

def tunnel_ask(
    key: bytes, address: str, port: int, question: bytes, seconds: float
) -> tuple[bytes, str]:
    """The answer of the registry there, and this host's own address as seen from there."""
