"""Reduces gradients while the backward pass is still running.

Every parameter has a hook that fires when its gradient is complete. Each parameter is in its own
bucket unless the user grouped them; a bucket is submitted when its last gradient is complete.
Gradients that have not been submitted when the optimizer steps are submitted then, with zeros for
missing gradients, so that all ranks submit the same.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Union

import torch

from horovod.common.process_sets import ProcessSet
from horovod.torch import submit
from horovod.torch.arena import settle
from horovod.torch.compression import Compressor
from horovod.torch.handles import synchronize
from horovod.torch.sparse import SparseReduction, sparse_zeros


@dataclass(frozen=True)
class Reduction:
    """How gradients are reduced."""

    compression: type[Compressor]
    op: int
    prescale: float
    postscale: float
    sparse_as_dense: bool
    process_set: ProcessSet


class Reducer:
    """The buckets of one optimizer, and the reductions in flight."""

    def __init__(self, reduction: Reduction, passes: int) -> None:
        self._reduction = reduction
        self._passes = passes
        self._buckets: list[_Bucket] = []
        self._gradients: dict[int, _Gradient] = {}
        self._pending: list[_PendingReduction] = []
        # On torch before 2.1 these references keep the accumulators with the hooks alive.
        self._accumulators: list[Any] = []
        self.dirty = False
        """Whether a gradient has been computed since the last `synchronize`."""

    def __contains__(self, parameter: torch.Tensor) -> bool:
        return id(parameter) in self._gradients

    @property
    def in_flight(self) -> bool:
        """Whether there are submitted reductions that have not been waited for."""
        return bool(self._pending)

    def adopt(self, members: Sequence[tuple[torch.Tensor, str]], grouped: bool = False) -> None:
        """Adopts named parameters that are reduced as one bucket."""
        bucket = _Bucket(grouped)
        for parameter, name in members:
            gradient = _Gradient(parameter, name, bucket)
            self._gradients[id(parameter)] = gradient
            bucket.gradients.append(gradient)
            self._watch(gradient)
        bucket.expect(self._passes)
        self._buckets.append(bucket)

    def synchronize(self) -> None:
        """Submits what has not been submitted, and waits until every gradient is reduced."""
        for bucket in self._buckets:
            self._submit(bucket, bucket.rest())
        pending = self._pending
        self.reset(self._passes)
        errors = [error for error in map(_finish, pending) if error is not None]
        if errors:
            raise errors[0]

    def parameters(self) -> set[torch.Tensor]:
        """The parameters whose gradients are reduced."""
        known = (gradient.parameter for gradient in self._gradients.values())
        return {parameter for parameter in known if parameter.requires_grad}

    def handles(self) -> dict[torch.Tensor, tuple[Any, Any]]:
        """For each parameter in flight, its handle and its decompression context."""
        return {key: value for each in self._pending for key, value in each.handles().items()}

    def start(self, parameter: torch.Tensor) -> tuple[Any, Any]:
        """Submits the gradient of one parameter ahead of the others; returns its handle and
        context."""
        gradient = self._gradients[id(parameter)]
        if not gradient.submitted:
            gradient.fill()
            # The rest of its bucket is submitted by `synchronize`.
            gradient.expected = False
            self.dirty = True
            self._submit(_Bucket(grouped=False), [gradient])
        return self.handles()[parameter]

    def settle(self) -> None:
        """Moves persistent gradients into the arena, where reducing them copies nothing."""
        grads = (gradient.parameter.grad for gradient in self._gradients.values())
        settle(grad for grad in grads if grad is not None)

    def reset(self, passes: int) -> None:
        """Drops what is in flight and expects `passes` backward passes before the next step."""
        self._passes = passes
        self._pending = []
        self.dirty = False
        for bucket in self._buckets:
            bucket.expect(passes)

    def _watch(self, gradient: _Gradient) -> None:
        # The parameter owns the hook and may outlive the optimizer; then the hook does nothing. The
        # hook does not refer to the parameter, which would keep itself alive that way.
        owner, key = weakref.ref(self), id(gradient.parameter)

        def hook() -> None:
            reducer = owner()
            if reducer is not None:
                reducer._computed(reducer._gradients[key])

        accumulator = _call_when_accumulated(gradient.parameter, hook)
        if accumulator is not None:
            self._accumulators.append(accumulator)

    def _computed(self, gradient: _Gradient) -> None:
        if gradient.passes_left <= 0:
            raise AssertionError(
                "Gradients were computed more than backward_passes_per_step times before call to "
                "step(). Increase backward_passes_per_step to accumulate gradients locally."
            )
        grad = gradient.parameter.grad
        if grad is not None and grad.requires_grad:
            raise AssertionError(
                f"The gradient of `{gradient.name}` was computed with create_graph=True; use "
                "torch.autograd.grad for higher derivatives and backward() for the step."
            )
        self.dirty = True
        gradient.passes_left -= 1
        # Parameters unfrozen since the last step are submitted by `synchronize`.
        if gradient.passes_left == 0 and gradient.expected:
            bucket = gradient.bucket
            bucket.incomplete -= 1
            if bucket.incomplete == 0:
                self._submit(bucket, [each for each in bucket.gradients if each.expected])

    def _submit(self, bucket: _Bucket, gradients: Sequence[_Gradient]) -> None:
        dense = []
        for gradient in gradients:
            gradient.submitted = True
            grad = _grad(gradient)
            if grad.is_sparse and not self._reduction.sparse_as_dense:
                self._pending.append(_SparseReduction(gradient, grad, self._reduction))
            else:
                dense.append(gradient)
        if dense:
            self._pending.append(_DenseReduction(dense, bucket.grouped, self._reduction))


class _Gradient:
    """The gradient of one parameter."""

    def __init__(self, parameter: torch.Tensor, name: str, bucket: _Bucket) -> None:
        self.parameter = parameter
        self.name = name
        self.bucket = bucket
        self.expected = False
        self.passes_left = 0
        self.submitted = False
        self.sparse_dim = 0

    def fill(self) -> None:
        """Creates a gradient of zeros if there is none, sparse if earlier ones were."""
        parameter = self.parameter
        if parameter.grad is not None:
            return
        if self.sparse_dim:
            parameter.grad = sparse_zeros(parameter, self.sparse_dim)
        else:
            parameter.grad = torch.zeros_like(parameter)


class _Bucket:
    """Gradients that are submitted together."""

    def __init__(self, grouped: bool) -> None:
        self.grouped = grouped
        self.gradients: list[_Gradient] = []
        self.incomplete = 0

    def expect(self, passes: int) -> None:
        """Prepares for the next step."""
        self.incomplete = 0
        for gradient in self.gradients:
            gradient.passes_left = passes
            gradient.submitted = False
            gradient.expected = gradient.parameter.requires_grad
            self.incomplete += gradient.expected

    def rest(self) -> list[_Gradient]:
        """Gradients that are neither submitted nor frozen; missing ones are set to zeros."""
        rest = [
            gradient
            for gradient in self.gradients
            if not gradient.submitted and gradient.parameter.requires_grad
        ]
        for gradient in rest:
            gradient.fill()
        return rest


class _DenseReduction:
    """An allreduce in flight, of one gradient or of a group."""

    def __init__(self, gradients: Sequence[_Gradient], grouped: bool, reduction: Reduction) -> None:
        self._compression = reduction.compression
        self._gradients = gradients
        pairs = [reduction.compression.compress(_dense(_grad(each))) for each in gradients]
        # A gradient in another memory format, such as channels_last, goes through a copy.
        self._sent = [submit.readable(tensor) for tensor, _ in pairs]
        self._contexts = [context for _, context in pairs]
        options = (
            gradients[0].name,
            reduction.op,
            reduction.prescale,
            reduction.postscale,
            reduction.process_set,
        )
        if grouped:
            self._handle = submit.grouped_allreduce(self._sent, self._sent, *options)
        else:
            self._handle = submit.allreduce(self._sent[0], self._sent[0], *options)

    def handles(self) -> dict[torch.Tensor, tuple[Any, Any]]:
        pairs = zip(self._gradients, self._contexts)
        return {gradient.parameter: (self._handle, context) for gradient, context in pairs}

    def finish(self) -> None:
        synchronize(self._handle)
        for gradient, sent, context in zip(self._gradients, self._sent, self._contexts):
            reduced = self._compression.decompress(sent, context)
            grad = _grad(gradient)
            if grad.is_sparse:
                gradient.parameter.grad = reduced.to_sparse(grad.sparse_dim())
            elif reduced is not grad:
                grad.copy_(reduced)


class _SparseReduction:
    """A sparse gradient in flight."""

    def __init__(self, gradient: _Gradient, grad: torch.Tensor, reduction: Reduction) -> None:
        gradient.sparse_dim = grad.sparse_dim()
        self._parameter = gradient.parameter
        self._sum = SparseReduction(grad, gradient.name, reduction.op, reduction.process_set)

    def handles(self) -> dict[torch.Tensor, tuple[Any, Any]]:
        return {self._parameter: (self._sum.wait, None)}

    def finish(self) -> None:
        self._parameter.grad = self._sum.wait()


_PendingReduction = Union[_DenseReduction, _SparseReduction]


def reduce_alone(parameter: torch.Tensor, name: str, reduction: Reduction) -> tuple[Any, Any]:
    """Submits one gradient of an optimizer without a reducer; returns handle and context."""
    gradient = _Gradient(parameter, name, _Bucket(grouped=False))
    gradient.fill()
    return _DenseReduction([gradient], False, reduction).handles()[parameter]


def _finish(reduction: _PendingReduction) -> Exception | None:
    # One failure must not leave the others in flight.
    try:
        reduction.finish()
    except Exception as error:
        return error
    return None


def _grad(gradient: _Gradient) -> torch.Tensor:
    grad = gradient.parameter.grad
    if grad is None:
        raise AssertionError(
            f"The gradient of `{gradient.name}` was removed before it was reduced; call "
            "optimizer.zero_grad() only after optimizer.step()."
        )
    return grad


def _dense(grad: torch.Tensor) -> torch.Tensor:
    return grad.to_dense() if grad.is_sparse else grad


def _call_when_accumulated(parameter: torch.Tensor, hook: Callable[[], None]) -> Any | None:
    """Calls `hook` after each accumulation; the caller must keep the returned object, if any."""
    register = getattr(parameter, "register_post_accumulate_grad_hook", None)
    if register is not None:
        register(lambda _: hook())
        return None
    grad_fn: Any = parameter.expand_as(parameter).grad_fn
    accumulator = grad_fn.next_functions[0][0]
    accumulator.register_hook(lambda *_: hook())
    return accumulator
