"""The one native module: the engine of this process and what the framework adapters call.

Every wait releases the interpreter lock. Tensors are any objects whose type offers DLPack's C
exchange table, or that look like torch tensors (`data_ptr`, `shape`, `dtype`, `is_contiguous`).
"""

from collections.abc import Sequence
from typing import Any

__version__: str

def init() -> None:
    """Joins the world described by the environment; a world of one if there is no launcher."""

def shutdown(error: str | None = None) -> None:
    """Leaves the world; `error` is the exception that ends the process, if one does."""

def is_initialized() -> bool: ...
def rank() -> int: ...
def size() -> int: ...
def local_rank() -> int: ...
def local_size() -> int: ...
def cross_rank() -> int: ...
def cross_size() -> int: ...
def is_homogeneous() -> bool: ...
def allreduce(
    input: Any, output: Any, name: str, op: int, prescale: float = 1.0, postscale: float = 1.0
) -> int:
    """Submits a reduction and returns its handle; `op` is Horovod's number, average included."""

def grouped_allreduce(
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    name: str,
    op: int,
    prescale: float = 1.0,
    postscale: float = 1.0,
) -> int:
    """Submits reductions that are negotiated and run as one; all of one element type."""

def allgather(input: Any, name: str) -> int:
    """Submits a gathering along the first dimension; `wait` gives `(capsule, rows)`."""

def broadcast(input: Any, output: Any, name: str, root: int) -> int:
    """Submits a broadcast from `root` into `output`."""

def barrier(name: str) -> int:
    """Submits a barrier."""

def poll(handle: int) -> bool:
    """Whether `wait` would return at once; ValueError for a handle that is not known."""

def wait(handle: int) -> Any:
    """Waits for a handle and forgets it; None for a handle that is not known.

    Gives the output of `allreduce` and `broadcast`, the list of outputs of a grouped one, None for a
    barrier. For `allgather` it gives `(capsule, rows)`: a DLPack capsule of one-dimensional uint8
    bytes that owns the result, and the number of rows each rank contributed.
    """
