"""The `Work` objects of the `torch.distributed` backend: collectives in flight over the engine.

A work completes in the thread that waits for it. If the caller wants a future instead, as
DistributedDataParallel does, the thread of the group's `WorkTracker` waits for one work after the
other, in the order of submission, which is the same on all ranks. On a GPU that thread has a stream
of its own, so that other streams wait only for what they use.
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


class RondeWork(Work):
    """One submission: `is_done` says whether it has completed, `wait_result` waits for the results.

    The engine ends every wait when a rank is lost, so timeouts are ignored.
    """

    def __init__(
        self,
        tracker: WorkTracker,
        is_done: Callable[[], bool],
        wait_result: Callable[[], Tensors],
        device: torch.device,
    ) -> None:
        super().__init__()
        self._tracker = tracker
        self.device = device
        # Behind the results, on the stream of the thread that has waited for them.
        self._written: torch.cuda.Event | None = None
        self._is_done = is_done
        self._wait_result: Callable[[], Tensors] | None = wait_result
        self._results: Tensors = []
        self._error: Exception | None = None
        self._completion: Any = None
        self._future: Any = None
        self._lock = threading.Lock()
        tracker.pending.add(self)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits until the results have been written; raises the error if it failed.

        On a GPU, the current stream waits, not the host.
        """
        self.complete()
        if self._error is not None:
            raise self._error
        if self._written is not None:
            torch.cuda.current_stream(self.device).wait_event(self._written)
        return True

    def synchronize(self) -> None:
        """The same as `wait`."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether `wait` would return or raise at once."""
        if self._wait_result is not None:
            try:
                done = self._is_done()
            except ValueError:
                # Another thread is taking the results right now.
                done = self._wait_result is None
            if not done:
                return False
            self.complete()
        return True

    def is_success(self) -> bool:
        """Whether it completed without an error."""
        return self.is_completed() and self._error is None

    def exception(self) -> Exception | None:
        """The error, if the work is known to have failed."""
        return self._error

    def result(self) -> Tensors:
        """Waits, and returns the tensors that were written."""
        self.wait()
        return self._results

    def get_future(self) -> Any:
        """A future for the tensors that will be written."""
        with self._lock:
            if self._future is None:
                self._completion = torch.futures.Future(devices=self._gpus())
                # Native code such as a backward pass sees an error only if a callback of the future
                # raises it; after `set_exception` it would read a result.
                self._future = self._completion.then(self._outcome)
                self._tracker.watch(self)
            return self._future

    def complete(self) -> None:
        """Waits, and stores the results or the error."""
        with self._lock:
            if self._wait_result is None:
                return
            try:
                # An interrupted wait changes nothing: the work is still in flight.
                self._results = self._wait_result()
                if self.device.type == "cuda":
                    self._written = torch.cuda.current_stream(self.device).record_event()
            except Exception as error:
                self._error = error
            self._wait_result = None
        self._tracker.pending.discard(self)

    def complete_future(self) -> None:
        """Waits, and completes the future."""
        if self.device.type == "cuda":
            with torch.cuda.stream(self._tracker.stream(self.device)):
                self.complete()
        else:
            self.complete()
        self._completion.set_result(None)

    def _gpus(self) -> Any:
        return [self.device] if self.device.type == "cuda" else None

    def _outcome(self, _completion: Any) -> Tensors:
        # The future runs this on a stream of its own, which its readers wait for.
        self.wait()
        return self._results


class WorkTracker:
    """Pending works of one group, and the thread that waits for those with a future."""

    def __init__(self, name: str) -> None:
        # Older PyTorch versions drop the Python half of a work that only native code waits for.
        self.pending: set[RondeWork] = set()
        self._name = name
        self._lock = threading.Lock()
        self._stream: torch.cuda.Stream | None = None
        self._queue: queue.SimpleQueue[RondeWork | None] | None = None

    def watch(self, work: RondeWork) -> None:
        """Queues a work whose future the thread must complete."""
        with self._lock:
            if self._queue is None:
                self._queue = queue.SimpleQueue()
                # A daemon thread does not keep the program from exiting.
                threading.Thread(
                    target=_complete_all, args=(self._queue,), name=self._name, daemon=True
                ).start()
            self._queue.put(work)

    def stream(self, device: torch.device) -> torch.cuda.Stream:
        """The stream of the thread, on the GPU of the works."""
        if self._stream is None:
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call, unused-ignore]
        return self._stream

    def close(self) -> None:
        """Ends the thread once everything queued has completed."""
        with self._lock:
            if self._queue is not None:
                self._queue.put(None)
                self._queue = None


def together(tracker: WorkTracker, works: Sequence[RondeWork]) -> RondeWork:
    """Combines works into one that completes when all of them have."""

    def wait_result() -> Tensors:
        return [tensor for work in works for tensor in work.result()]

    def is_done() -> bool:
        return all(work.is_completed() for work in works)

    device = works[0].device if works else torch.device("cpu")
    return RondeWork(tracker, is_done, wait_result, device)


def _complete_all(works: queue.SimpleQueue[RondeWork | None]) -> None:
    while (work := works.get()) is not None:
        work.complete_future()
