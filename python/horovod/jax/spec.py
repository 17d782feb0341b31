"""The parameters of a collective, as one value that JAX can keep while it transforms programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TypeVar

from horovod import raw
from horovod.common.calls import Call

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class CollectiveSpec(Call):
    """A collective without its arrays; `name` is the one inside a compiled program."""

    # The name that the user passed, if any.
    given: str | None = None
    # How many derivatives have been taken; each has its own collective.
    order: int = 0
    # Whether the last operand is only there to make it run after another call.
    after: bool = False
    # Whether the last result is only there to make another call run after it.
    has_token: bool = False

    def backward(self, kind: str, **changes: object) -> CollectiveSpec:
        """The collective of the backward pass."""
        step = f"backward{self.order or ''}"
        return dataclasses.replace(
            self,
            kind=kind,
            name=f"{self.name}.{step}",
            given=None if self.given is None else f"{self.given}.{step}",
            order=0,
            after=False,
            has_token=False,
            **changes,  # type: ignore[arg-type]
        )

    def reduced(self, operands: Sequence[T]) -> Sequence[T]:
        """The operands without the one that only establishes the order."""
        return operands[: len(operands) - self.after]

    def place(self) -> int:
        """The position of this rank among them."""
        if not self.process_set.included():
            raise ValueError(
                f"{self.name}: Rank {raw.rank()} is not a member of the provided process set."
            )
        return super().place()
