"""The actor that is a rank of a fixed job."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import ray

from horovod import _native
from horovod.common import environment
from horovod.common.basics import _basics
from horovod.common.rendezvous import open_rendezvous
from horovod.ray import places, ray_logger
from horovod.ray.places import Assignment, Where
from horovod.runner.failure import describe

__all__ = ["BaseHorovodWorker"]


class Answer(NamedTuple):
    """What a call on a rank came to."""

    value: Any
    report: bytes | None = None
    """The description of the exception, if there was one."""


class BaseHorovodWorker:
    """An actor that is a rank; `RayExecutor` makes them with `ray.remote`.

    Args:
        world_rank: Its rank, for the environment (default: 0).
        world_size: Number of ranks (default: 1).
    """

    executable: Any = None
    """The object that `RayExecutor.start` made on this rank."""

    def __init__(self, world_rank: int = 0, world_size: int = 1) -> None:
        self._who = f"rank {world_rank} ({socket.gethostname()})"
        self.update_env_vars(environment.of_place(world_rank, world_size, socket.gethostname()))

    def node_id(self) -> str:
        """Return the id of its Ray node.

        Returns:
            The id, in hexadecimal digits.
        """
        return places.here().node_id

    def hostname(self) -> str:
        """Return the name of its machine.

        Returns:
            The host name.
        """
        return socket.gethostname()

    def get_gpu_ids(self) -> list[str]:
        """Return the GPUs that Ray has assigned to it.

        Returns:
            Their ids, as text.
        """
        return places.here().gpus

    def where(self) -> Where:
        """Return where it runs.

        Returns:
            Its machine, node and GPUs.
        """
        return places.here()

    def update_env_vars(self, env_vars: Mapping[str, Any]) -> None:
        """Set variables in its environment.

        Args:
            env_vars: Values by name; they become text.
        """
        environment.update(env_vars)

    def env_vars(self) -> dict[str, str]:
        """Return its environment.

        Returns:
            Values by name.
        """
        return environment.everything()

    def set_queue(self, queue: Any) -> None:
        """Set where `ray_logger.log` puts values.

        Args:
            queue: A queue of `ray.util.queue`, or None.
        """
        ray_logger.configure(queue)

    def open_meeting(self, size: int) -> str:
        """Open the meeting, on rank 0.

        Args:
            size: Number of ranks.

        Returns:
            The invitation for all ranks.
        """
        return open_rendezvous(size)

    def join(self, invitation: str, assignment: Assignment) -> None:
        """Take a place in the world, for the next `hvd.init()`.

        Args:
            invitation: What `open_meeting` returned on rank 0.
            assignment: The place, and what belongs to it.
        """
        self._who = f"rank {assignment.place.rank} ({assignment.place.host})"
        places.take(invitation, assignment)

    def start_executable(
        self,
        executable_cls: type | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """Make the object that `execute` passes to functions.

        Args:
            executable_cls: Its class (default: None, there is no object).
            executable_args: Arguments of the class (default: none).
            executable_kwargs: Keyword arguments of the class (default: none).
        """
        if executable_cls is not None:
            self.executable = executable_cls(*(executable_args or ()), **(executable_kwargs or {}))

    def execute(self, func: Callable[[Any], Any]) -> Any:
        """Call a function with the object of this rank.

        Args:
            func: The function.

        Returns:
            What it returned.
        """
        try:
            return self.call(func)
        except Exception as error:
            _release_the_others(error)
            if hasattr(error, "add_note"):
                error.add_note(f"raised on {self._who}")
            raise

    def call(self, func: Callable[[Any], Any]) -> Any:
        """Call a function with the object of this rank; the other ranks hear nothing of a failure.

        Args:
            func: The function.

        Returns:
            What it returned.
        """
        return func(self.executable)

    def attempt(self, name: str, packed: Sequence[Any]) -> Answer:
        """Call a method, and describe the exception if it raises one.

        Args:
            name: The method: `call` or `start_executable`.
            packed: A list of one reference to the arguments, so that an argument that this process
                cannot unpickle counts as an exception of this rank.

        Returns:
            What it returned, or the description.
        """
        try:
            return Answer(getattr(self, name)(*ray.get(packed[0])))
        except Exception as error:
            _release_the_others(error)
            inner = error.__traceback__.tb_next if error.__traceback__ else None
            return Answer(None, describe(error.with_traceback(inner), self._who))


def _release_the_others(error: Exception) -> None:
    """Leaves the world: the actor lives on, but the others must not wait for this rank."""
    if _native.is_initialized():
        _native.shutdown(f"{type(error).__name__}: {error}")
        _basics.shutdown()
