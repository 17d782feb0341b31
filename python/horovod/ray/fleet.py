"""The actors of an elastic job: as many as it wants, of which Ray starts those it has room for.

An actor that Ray cannot place yet stays pending. That is how the job asks for more: an autoscaler
adds nodes for pending actors, and Ray starts them there at once. An actor that dies is replaced; a
rank that fails is the launcher's business, which leaves its host out or uses it again.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from horovod.ray.carrier import Carrier, Load, Site
from horovod.ray.nodes import alive

_ASK_SECONDS = 1.0

Wanted = Callable[[], "int | Mapping[str, int]"]
"""How many ranks the job wants: anywhere, or by the address of the node."""


class Slot(NamedTuple):
    """An actor of the fleet."""

    actor: Any
    number: int
    address: str | None
    """The address of the node to which it is bound, if it is."""


class Fleet:
    """Keeps as many actors as wanted.

    Args:
        options: The options of the actors.
        wanted: How many are wanted.
        load: What an actor gets, by its number and where it runs.
    """

    def __init__(
        self, options: Mapping[str, Any], wanted: Wanted, load: Callable[[int, Site], Load]
    ) -> None:
        self._options, self._wanted, self._load = options, wanted, load
        self._count = 0
        self._asked: tuple[float, int | Mapping[str, int]] | None = None
        # By the reference that tells when Ray has placed it, and when its agent has ended.
        self._pending: dict[Any, Slot] = {}
        self._carrying: dict[Any, Slot] = {}
        # Those whose agent has ended as it should, by address: nobody takes their place.
        self._over: Counter[str | None] = Counter()

    @property
    def pending(self) -> int:
        """Number of actors that wait for room."""
        return len(self._pending)

    def step(self, timeout: float) -> None:
        """Adds, loads and replaces actors; waits for the next change, at most for this time."""
        self._adjust()
        refs = [*self._pending, *self._carrying]
        if not refs:
            time.sleep(timeout)
            return
        ready, _ = ray.wait(refs, num_returns=1, timeout=timeout)
        for ref in ready:
            if ref in self._pending:
                self._put_to_work(ref, self._pending.pop(ref))
            else:
                self._end(ref, self._carrying.pop(ref))

    def stop(self, grace: float) -> None:
        """Ends all actors, those whose agents end by themselves after this time at most."""
        refs = [*self._carrying]
        if refs:
            ray.wait(refs, num_returns=len(refs), timeout=grace)
        for slot in (*self._pending.values(), *self._carrying.values()):
            with suppress(Exception):
                ray.kill(slot.actor)
        self._pending, self._carrying = {}, {}

    def _adjust(self) -> None:
        if self._asked is None or time.monotonic() - self._asked[0] > _ASK_SECONDS:
            self._asked = time.monotonic(), self._wanted()
        _, wanted = self._asked
        targets: dict[str | None, int] = {None: wanted} if isinstance(wanted, int) else {}
        if not isinstance(wanted, int):
            targets.update(wanted)
        have = Counter(slot.address for slot in self._slots() if slot.address != _LEAVING)
        for address in {*targets, *have, *self._over}:
            if address not in targets:
                del self._over[address]
            have[address] += self._over[address]
            missing = targets.get(address, 0) - have[address]
            for _ in range(missing):
                self._add(address)
            if missing < 0:
                self._dismiss(address, -missing)

    def _slots(self) -> list[Slot]:
        return [*self._pending.values(), *self._carrying.values()]

    def _add(self, address: str | None) -> None:
        options = dict(self._options)
        if address is not None:
            node = _node_at(address)
            if node is None:
                return
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node, soft=False)
        actor: Any = ray.remote(Carrier).options(max_concurrency=4, **options).remote()
        self._pending[actor.site.remote()] = Slot(actor, self._count, address)
        self._count += 1

    def _dismiss(self, address: str | None, count: int) -> None:
        """Sends the youngest away; those that work leave at their next commit."""
        for ref, slot in reversed([*self._pending.items()]):
            if slot.address == address and count > 0:
                ray.kill(self._pending.pop(ref).actor)
                count -= 1
        for ref, slot in reversed([*self._carrying.items()]):
            if slot.address == address and count > 0:
                slot.actor.leave.remote()
                # It no longer counts, and ends when its rank has left.
                self._carrying[ref] = slot._replace(address=_LEAVING)
                count -= 1

    def _put_to_work(self, ref: Any, slot: Slot) -> None:
        try:
            site = ray.get(ref)
        except RayError as error:
            _report(slot, error)
            return
        self._carrying[slot.actor.carry.remote(self._load(slot.number, site))] = slot

    def _end(self, ref: Any, slot: Slot) -> None:
        try:
            failed = ray.get(ref)
        except RayError as error:
            failed = error
        if failed is not None:
            _report(slot, failed)
        elif slot.address != _LEAVING:
            self._over[slot.address] += 1
        with suppress(Exception):
            ray.kill(slot.actor)


_LEAVING = "leaving"


def _node_at(address: str) -> str | None:
    """The id of a node with this address; of several on one machine, the one with most room."""
    at = [node for node in alive() if node.address == address]
    most = max(at, key=lambda node: node.resources.get("CPU", 0), default=None)
    return None if most is None else most.node_id


def _report(slot: Slot, error: object) -> None:
    why, *_ = [*f"{error}".strip().splitlines(), "no reason is known"]
    print(
        f"ronde: lost Ray actor {slot.number}: {why}; asking for another",
        file=sys.stderr,
        flush=True,
    )
