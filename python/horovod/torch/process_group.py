"""A group of `torch.distributed` whose collectives run on the engine.

Each group belongs to a process set. Its submissions are numbered, so that they have the same names
on all members as long as these call the same collectives in the same order, which
`torch.distributed` requires anyway. The methods have PyTorch's old and new names.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from horovod import _native
from horovod.common.process_sets import ProcessSet, register_together, registered_id
from horovod.torch import submit
from horovod.torch.distributed import NAME, known_set
from horovod.torch.flat import deal, even, fill, flat, joined, movable, units
from horovod.torch.handles import poll, synchronize
from horovod.torch.reductions import Reduction, reduction
from horovod.torch.work import RondeWork, Tensors, WorkTracker, together

# PyTorch's stubs have overloads that Python groups do not need, and they differ by release.
_Group: Any = dist.ProcessGroup


class RondeProcessGroup(_Group):  # type: ignore[misc]
    """The members of a process set, as `torch.distributed` sees them."""

    supports_coalescing = False
    supports_splitting = False

    def __init__(self, process_set: ProcessSet, name: str, description: str = "undefined") -> None:
        self._ranks = process_set.ranks or []
        super().__init__(self._ranks.index(_native.rank()), len(self._ranks))
        self._process_set = process_set
        self._name = name
        self._calls = itertools.count()
        self._message_counts: dict[tuple[int, int, int], Iterator[int]] = defaultdict(
            itertools.count
        )
        self._tracker = WorkTracker(f"ronde-{name}")
        self._coalesced: list[RondeWork] | None = None
        self._makes_groups = True
        self._description = description

    def getBackendName(self) -> str:
        """The backend name for `init_process_group`."""
        return NAME

    def getGroupName(self) -> str:
        """The name of the group, which PyTorch chose."""
        return self._name

    def getGroupDesc(self) -> str:
        """The user's description of the group."""
        return self._description

    def setGroupName(self, name: str) -> None:
        """Does nothing: the group has its name from the beginning."""

    def setGroupDesc(self, description: str) -> None:
        """Sets the description of the group."""
        self._description = description

    # Python code reads these; not every PyTorch version maps them to the methods above.
    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)
    _set_group_name = setGroupName
    _set_group_desc = setGroupDesc

    def _get_backend(self, _device: torch.device) -> RondeProcessGroup:
        # PyTorch asks backends what they support; this group is its own backend.
        return self

    def shutdown(self) -> None:
        """Ends the group's thread. The world continues, because others may still use it."""
        self._tracker.close()

    @property
    def new_group(self) -> Callable[..., Any]:
        """What `torch.distributed.new_group` calls on all ranks, members or not."""
        if not self._makes_groups:
            raise AttributeError("new_group")
        return self._new_group

    def _new_group(
        self, ranks: list[int], *, backend: str, group_name: str, **rest: Any
    ) -> dist.ProcessGroup | None:
        # The name is a number if all ranks call this, and a hash if only the members do.
        members_only = not group_name.isdigit()
        if {each.rpartition(":")[2] for each in backend.split(",")} != {NAME}:
            rest["use_local_synchronization"] = members_only
            return self._foreign_group(ranks, backend, **rest)
        known = members_only or ranks != sorted(ranks)
        process_set = known_set(ranks) if known else register_together(ranks)
        if not process_set.included():
            return None
        return RondeProcessGroup(process_set, group_name, rest.get("group_desc") or "undefined")

    def _foreign_group(
        self, ranks: list[int], backend: str, **rest: Any
    ) -> dist.ProcessGroup | None:
        # Without this attribute PyTorch creates the group in its usual way.
        self._makes_groups = False
        try:
            group = dist.new_group(ranks, backend=backend, **rest)
        finally:
            self._makes_groups = True
        return group if isinstance(group, dist.ProcessGroup) else None

    def allreduce(self, tensors: Tensors, opts: Any = None) -> RondeWork:
        """Reduces tensors in place."""
        how = reduction(opts)
        if how.bitwise is not None:
            return together(self._tracker, [self._bitwise(tensor, how, opts) for tensor in tensors])
        places = [submit.readable(tensor).detach() for tensor in tensors]
        call = (self._next(), how.op, how.prescale, 1.0, self._process_set, _lazy(opts))
        if len(places) == 1:
            handle = submit.allreduce(places[0], places[0], *call)
        else:
            handle = submit.grouped_allreduce(places, places, *call)
        return self._awaiting(handle, lambda: _put_back(tensors, places), tensors)

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Tensors, opts: Any) -> RondeWork:
        """Reduces a tensor; only that of the root changes."""
        (tensor,) = tensors
        result = tensor if opts.rootRank == self.rank() else tensor.detach().clone()
        return self.allreduce([result], opts)

    def broadcast(self, tensors: Tensors, opts: Any) -> RondeWork:
        """Overwrites a tensor with that of the root."""
        return self._send(tensors, opts.rootRank, self._next(), _lazy(opts))

    def allgather(
        self, output_lists: list[Tensors], inputs: Tensors, opts: Any = None
    ) -> RondeWork:
        """Gathers a tensor of each rank into a list on all; sizes may differ."""
        gathering = self._gathering(inputs, opts)

        def wait_result() -> Tensors:
            for outputs, (received, rows) in zip(output_lists, gathering.wait_with_rows()):
                deal(outputs, received, rows)
            return [output for outputs in output_lists for output in outputs]

        return self._work(gathering.poll, wait_result, inputs)

    allgather_coalesced = allgather

    def all_gather_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> RondeWork:
        """Gathers tensors of each rank, concatenated."""
        for output, source in zip(outputs, inputs):
            if output.numel() != source.numel() * self.size():
                raise ValueError(
                    f"the output of an allgather has {output.numel()} elements; {self.size()} "
                    f"times {source.numel()} are needed"
                )
        gathering = self._gathering(inputs, opts)

        def wait_result() -> Tensors:
            return [
                fill(output, received)
                for output, (received, _) in zip(outputs, gathering.wait_with_rows())
            ]

        return self._work(gathering.poll, wait_result, inputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def all_gather_single(
        self, output: torch.Tensor, source: torch.Tensor, opts: Any = None
    ) -> RondeWork:
        """Gathers a tensor of each rank, concatenated."""
        return self.all_gather_single_coalesced([output], [source], opts)

    _allgather_base = all_gather_single

    def reduce_scatter(
        self, outputs: Tensors, input_lists: list[Tensors], opts: Any = None
    ) -> RondeWork:
        """Reduces a list of tensors; each rank gets one of them."""
        sizes = [[each.numel() for each in inputs] for inputs in input_lists]
        if any(set(each) != {output.numel()} for each, output in zip(sizes, outputs)):
            raise ValueError(f"a reduce_scatter needs tensors of one size, but got {sizes}")
        sources = [joined(inputs) for inputs in input_lists]
        return self.reduce_scatter_single_coalesced(outputs, sources, opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> RondeWork:
        """Reduces tensors; each rank gets its share."""
        how = reduction(opts)
        for output, source in zip(outputs, inputs):
            if output.numel() != even(source.numel(), self.size(), "the input of a reduce_scatter"):
                raise ValueError(
                    f"the output of a reduce_scatter has {output.numel()} elements, but each of "
                    f"{self.size()} ranks gets {source.numel() // self.size()}"
                )
        if how.bitwise is not None or how.op not in (submit.Sum, submit.Average):
            return self._shares_of_allreduce(outputs, inputs, opts)
        pending = submit.grouped_reducescatter(
            [flat(source) for source in inputs],
            *(self._next(), how.op, how.prescale, 1.0, self._process_set, _lazy(opts)),
        )
        return self._work(pending.poll, lambda: list(map(fill, outputs, pending.wait())), inputs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def reduce_scatter_single(
        self, output: torch.Tensor, source: torch.Tensor, opts: Any = None
    ) -> RondeWork:
        """Reduces a tensor; each rank gets its share."""
        return self.reduce_scatter_single_coalesced([output], [source], opts)

    _reduce_scatter_base = reduce_scatter_single

    def gather(self, output_lists: list[Tensors], inputs: Tensors, opts: Any) -> RondeWork:
        """Gathers a tensor of each rank into a list on the root."""
        source = movable(inputs[0])
        rows = [len(source) if rank == opts.rootRank else 0 for rank in range(self.size())]
        return self._exchange(output_lists[0] if output_lists else [], source, rows, opts)

    def scatter(self, outputs: Tensors, input_lists: list[Tensors], opts: Any) -> RondeWork:
        """Sends each rank one tensor of the root's list."""
        rows = [0] * self.size()
        source = movable(outputs[0].new_empty(0))
        if opts.rootRank == self.rank():
            rows = [each.numel() * units(each) for each in input_lists[0]]
            source = movable(joined(input_lists[0]))
        places = [outputs[0].new_empty(0) for _ in rows]
        places[opts.rootRank] = outputs[0]
        return self._exchange(places, source, rows, opts)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> RondeWork:
        """Sends a tensor to each rank, and receives one from each."""
        rows = [each.numel() * units(each) for each in inputs]
        return self._exchange(outputs, movable(joined(inputs)), rows, opts)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        source: torch.Tensor,
        output_splits: Sequence[int] | None,
        input_splits: Sequence[int] | None,
        opts: Any = None,
    ) -> RondeWork:
        """Sends rows of a tensor to each rank, and receives rows from each."""
        rows = [length * units(source) for length in self._lengths(source, input_splits)]
        place = submit.readable(output).detach()
        parts = torch.split(place.view(-1), self._lengths(output, output_splits))
        work = self._exchange(parts, movable(source), rows, opts)
        return work if place.data_ptr() == output.data_ptr() else self._back(work, output, place)

    alltoall_base = all_to_all_single

    def barrier(self, opts: Any = None) -> RondeWork:
        """Waits for all members."""
        number = registered_id(self._process_set)
        handle = _native.barrier(f"barrier.{self._next()}", _lazy(opts), number)
        return self._awaiting(handle, list, [])

    def send(self, tensors: Tensors, destination: int, tag: int) -> RondeWork:
        """Sends a tensor to the other member of a group of two."""
        return self._point_to_point(tensors, self.rank(), destination, tag)

    def recv(self, tensors: Tensors, source: int, tag: int) -> RondeWork:
        """Receives a tensor from the other member of a group of two."""
        return self._point_to_point(tensors, source, self.rank(), tag)

    def recv_anysource(self, _tensors: Tensors, _tag: int) -> RondeWork:
        """Not supported; always raises."""
        raise NotImplementedError("the ronde backend needs to know the rank that it receives from")

    recvAnysource = recv_anysource

    def start_coalescing(self, _device: torch.device) -> None:
        """Collects the work submitted from now on."""
        self._coalesced = []

    def end_coalescing(self, _device: torch.device) -> RondeWork:
        """Returns one `Work` for everything that was collected."""
        works, self._coalesced = self._coalesced or [], None
        return together(self._tracker, works)

    _start_coalescing = start_coalescing
    _end_coalescing = end_coalescing

    def _next(self) -> str:
        # `noname` tells the engine that this name is never reused.
        return f"noname.torch.{self._name}.{next(self._calls)}"

    def _work(
        self, is_done: Callable[[], bool], wait_result: Callable[[], Tensors], like: Tensors
    ) -> RondeWork:
        device = like[0].device if like else torch.device("cpu")
        work = RondeWork(self._tracker, is_done, wait_result, device)
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _awaiting(self, handle: int, results: Callable[[], Tensors], like: Tensors) -> RondeWork:
        def wait_result() -> Tensors:
            synchronize(handle)
            return results()

        return self._work(lambda: poll(handle), wait_result, like)

    def _back(self, work: RondeWork, tensor: torch.Tensor, place: torch.Tensor) -> RondeWork:
        def wait_result() -> Tensors:
            work.wait()
            return _put_back([tensor], [place])

        return self._work(work.is_completed, wait_result, [tensor])

    def _gathering(self, inputs: Tensors, opts: Any) -> Any:
        sources = [movable(each) for each in inputs]
        return submit.grouped_allgather(sources, self._next(), self._process_set, _lazy(opts))

    def _exchange(
        self, places: Sequence[torch.Tensor], source: torch.Tensor, rows: list[int], opts: Any
    ) -> RondeWork:
        pending = submit.alltoall(source, rows, self._next(), self._process_set, _lazy(opts))

        def wait_result() -> Tensors:
            deal(places, *pending.wait_with_rows())
            return list(places)

        return self._work(pending.poll, wait_result, [source])

    def _lengths(self, tensor: torch.Tensor, splits: Sequence[int] | None) -> list[int]:
        """How many elements are sent to, or received from, each rank."""
        if not splits:
            return [even(tensor.numel(), self.size(), "a tensor of an alltoall")] * self.size()
        row = tensor[:1].numel()
        return [rows * row for rows in splits]

    def _bitwise(self, tensor: torch.Tensor, how: Reduction, opts: Any) -> RondeWork:
        gathering = self._gathering([tensor], opts)

        def wait_result() -> Tensors:
            ((received, rows),) = gathering.wait_with_rows()
            return [fill(tensor, how.of(torch.split(received, rows)))]

        return self._work(gathering.poll, wait_result, [tensor])

    def _shares_of_allreduce(self, outputs: Tensors, inputs: Tensors, opts: Any) -> RondeWork:
        wholes = [flat(source).clone() for source in inputs]
        work = self.allreduce(wholes, opts)

        def wait_result() -> Tensors:
            work.wait()
            shares = (whole.chunk(self.size())[self.rank()] for whole in wholes)
            return list(map(fill, outputs, shares))

        return self._work(work.is_completed, wait_result, outputs)

    def _point_to_point(
        self, tensors: Tensors, source: int, destination: int, tag: int
    ) -> RondeWork:
        if self.size() != 2 or source == destination:
            raise NotImplementedError(
                f"the ronde backend supports point-to-point messages only in groups of two ranks, "
                f"but this group has {self.size()}; create one with "
                f"torch.distributed.new_group([...]) on all ranks"
            )
        number = next(self._message_counts[source, destination, tag])
        name = f"noname.torch.{self._name}.{source}.{destination}.{tag}.{number}"
        return self._send(tensors, source, name, lazy=False)

    def _send(self, tensors: Tensors, root: int, name: str, lazy: bool) -> RondeWork:
        (tensor,) = tensors
        place = submit.readable(tensor).detach()
        row = movable(place)
        handle = submit.broadcast(row, row, self._ranks[root], name, self._process_set, lazy)
        return self._awaiting(handle, lambda: _put_back([tensor], [place]), tensors)


def _lazy(options: Any) -> bool:
    """Whether the caller waits at once."""
    return not getattr(options, "asyncOp", True)


def _put_back(tensors: Tensors, places: Tensors) -> Tensors:
    """Copies results into tensors that are not contiguous; the others were written in place."""
    for tensor, place in zip(tensors, places):
        if tensor.data_ptr() != place.data_ptr():
            tensor.detach().copy_(place)
    return tensors
