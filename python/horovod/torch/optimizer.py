"""The distributed optimizer: any torch optimizer, with gradients reduced over all ranks.

`DistributedOptimizer` returns an object of a new class that derives from the optimizer's own and
has its name (`wrapping`); `reducer` does the work, or `delta` if weights are combined instead of
gradients.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Union, cast

import torch

from horovod import _native
from horovod.common.basics import _basics
from horovod.common.process_sets import ProcessSet, global_process_set, registered_id
from horovod.common.reductions import predivided
from horovod.common.util import split_list
from horovod.torch import autograd, submit
from horovod.torch.compression import Compression, Compressor
from horovod.torch.delta import DeltaOptimizer
from horovod.torch.functions import broadcast_object
from horovod.torch.reducer import Reducer, Reduction
from horovod.torch.wrapping import Plan, Wrapped, check_passes, derive

__all__ = ["DistributedOptimizer", "WrappedOptimizer"]

Groups = Union[int, Sequence[Sequence[torch.Tensor]]]
_Optimizer = TypeVar("_Optimizer", bound=torch.optim.Optimizer)


def DistributedOptimizer(
    optimizer: _Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = submit.Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> WrappedOptimizer[_Optimizer]:
    """Wrap an optimizer so that each step uses gradients reduced over all ranks.

    Gradients are reduced while the backward pass is still running, and `step` waits for them. The
    result is an instance of a new class that derives from the class of `optimizer` and has its
    name; type checkers see it as `WrappedOptimizer`. Parameter groups and state are shared with
    `optimizer`, which should not be used any more.

    Args:
        optimizer: Any torch optimizer.
        named_parameters: Names of the parameters, usually `model.named_parameters()`. Needed unless
            the parameters are in the same order on all ranks (default: None). Names of parameters
            that this optimizer does not have are ignored.
        compression: How to compress data on the wire: `hvd.Compression.none`,
            `hvd.Compression.fp16`, `hvd.Compression.bf16` or your own `Compressor` (default:
            `hvd.Compression.none`).
        backward_passes_per_step: Backward passes before each step, at least 1 (default: 1). Their
            gradients are summed locally, then reduced once; they are not divided by the number of
            passes.
        op: Reduction of the gradients: `hvd.Average`, `hvd.Sum` or `hvd.Adasum` (default:
            `hvd.Average`). With `hvd.Adasum` each rank takes its own step, and the changes of the
            weights are combined.
        gradient_predivide_factor: Splits the division of an average: gradients are divided by this
            factor before the sum, and by `size / factor` after it (default: 1.0). Only with
            `op=hvd.Average`.
        num_groups: Deprecated, use `groups` (default: 0).
        groups: Parameters to reduce together: a number of groups of about equal length, or lists of
            parameters; parameters in no list are reduced one by one. 0 or None lets the engine
            decide (default: None).
        sparse_as_dense: Whether to reduce sparse gradients as dense tensors, which is faster if few
            elements are zero (default: False).
        process_set: Ranks that take part (default: all ranks). On other ranks gradients are not
            changed.

    Returns:
        An optimizer of the class of `optimizer`, with methods such as `synchronize` and
        `skip_synchronize`.

    Raises:
        ValueError: If `optimizer` is not a torch optimizer or is already wrapped, names are missing
            or not unique, `groups` is malformed, another argument is out of range, or Horovod is
            not initialized.

    Example:
        ```python
        import torch
        import horovod.torch as hvd

        hvd.init()
        model = torch.nn.Linear(10, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size())
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(32, 10)).square().mean().backward()
            optimizer.step()
        ```
    """
    registered_id(process_set)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(
            f"{optimizer!r} is not an optimizer of torch; pass one such as "
            "torch.optim.SGD(model.parameters(), lr=0.1)"
        )
    if isinstance(optimizer, Wrapped):
        raise ValueError("optimizer is a DistributedOptimizer already; wrap it only once.")
    prescale, postscale = predivided(gradient_predivide_factor, op)
    check_passes(backward_passes_per_step)
    if num_groups != 0:
        warnings.warn(
            "Parameter `num_groups` has been replaced by `groups`.",
            DeprecationWarning,
            stacklevel=2,
        )
        groups = num_groups if groups is None else groups
    names = _names(optimizer, named_parameters)
    chosen = _check_groups(groups)
    reduction = Reduction(
        compression=compression,
        op=op,
        prescale=prescale,
        postscale=postscale,
        sparse_as_dense=sparse_as_dense,
        process_set=process_set,
    )
    buckets = _buckets(optimizer, names, chosen, process_set) if _reduces(reduction) else []
    wrapped: Any = wrap(optimizer, Plan(reduction, names, buckets), backward_passes_per_step)
    return cast("WrappedOptimizer[_Optimizer]", wrapped)


def wrap(optimizer: torch.optim.Optimizer, plan: Plan, passes: int) -> Wrapped:
    """Wraps an optimizer, for the first time or after it has been copied or unpickled."""
    registered_id(plan.reduction.process_set)
    deltas = _combines_deltas(plan.reduction)
    distributed = derive(optimizer, DeltaOptimizer if deltas else _DistributedOptimizer)
    distributed._plan = plan
    distributed._fuses_scaling = getattr(optimizer, "_step_supports_amp_scaling", False)
    distributed.backward_passes_per_step = passes
    distributed._start()
    return distributed


def _reduces(reduction: Reduction) -> bool:
    """Whether this rank has gradients to reduce."""
    reduces = _are_several() and not _combines_deltas(reduction)
    return reduces and bool(reduction.process_set.included())


def _combines_deltas(reduction: Reduction) -> bool:
    return reduction.op == submit.Adasum and _are_several()


def _are_several() -> bool:
    """Whether there are other ranks, or may be later."""
    return _basics.size() > 1 or _native.may_grow()


class _DistributedOptimizer(Wrapped):
    """What a distributed optimizer does differently; comes before the user's class in the bases."""

    # None in a world of one and outside the process set, where there is nothing to reduce.
    _reducer: Reducer | None = None
    _synchronized = False
    _should_synchronize = True
    # Whether a gradient scaler, and not the user, had the gradients reduced.
    _scaler_waited = False

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change the number of backward passes before each step.

        Args:
            passes: Number of passes, at least 1.

        Raises:
            ValueError: If `passes` is less than 1.
        """
        super().set_backward_passes_per_step(passes)
        if self._reducer is not None:
            self._reducer.reset(passes)

    def synchronize(self) -> None:
        """Wait until all gradients are reduced.

        Call it before you read or clip gradients, and then call `step` inside `skip_synchronize`.

        Raises:
            HorovodInternalError: If a rank was lost, or the ranks disagree about shape, element
                type or operation.

        Example:
            ```python
            import torch
            import horovod.torch as hvd

            hvd.init()
            model = torch.nn.Linear(10, 1)
            optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
            model(torch.randn(32, 10)).sum().backward()
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            with optimizer.skip_synchronize():
                optimizer.step()
            ```
        """
        if self._reducer is not None:
            self._adopt_new()
            self._reducer.synchronize()
        self._synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Return a context in which `step` does not wait for gradients.

        For a step after an explicit `synchronize`.

        Yields:
            Nothing.
        """
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Wait for the reduced gradients, then step like the wrapped optimizer.

        Args:
            closure: Function that computes the loss and its gradients again, as torch's optimizers
                take it (default: None).

        Returns:
            What `step` of the wrapped optimizer returns.

        Raises:
            HorovodInternalError: If a rank was lost, or the ranks disagree about shape, element
                type or operation.
        """
        if closure is not None:
            return self._step_with(closure)
        if self._should_synchronize:
            if self._synchronized and not self._scaler_waited:
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() context after "
                    "optimizer.synchronize(). Put the step inside `with "
                    "optimizer.skip_synchronize():` if you call optimizer.synchronize() yourself.",
                    stacklevel=2,
                )
            if not self._synchronized or self._is_dirty():
                self.synchronize()
        self._forget_synchronized()
        return super().step()

    # Torch wraps a `step` that lacks this mark, and would run the step hooks twice: here and in
    # the user's class.
    step.hooked = True  # type: ignore[attr-defined]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients; do not call it between the backward pass and the step.

        Args:
            set_to_none: Whether to set gradients to None instead of zero (default: True).

        Raises:
            AssertionError: If gradients are still being reduced.
        """
        if self._reducer is not None and self._reducer.in_flight:
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before "
                "optimizer.step() or optimizer.synchronize(). This is prohibited as it can cause "
                "a race condition."
            )
        if self._reducer is not None and not set_to_none:
            self._reducer.settle()
        # A scaler that finds infinities skips the step; the next gradients are new ones.
        self._forget_synchronized()
        super().zero_grad(set_to_none)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state, and drop reductions in flight.

        Args:
            state_dict: What `state_dict()` of the same kind of optimizer returned.
        """
        self._forget_synchronized()
        self._should_synchronize = True
        if self._reducer is not None:
            self._reducer.reset(self.backward_passes_per_step)
        super().load_state_dict(state_dict)

    @property
    def _requires_update(self) -> set[torch.Tensor]:
        if self._reducer is None:
            return set()
        self._adopt_new()
        return self._reducer.parameters()

    @property
    def _handles(self) -> dict[torch.Tensor, tuple[Any, Any]]:
        return {} if self._reducer is None else self._reducer.handles()

    def _allreduce_grad_async(self, p: torch.Tensor) -> tuple[Any, Any]:
        if self._reducer is None:
            return super()._allreduce_grad_async(p)
        self._adopt_new()
        return self._reducer.start(p)

    def _step_with(self, closure: Callable[[], Any]) -> Any:
        if not self._should_synchronize:
            self._forget_synchronized()
            return super().step(closure)
        # The closure clears and computes gradients itself: reductions from before must complete
        # first.
        if self._is_dirty():
            self.synchronize()

        def reduced() -> Any:
            loss = closure()
            self.synchronize()
            # This optimizer uses the loss to decide how often to call it; all ranks must decide the
            # same.
            return self._common_loss(loss) if isinstance(self, torch.optim.LBFGS) else loss

        loss = super().step(reduced)
        self._forget_synchronized()
        return loss

    @property
    def _step_supports_amp_scaling(self) -> bool:
        # torch.amp.GradScaler reads this before it checks the gradients for a step. It must see the
        # reduced ones: they are infinite on all ranks or on none, so all ranks decide the same.
        if self._should_synchronize and (not self._synchronized or self._is_dirty()):
            self.synchronize()
            self._scaler_waited = True
        return self._fuses_scaling

    @_step_supports_amp_scaling.setter
    def _step_supports_amp_scaling(self, fuses: bool) -> None:
        self._fuses_scaling = fuses

    def _common_loss(self, loss: Any) -> Any:
        if self._reducer is None:
            return loss
        reduction = self._plan.reduction
        own = torch.as_tensor(loss, dtype=torch.float64).detach().reshape(1)
        how = (reduction.op, 1.0, 1.0, reduction.process_set)
        return autograd.allreduce(own, "optimizer_loss", *how)[0]

    def _start(self) -> None:
        """Registers hooks on the parameters, if gradients are reduced."""
        if not _reduces(self._plan.reduction):
            return
        self._reducer = Reducer(self._plan.reduction, self.backward_passes_per_step)
        names = self._parameter_names
        for bucket in self._plan.buckets:
            self._reducer.adopt([(each, names[each]) for each in bucket], grouped=True)
        self._adopt_new()

    def _forget_synchronized(self) -> None:
        self._synchronized = self._scaler_waited = False

    def _is_dirty(self) -> bool:
        return self._reducer is not None and self._reducer.dirty

    def _adopt_new(self) -> None:
        """Adopts parameters that were added or unfrozen since the last call."""
        reducer = cast(Reducer, self._reducer)
        for number, group in enumerate(self.param_groups):
            for index, parameter in enumerate(group["params"]):
                if parameter.requires_grad and parameter not in reducer:
                    default = f"allreduce.noname.{number}.{index}"
                    name = self._parameter_names.setdefault(parameter, default)
                    reducer.adopt([(parameter, name)])


if TYPE_CHECKING:
    # Python's type system has no intersection types. A class with `Any` among its bases comes
    # close: it can be assigned where the user's class is expected, has its attributes, and the
    # methods defined here are typed.
    class WrappedOptimizer(_DistributedOptimizer, Generic[_Optimizer], Any):  # type: ignore[misc]
        """Type of what `DistributedOptimizer` returns, for annotations.

        `WrappedOptimizer[SGD]` is a `torch.optim.SGD` with the methods below. Do not derive from it
        or call it; at run time, `isinstance` with it says whether an optimizer is distributed.
        """

else:
    WrappedOptimizer = Wrapped


def _names(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None,
) -> dict[torch.Tensor, str]:
    if named_parameters is None:
        return {
            parameter: f"allreduce.noname.{number}.{index}"
            for number, group in enumerate(optimizer.param_groups)
            for index, parameter in enumerate(group["params"])
        }
    pairs = list(named_parameters)
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        raise ValueError(
            "named_parameters should be a sequence of tuples (name, parameter), usually produced "
            "by model.named_parameters()."
        )
    names = [name for name, _ in pairs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(
            "Parameter names in named_parameters must be unique. Found duplicates: "
            + ", ".join(twice)
        )
    by_parameter = {parameter: name for name, parameter in pairs}
    unnamed = [
        str(id(parameter))
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter not in by_parameter
    ]
    if unnamed:
        raise ValueError(
            "named_parameters was specified, but one or more model parameters were not named. "
            "Python object ids: " + ", ".join(unnamed)
        )
    return by_parameter


def _check_groups(groups: Groups | None) -> int | list[list[torch.Tensor]]:
    if groups is None:
        return 0
    if isinstance(groups, int) and groups >= 0:
        return groups
    if isinstance(groups, int) or not isinstance(groups, (list, tuple)):
        raise _bad_groups()
    if not all(isinstance(group, (list, tuple)) for group in groups):
        raise _bad_groups()
    chosen = [list(group) for group in groups]
    members = [parameter for group in chosen for parameter in group]
    if not all(isinstance(parameter, torch.Tensor) for parameter in members):
        raise ValueError("groups must consist of torch.Tensor.")
    if len({id(parameter) for parameter in members}) != len(members):
        raise ValueError("A parameter can only appear once in groups.")
    return chosen


def _bad_groups() -> ValueError:
    return ValueError("groups should be a non-negative integer or a list of list of torch.Tensor.")


def _buckets(
    optimizer: torch.optim.Optimizer,
    names: dict[torch.Tensor, str],
    groups: int | list[list[torch.Tensor]],
    process_set: ProcessSet,
) -> list[list[torch.Tensor]]:
    """The groups of parameters that the user asked for."""
    # The names may be those of a whole model whose other parts belong to other optimizers.
    own = {id(each) for group in optimizer.param_groups for each in group["params"]}
    named = {name: each for each, name in names.items() if each.requires_grad and id(each) in own}
    if isinstance(groups, int):
        if groups == 0 or not named:
            return []
        order = list(named)
        # All ranks split the list as rank 0 does, whatever their own order. A new rank of an
        # elastic job cannot ask: the others already have their optimizers.
        if not _native.may_grow():
            first = (process_set.ranks or [0])[0]
            order = broadcast_object(order, first, "optimizer_groups", process_set)
        parts = split_list([named[name] for name in order], groups)
    else:
        wanted = {id(each) for each in named.values()}
        parts = [[each for each in group if id(each) in wanted] for group in groups]
    return [list(part) for part in parts if part]
