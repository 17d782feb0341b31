"""What the two kinds of job have in common: `RayExecutor` passes its calls on to one of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Callback = Callable[[Any], Any]


@dataclass
class BaseParams:
    """What each worker needs."""

    cpus_per_worker: float = 1
    use_gpu: bool = False
    gpus_per_worker: int | None = None

    def __post_init__(self) -> None:
        """Checks the numbers.

        Raises:
            ValueError: If they contradict each other.
        """
        if self.gpus_per_worker is not None and not self.use_gpu:
            raise ValueError(
                "gpus_per_worker is set, but use_gpu is False; pass use_gpu=True as well"
            )
        if self.gpus_per_worker is not None and self.gpus_per_worker < 1:
            raise ValueError(f"gpus_per_worker must be >= 1, and is {self.gpus_per_worker}")

    def resources(self, workers: int = 1) -> dict[str, float]:
        """What Ray reserves for this many workers."""
        needed = {"CPU": float(self.cpus_per_worker * workers)}
        if self.use_gpu:
            needed["GPU"] = float((self.gpus_per_worker or 1) * workers)
        return needed

    def options(self) -> dict[str, Any]:
        """The options of an actor for one worker."""
        needed = self.resources()
        return {"num_cpus": needed["CPU"], "num_gpus": needed.get("GPU", 0)}


class Adapter(ABC):
    """A job on Ray, fixed or elastic."""

    @abstractmethod
    def start(
        self,
        executable_cls: type | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, Any] | None = None,
    ) -> None:
        """Starts the workers, and on each an object of the class."""

    @abstractmethod
    def execute(
        self, fn: Callable[[Any], Any], callbacks: Sequence[Callback] | None = None
    ) -> list[Any]:
        """Calls the function on every rank with its object; returns the results by rank."""

    @abstractmethod
    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        callbacks: Sequence[Callback] | None = None,
    ) -> list[Any]:
        """Calls the function on every rank; returns the results by rank."""

    @abstractmethod
    def run_remote(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Calls the function on every rank; returns references to the results."""

    @abstractmethod
    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """Calls the function on rank 0 with its object."""

    @abstractmethod
    def shutdown(self) -> None:
        """Ends the workers."""
