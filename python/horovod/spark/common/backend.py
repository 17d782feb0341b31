"""Backends: what runs the ranks of an estimator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = [
    "Backend",
    "SparkBackend",
    "default_num_proc",
]


class Backend(ABC):
    """Runs a function on all ranks; derive from it to train elsewhere than in Spark's tasks."""

    @abstractmethod
    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[Any]:
        """Call a function on all ranks.

        Args:
            fn: Function to call; it calls `hvd.init()` itself.
            args: Its arguments (default: none).
            kwargs: Its keyword arguments (default: none).
            env: Further environment variables of the ranks (default: none).

        Returns:
            What it returned, in the order of the ranks.
        """

    @abstractmethod
    def num_processes(self) -> int:
        """Return the number of ranks.

        Returns:
            The number.
        """


class SparkBackend(Backend):
    """Runs ranks in Spark's tasks, with `horovod.spark.run`.

    Args:
        num_proc: Number of ranks (default: all slots of Spark).
        env: Further environment variables of the ranks (default: none). `CUDA_VISIBLE_DEVICES` is
            left out, since executors have other GPUs than the driver.
        **kwargs: Further arguments of `horovod.spark.run`.
    """

    def __init__(
        self, num_proc: int | None = None, env: Mapping[str, str] | None = None, **kwargs: Any
    ) -> None:
        self._num_proc = num_proc or default_num_proc()
        self._env = dict(env or {})
        self._env.pop("CUDA_VISIBLE_DEVICES", None)
        self._options = kwargs

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[Any]:
        """Call a function on all ranks.

        Args:
            fn: Function to call; it calls `hvd.init()` itself.
            args: Its arguments (default: none).
            kwargs: Its keyword arguments (default: none).
            env: Further environment variables of the ranks (default: none).

        Returns:
            What it returned, in the order of the ranks.
        """
        import horovod.spark

        return horovod.spark.run(
            fn,
            args=tuple(args),
            kwargs=dict(kwargs or {}),
            num_proc=self._num_proc,
            env={**self._env, **(env or {})},
            **self._options,
        )

    def num_processes(self) -> int:
        """Return the number of ranks.

        Returns:
            The number.
        """
        return self._num_proc


def default_num_proc() -> int:
    """Return the number of ranks that fit into Spark: its default parallelism.

    Returns:
        The number.
    """
    from horovod.spark.cluster import Cluster

    return Cluster.active().parallelism()
