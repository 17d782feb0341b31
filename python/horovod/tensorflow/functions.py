"""Bringing variables and Python objects from one rank to all, or to everybody.

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

_SessionRunHook: Any = tf.compat.v1.train.SessionRunHook


def broadcast_variables(
    variables: Sequence[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Any:
    """Overwrites variables with those of rank `root_rank`; in a graph it gives the op that does."""
    variables = listed(variables)
    if inplace:
        return tf.group(*broadcast_(variables, root_rank, process_set=process_set))
    if _executing_eagerly():
        for variable in variables:
            variable.assign(broadcast(variable, root_rank, process_set=process_set))
        return None
    # All are asked for before the first is overwritten, so that they travel together.
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
    """The op that overwrites all variables of the default graph with those of rank `root_rank`."""
    if _executing_eagerly():
        raise RuntimeError(
            "hvd.broadcast_global_variables() does not support eager execution. Please use "
            "`hvd.broadcast_variables(<model/optimizer variables>)` instead."
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(_SessionRunHook):
    """Overwrites all variables with those of rank `root_rank` when a session is made."""

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.bcast_op: Any = None

    def begin(self) -> None:
        """Puts the op into the graph that is about to be finished."""
        if self.bcast_op is None or self.bcast_op.graph is not tf.compat.v1.get_default_graph():
            with tf.device(self.device):
                self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Runs it."""
        session.run(self.bcast_op)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The object of rank `root_rank`; what the other ranks pass does not matter."""
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
    """A function that broadcasts objects, with nodes that are made once; for sessions."""
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
    """The objects of all ranks, in their order."""
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
    """The value of what `make` gives, as an array, with or without a session."""
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
