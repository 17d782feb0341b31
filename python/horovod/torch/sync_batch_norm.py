"""Batch normalization over the batches of all ranks, for any number of ranks and uneven batches.

Moments are summed in float64, so that a large common mean does not cancel the variance. A rank is
weighted by its number of elements; one that has joined has no weight.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from horovod.common.basics import _basics
from horovod.common.process_sets import global_process_set
from horovod.torch import autograd, submit

__all__ = [
    "SyncBatchNorm",
]


def _as_it_is(function: Any) -> Any:
    return function


class SyncBatchNorm(_BatchNorm):
    """Batch normalization with the mean and variance of the batches of all ranks.

    Replaces `torch.nn.BatchNorm1d`, `BatchNorm2d` and `BatchNorm3d`. In training every rank must
    call it the same number of times, and such layers in the same order; batches may have different
    sizes. In evaluation, and with a single rank, it is plain batch normalization. The gradients of
    `weight` and `bias` are this rank's share, for `DistributedOptimizer` to reduce.

    Args:
        num_features: Number of channels: the size of dimension 1 of the input.
        eps: Added to the variance for numerical stability (default: 1e-5).
        momentum: Weight of a new batch in the running mean and variance; None for a plain average
            over all batches (default: 0.1).
        affine: Whether to learn a scale and an offset for each channel (default: True).
        track_running_stats: Whether to keep running statistics for evaluation (default: True).

    Example:
        ```python
        import torch
        import horovod.torch as hvd

        hvd.init()
        layer = hvd.SyncBatchNorm(8)
        layer(torch.randn(4, 8, 5, 5)).sum().backward()
        ```
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalize a batch; in training, all ranks must call it.

        Args:
            input: Tensor with at least 2 dimensions, channels in dimension 1.

        Returns:
            The normalized tensor, of the same shape.

        Raises:
            ValueError: If the input has fewer than 2 dimensions or a different number of channels.
            HorovodInternalError: If a rank was lost, or the ranks disagree about shape, element
                type or operation.
        """
        self._check_input_dim(input)
        if not self.training:
            return super().forward(input)
        output: torch.Tensor = self._train(input)
        return output

    # The compiler could not trace it and would warn. This form imports the compiler only at the
    # first call; `torch.compiler.disable` would import it here.
    @getattr(torch, "_disable_dynamo", _as_it_is)  # type: ignore[untyped-decorator, unused-ignore]
    def _train(self, input: torch.Tensor) -> torch.Tensor:
        if _basics.size() == 1:
            return super().forward(input)
        with torch.no_grad():
            moments = _moments(_wide(input))
            if self.track_running_stats:
                self._track(moments)
        output: torch.Tensor = _Normalize.apply(input, self.weight, self.bias, moments, self.eps)
        return output

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")
        if input.shape[1] != self.num_features:
            raise ValueError(
                f"expected {self.num_features} channels in dimension 1 (got {input.shape[1]})"
            )

    def _track(self, moments: _Moments) -> None:
        mean, variance, elements = moments
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        unbiased = variance * (elements / (elements - 1))
        for running, new in ((self.running_mean, mean), (self.running_var, unbiased)):
            if running is not None:
                running.lerp_(new.to(running.dtype), self._weight_of_batch(running))

    def _weight_of_batch(self, running: torch.Tensor) -> Any:
        if self.momentum is not None:
            return self.momentum
        batches = self.num_batches_tracked
        return 1.0 if batches is None else batches.to(running.dtype).clamp(min=1).reciprocal()


class _Moments(NamedTuple):
    """The moments of each channel over the batches of all ranks; in float64.

    The number of elements is a tensor, because reading it would make the host wait for a GPU.
    """

    mean: torch.Tensor
    variance: torch.Tensor
    elements: torch.Tensor


def _moments(wide: torch.Tensor) -> _Moments:
    channels = wide.shape[1]
    count = wide.numel() // channels if channels else 0
    mean = _sum(wide) / max(count, 1)
    spread = _sum((wide - _per_channel(mean, wide)).square_()).double()
    mean = mean.double()
    own = torch.cat([mean * count, spread + mean.square() * count, mean.new_full((1,), count)])
    total = _reduced("", own)
    elements = total[-1]
    # If this rank has two, all ranks together have.
    if count < 2 and elements < 2:
        raise ValueError(
            "Expected more than 1 value per channel when training, but all ranks together have "
            f"{int(elements)}; this rank's input is of shape {list(wide.shape)}"
        )
    mean, square = total[:channels] / elements, total[channels:-1] / elements
    return _Moments(mean, (square - mean.square()).clamp_(min=0.0), elements)


class _Normalize(torch.autograd.Function):
    """Normalizes with moments that depend on the inputs of all ranks."""

    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        moments: _Moments,
        eps: float,
    ) -> torch.Tensor:
        wide = _wide(input)
        mean, variance = moments.mean.to(wide.dtype), moments.variance.to(wide.dtype)
        ctx.save_for_backward(input, weight, mean, (moments.variance + eps).rsqrt())
        ctx.elements = moments.elements
        if weight is not None and bias is not None:
            weight, bias = weight.to(wide.dtype), bias.to(wide.dtype)
        output = functional.batch_norm(wide, mean, variance, weight, bias, False, 0.0, eps)
        return output.to(input.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        input, weight, mean, scale = ctx.saved_tensors
        grad = _wide(grads[0])
        centred = _wide(input) - _per_channel(mean, grad)
        own_sum, own_product = _sum(grad).double(), _sum(grad * centred).double()
        grad_input = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            total = _reduced(".backward", torch.cat([own_sum, own_product])) / ctx.elements
            slope = scale if weight is None else scale * weight.double()
            factors = (slope, -slope * total[: len(scale)], slope * scale**2 * total[len(scale) :])
            own, shift, common = (_per_channel(each.to(grad.dtype), grad) for each in factors)
            grad_input = torch.addcmul(shift, grad, own).addcmul_(centred, common, value=-1.0)
            grad_input = grad_input.to(input.dtype)
        if ctx.needs_input_grad[1]:
            grad_weight = (own_product * scale).to(weight.dtype)
        if ctx.needs_input_grad[2]:
            grad_bias = own_sum.to(weight.dtype)
        return grad_input, grad_weight, grad_bias, None, None


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in a type in which sums of many elements fit."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _sum(tensor: torch.Tensor) -> torch.Tensor:
    """The sum of each channel."""
    return tensor.sum([dim for dim in range(tensor.dim()) if dim != 1])


def _per_channel(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """One value for each channel, in a shape that broadcasts with `like`."""
    return values.view(1, -1, *[1] * (like.dim() - 2))


def _reduced(which: str, own: torch.Tensor) -> torch.Tensor:
    # Layers of one width share a name, so that it is reused from step to step; no two of them are
    # in flight at the same time.
    name = f"sync_batch_norm.{own.numel()}{which}"
    return autograd.allreduce(own, name, submit.Sum, 1.0, 1.0, global_process_set)
