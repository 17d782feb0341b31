"""Broadcasting variables, and broadcasting and gathering Python objects.

Objects travel as cloudpickle bytes between ranks of one job, which have authenticated each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle  # type: ignore[import-untyped, unused-ignore]
import numpy as np
import tensorflow as tf

from horovod.common.basics import _basics
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow.mpi_ops import allgather, broadcast, broadcast_
from horovod.tensorflow.util import _executing_eagerly, listed

__all__ = [
    "BroadcastGlobalVariablesHook",
    "allgather_object",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
]

_SessionRunHook: Any = tf.compat.v1.train.SessionRunHook


def broadcast_variables(
    variables: Sequence[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Any:
    """Overwrite variables with those of one rank, so that all ranks start with the same values.

    Args:
        variables: A variable or several, such as `model.variables`.
        root_rank: Rank that sends, counted among all ranks of the job even if `process_set` is
            smaller.
        process_set: Ranks that take part (default: all ranks).
        inplace: Whether to overwrite them one by one instead of all together (default: False).

    Returns:
        In a graph, the operation to run; None eagerly.

    Raises:
        tf.errors.UnknownError: If a rank was lost; `hvd.HorovodInternalError.last()` says which and
            why.

    Example:
        ```python
        import horovod.tensorflow as hvd
        import tensorflow as tf

        hvd.init()
        weights = tf.Variable(tf.random.normal([10, 1]))
        hvd.broadcast_variables([weights], root_rank=0)
        ```
    """
    variables = listed(variables)
    if inplace:
        return tf.group(*broadcast_(variables, root_rank, process_set=process_set))
    if _executing_eagerly():
        for variable in variables:
            variable.assign(broadcast(variable, root_rank, process_set=process_set))
        return None
    # All are submitted before the first is overwritten, so that they travel together.
    values = [
        broadcast(
            variable,
            root_rank,
            f"HorovodBroadcast_{_plain(variable.name)}",
            process_set=process_set,
        )
        for variable in variables
    ]
    return tf.group(*[variable.assign(value) for variable, value in zip(variables, values)])


def broadcast_global_variables(root_rank: int) -> Any:
    """Overwrite all variables of the default graph with those of one rank.

    For TensorFlow 1 graphs.

    Args:
        root_rank: Rank that sends.

    Returns:
        The operation to run.

    Raises:
        RuntimeError: If TensorFlow executes eagerly; use `broadcast_variables` there.
    """
    if _executing_eagerly():
        raise RuntimeError(
            "hvd.broadcast_global_variables() does not support eager execution. Please use "
            "`hvd.broadcast_variables(<model/optimizer variables>)` instead."
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(_SessionRunHook):
    """Session hook that overwrites all variables with those of one rank at the start.

    For TensorFlow 1 sessions, such as `tf.compat.v1.train.MonitoredTrainingSession`.

    Args:
        root_rank: Rank that sends.
        device: Device to broadcast on (default: the current device).
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.bcast_op: Any = None

    def begin(self) -> None:
        """Add the broadcast to the graph before it is finalized."""
        if self.bcast_op is None or self.bcast_op.graph is not tf.compat.v1.get_default_graph():
            with tf.device(self.device):
                self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Run the broadcast.

        Args:
            session: The new session.
            coord: Its coordinator; not used.
        """
        session.run(self.bcast_op)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send a Python object from one rank to all others.

    The object travels as cloudpickle bytes.

    Args:
        obj: Any object that can be pickled; ignored on ranks other than `root_rank`.
        root_rank: Rank that sends, counted among all ranks of the job even if `process_set` is
            smaller (default: 0).
        session: TensorFlow 1 session to run in (default: eagerly, or in the default session).
        name: Name by which ranks match this operation; pass the same on every rank (default: the
            name of the function).
        process_set: Ranks that take part (default: all ranks).

    Returns:
        The object of rank `root_rank`; there, the object itself.

    Raises:
        tf.errors.FailedPreconditionError: If Horovod is not initialized, or the ranks disagree
            about shape, element type or operation.
        tf.errors.UnknownError: If a rank was lost; `hvd.HorovodInternalError.last()` says which and
            why.
    """
    name = name or "broadcast_object"
    is_root = _basics.rank() == root_rank
    data = np.frombuffer(cloudpickle.dumps(obj) if is_root else b"", dtype=np.uint8)
    length = _run(
        session,
        lambda: broadcast(
            tf.constant([data.size], tf.int64), root_rank, f"{name}_sz", process_set=process_set
        ),
    )
    if not is_root:
        data = np.zeros(int(length[0]), dtype=np.uint8)
    data = _run(
        session,
        lambda: broadcast(tf.constant(data), root_rank, f"{name}_data", process_set=process_set),
    )
    return obj if is_root else cloudpickle.loads(data.tobytes())


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """Return a function that broadcasts objects, for TensorFlow 1 sessions.

    It adds its operations to the graph once, so that the graph can be finalized before the first
    call.

    Args:
        root_rank: Rank that sends, counted among all ranks of the job even if `process_set` is
            smaller (default: 0).
        session: Session to run in (default: the default session).
        name: Name by which ranks match this operation; pass the same on every rank (default: the
            name of the function).
        process_set: Ranks that take part (default: all ranks).

    Returns:
        A function that takes an object and returns that of rank `root_rank`.

    Raises:
        RuntimeError: If TensorFlow executes eagerly; use `broadcast_object` there.
        ValueError: If there is no session.
    """
    if _executing_eagerly():
        raise RuntimeError(
            "hvd.broadcast_object_fn() is for sessions of tf.compat.v1; use hvd.broadcast_object"
        )
    name = name or "broadcast_object_fn"
    session = session or _default_session()
    length = tf.compat.v1.placeholder(tf.int64, [1])
    content = tf.compat.v1.placeholder(tf.uint8, [None])
    send_length = broadcast(length, root_rank, f"{name}_sz", process_set=process_set)
    send_content = broadcast(content, root_rank, f"{name}_data", process_set=process_set)

    def send(obj: Any) -> Any:
        is_root = _basics.rank() == root_rank
        data = np.frombuffer(cloudpickle.dumps(obj) if is_root else b"", dtype=np.uint8)
        size = session.run(send_length, {length: [data.size]})
        if not is_root:
            data = np.zeros(int(size[0]), dtype=np.uint8)
        data = session.run(send_content, {content: data})
        return obj if is_root else cloudpickle.loads(data.tobytes())

    return send


