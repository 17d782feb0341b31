"""The parameters of a collective, as one value that JAX can keep while it transforms programs."""

from __future__ import annotations

import dataclasses

from horovod import raw
from horovod.common.process_sets import ProcessSet, global_process_set, registered_id


@dataclasses.dataclass(frozen=True)
class CollectiveSpec:
    """A collective without its arrays."""

    kind: str
    # The name inside a compiled program, and the one that the user passed, if any.
    name: str
    given: str | None = None
    process_set: ProcessSet = global_process_set
    op: int = raw.Sum
    prescale: float = 1.0
    postscale: float = 1.0
    root: int = 0
    # How many derivatives have been taken; each has its own collective.
    order: int = 0

    def backward(self, kind: str, **changes: object) -> CollectiveSpec:
        """The collective of the backward pass."""
        step = f"backward{self.order or ''}"
        return dataclasses.replace(
            self,
            kind=kind,
            name=f"{self.name}.{step}",
            given=None if self.given is None else f"{self.given}.{step}",
            order=0,
            **changes,  # type: ignore[arg-type]
        )

    def number(self) -> int:
        """The id of the set."""
        return registered_id(self.process_set)

    def members(self) -> int:
        """How many ranks take part."""
        return self.process_set.size() or 1

    def place(self) -> int:
        """The position of this rank among them."""
        if not self.process_set.included():
            raise ValueError(
                f"{self.name}: Rank {raw.rank()} is not a member of the provided process set."
            )
        return self.process_set.rank() or 0
