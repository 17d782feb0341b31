"""The Adasum optimizer: any torch optimizer, with its changes to the weights combined by Adasum.

Every rank takes its own step. The change of each weight, the delta, is combined over all ranks and
added to the weight as it was before the step. So the weights stay equal on all ranks, while
momentum and similar state is local to each rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from horovod.common.process_sets import ProcessSet
from horovod.torch import submit
from horovod.torch.compression import Compressor
from horovod.torch.handles import synchronize
from horovod.torch.wrapping import Wrapped


class DeltaOptimizer(Wrapped):
    """What an Adasum optimizer does differently; comes before the user's class in the bases."""

    def synchronize(self) -> None:
        """Do nothing: with Adasum, `step` does the waiting."""

    def skip_synchronize(self) -> Any:
        """Raise an error: ranks would end up with different weights.

        Raises:
            AssertionError: Always.
        """
        raise AssertionError(
            "Skipping synchronization is not supported when using Adasum optimizer."
        )

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step like the wrapped optimizer, then combine the changes of the weights over all ranks.

        Args:
            closure: Function that computes the loss and its gradients again, as torch's optimizers
                take it (default: None).

        Returns:
            What `step` of the wrapped optimizer returns.

        Raises:
            HorovodInternalError: If a rank was lost, or the ranks disagree about shape, element
                type or operation.
        """
        if not self._plan.reduction.process_set.included():
            return super().step() if closure is None else super().step(closure)
        named = self._named()
        before = [parameter.detach().clone() for parameter, _ in named]
        loss = super().step() if closure is None else super().step(closure)
        with torch.no_grad():
            deltas = [self._launch(named, start) for named, start in zip(named, before)]
            # One failure must not leave the others in flight.
            errors = [error for error in map(_finish, deltas) if error is not None]
        if errors:
            raise errors[0]
        return loss

    # Torch wraps a `step` without this mark, and would run the step hooks twice: here and in the
    # user's class.
    step.hooked = True  # type: ignore[attr-defined]

    @property
    def _requires_update(self) -> set[torch.Tensor]:
        included = self._plan.reduction.process_set.included()
        return {parameter for parameter, _ in self._named()} if included else set()

    def _named(self) -> list[tuple[torch.Tensor, str]]:
        """All parameters that are trained, including those added or unfrozen since the last
        step."""
        return [
            (
                parameter,
                self._parameter_names.setdefault(parameter, f"allreduce.noname.{number}.{index}"),
            )
            for number, group in enumerate(self.param_groups)
            for index, parameter in enumerate(group["params"])
            if parameter.requires_grad
        ]

    def _launch(self, named: tuple[torch.Tensor, str], before: torch.Tensor) -> _Delta:
        parameter, name = named
        reduction = self._plan.reduction
        return _Delta(parameter, before, name, reduction.compression, reduction.process_set)


class _Delta:
    """The change of one parameter in flight; until it completes, the parameter is unchanged."""

    def __init__(
        self,
        parameter: torch.Tensor,
        before: torch.Tensor,
        name: str,
        compression: type[Compressor],
        process_set: ProcessSet,
    ) -> None:
        self._parameter = parameter
        self._compression = compression
        compressed, self._context = compression.compress(parameter - before)
        parameter.copy_(before)
        self._sent = submit.readable(compressed)
        self._handle = submit.allreduce(
            self._sent, self._sent, name, submit.Adasum, 1.0, 1.0, process_set
        )

    def finish(self) -> None:
        synchronize(self._handle)
        self._parameter.add_(self._compression.decompress(self._sent, self._context))


def _finish(delta: _Delta) -> Exception | None:
    try:
        delta.finish()
    except Exception as error:
        return error
    return None
