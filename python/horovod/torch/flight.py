"""Collectives of `torch.distributed` in flight over the engine: the `Work` objects of the backend.

A flight lands in the thread that waits for it. Where somebody wants a future instead, as
DistributedDataParallel does, the thread of the group's `Tower` waits, one flight after the other in
the order in which they were submitted, which is the order of the other ranks too.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.distributed.distributed_c10d import Work

Tensors = list[torch.Tensor]


class Flight(Work):
    """One submission: `landed` says whether it is done, `land` waits and gives the results.

    The engine ends every wait by itself when a rank is lost, so time-outs are not looked at.
    """

    def __init__(
        self, tower: Tower, landed: Callable[[], bool], land: Callable[[], Tensors]
    ) -> None:
        super().__init__()
        self._tower = tower
        self._landed = landed
        self._land: Callable[[], Tensors] | None = land
        self._results: Tensors = []
        self._error: Exception | None = None
        self._arrival: Any = None
        self._future: Any = None
        self._lock = threading.Lock()
        tower.aloft.add(self)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits until the results are where they belong; raises what went wrong."""
        self.arrive()
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        """The same as `wait`."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether `wait` would return or raise at once."""
        if self._land is not None:
            try:
                landed = self._landed()
            except ValueError:
                # Another thread is taking the results just now.
                landed = self._land is None
            if not landed:
                return False
            self.arrive()
        return True

    def is_success(self) -> bool:
        """Whether it is done, and well."""
        return self.is_completed() and self._error is None

    def exception(self) -> Exception | None:
        """What went wrong, as far as is known."""
        return self._error

    def result(self) -> Tensors:
        """The tensors that were written, after waiting for them."""
        self.wait()
        return self._results

    def get_future(self) -> Any:
        """A future of the tensors that are written."""
        with self._lock:
            if self._future is None:
                self._arrival = torch.futures.Future()
                # Native code, such as a backward pass, learns of errors only from a future that
                # ends with what its callback raises; from `set_exception` it would take a result.
                self._future = self._arrival.then(self._outcome)
                self._tower.watch(self)
            return self._future

    def arrive(self) -> None:
        """Waits, and keeps the results or the error."""
        with self._lock:
            if self._land is None:
                return
            try:
                # An interrupted wait leaves everything as it is: the work is still in flight.
                self._results = self._land()
            except Exception as error:
                self._error = error
            self._land = None
        self._tower.aloft.discard(self)

    def fulfil(self) -> None:
        """Waits, and gives the future its value."""
        self.arrive()
        self._arrival.set_result(None)

    def _outcome(self, _arrival: Any) -> Tensors:
        if self._error is not None:
            raise self._error
        return self._results


class Tower:
    """The flights of one group, and the thread that waits for those that have a future."""

    def __init__(self, name: str) -> None:
        # Older PyTorches forget the Python half of a work that only native code waits for.
        self.aloft: set[Flight] = set()
        self._name = name
        self._lock = threading.Lock()
        self._flights: queue.SimpleQueue[Flight | None] | None = None

    def watch(self, flight: Flight) -> None:
        """Sees to it that the flight's future gets its value."""
        with self._lock:
            if self._flights is None:
                self._flights = queue.SimpleQueue()
                # Such a thread does not keep a program from ending.
                threading.Thread(
                    target=_fulfil_all, args=(self._flights,), name=self._name, daemon=True
                ).start()
            self._flights.put(flight)

    def close(self) -> None:
        """Ends the thread when all that it watches has landed."""
        with self._lock:
            if self._flights is not None:
                self._flights.put(None)
                self._flights = None


def together(tower: Tower, flights: Sequence[Flight]) -> Flight:
    """One flight that has landed when all have."""

    def land() -> Tensors:
        return [tensor for flight in flights for tensor in flight.result()]

    return Flight(tower, lambda: all(flight.is_completed() for flight in flights), land)


def _fulfil_all(flights: queue.SimpleQueue[Flight | None]) -> None:
    while (flight := flights.get()) is not None:
        flight.fulfil()