def allgather_object(
    obj: Any,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Collect a Python object from every rank.

    The objects travel as cloudpickle bytes.

    Args:
        obj: Any object that can be pickled.
        session: TensorFlow 1 session to run in (default: eagerly, or in the default session).
        name: Name by which ranks match this operation; pass the same on every rank (default: the
            name of the function).
        process_set: Ranks that take part (default: all ranks).

    Returns:
        The objects of all ranks, in the order of the ranks.

    Raises:
        tf.errors.FailedPreconditionError: If Horovod is not initialized, or the ranks disagree
            about shape, element type or operation.
        tf.errors.UnknownError: If a rank was lost; `hvd.HorovodInternalError.last()` says which and
            why.
    """
    name = name or "allgather_object"
    data = np.frombuffer(cloudpickle.dumps(obj), dtype=np.uint8)
    lengths = _run(
        session,
        lambda: allgather(
            tf.constant([data.size], tf.int64), f"{name}_sz", process_set=process_set
        ),
    )
    everything = _run(
        session, lambda: allgather(tf.constant(data), f"{name}_data", process_set=process_set)
    )
    parts = np.split(everything, np.cumsum(lengths)[:-1])
    return [cloudpickle.loads(part.tobytes()) for part in parts]


def _run(session: Any, make: Callable[[], Any]) -> Any:
    """The value of what `make` returns, as an array, with or without a session."""
    if _executing_eagerly():
        return make().numpy()
    session = session or _default_session()
    with session.graph.as_default():
        return session.run(make())


def _default_session() -> Any:
    session = tf.compat.v1.get_default_session()
    if session is None:
        raise ValueError("there is no session here; pass one, or make one the default")
    return session


def _plain(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter == "_" else "_" for letter in name)
