"""The nodes of the cluster, and what fits into them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import ray


class Node(NamedTuple):
    """A Ray node that is alive."""

    node_id: str
    address: str
    resources: Mapping[str, float]


def alive() -> list[Node]:
    """The nodes that are alive."""
    return [
        Node(node["NodeID"], node["NodeManagerAddress"], node["Resources"])
        for node in ray.nodes()
        if node["Alive"]
    ]


def fits(room: Mapping[str, float], bundle: Mapping[str, float]) -> int:
    """How many of these bundles fit into a node, or into another bundle."""
    needed = {name: amount for name, amount in bundle.items() if amount > 0}
    if not needed:
        return sys.maxsize
    return min(int(room.get(name, 0) / amount) for name, amount in needed.items())


def shortage(bundle: Mapping[str, float], count: int, spread: bool = False) -> str:
    """Why these bundles do not fit into the whole cluster, even if nothing else runs; or nothing.

    Args:
        bundle: What each of them needs.
        count: Number of bundles.
        spread: Whether each needs a node of its own (default: False).
    """
    nodes = alive()
    each = [fits(node.resources, bundle) for node in nodes]
    room = sum(min(1, one) if spread else one for one in each)
    if room >= count:
        return ""
    where = "on nodes of their own" if spread else "each"
    return (
        f"the cluster has room for {room} of {count} bundles that need {listed(bundle)} {where}: "
        f"it has {len(nodes)} nodes, with {_listed(nodes, bundle)}"
    )


def listed(bundle: Mapping[str, float]) -> str:
    """Resources in words."""
    return " and ".join(f"{amount:g} {name}" for name, amount in bundle.items())


def _listed(nodes: Sequence[Node], bundle: Mapping[str, float]) -> str:
    own = (listed({name: node.resources.get(name, 0) for name in bundle}) for node in nodes)
    return "; ".join(own) or "nothing"
