"""What Ray says of its nodes, as events: room and failure domains, nodes that are drained, nodes that are lost."""

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import floor
from typing import Any

from ..actors.node import vault_memory
from ..policies.placement import Node
from .cluster import Sink, describe
from .machine.events import NodeDraining, NodeLost, Room, Warned

INTERVAL_S = 1.0
# Labels that tell a failure domain, the first that a node carries counts.
ZONES = ("ray.io/availability-zone", "topology.kubernetes.io/zone", "zone")
RACKS = ("topology.kubernetes.io/rack", "rack")
_NODE_LABEL = "ray.io/node-id"
# Ray counts in ten-thousandths.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Sight:
    """One look at all nodes.

    Attributes:
        nodes: that live, with the ranks that each has room for.
        dead: by id, why.
        draining: by id, in how many seconds Ray ends it; None if it says nothing of that.
    """

    nodes: tuple[Node, ...] = ()
    dead: Mapping[str, str] = field(default_factory=dict)
    draining: Mapping[str, float | None] = field(default_factory=dict)


def sight(
    listing: Iterable[Mapping[str, Any]],
    available: Mapping[str, Mapping[str, float]],
    draining: Mapping[str, float | None],
    need: Mapping[str, float],
) -> Sight:
    """Read what Ray tells.

    Args:
        listing: of ``ray.nodes()``.
        available: by node, free resources.
        draining: nodes that Ray drains, with the seconds that they still have.
        need: resources that a rank reserves.
    """
    nodes: list[Node] = []
    dead: dict[str, str] = {}
    for entry in listing:
        name, labels = str(entry["NodeID"]), entry.get("Labels") or {}
        if not entry["Alive"]:
            dead[name] = str(entry.get("DeathReasonMessage") or "Ray calls it dead")
            continue
        room = 0 if name in draining else _room(available.get(name, {}), need)
        nodes.append(Node(name, _first(labels, RACKS), _first(labels, ZONES), room))
    return Sight(tuple(sorted(nodes, key=lambda node: node.name)), dead, dict(draining))


def news(before: Sight, now: Sight, ranks_per_replica: int) -> list[Room | NodeLost | NodeDraining]:
    """What has changed since the look before."""
    known = {node.name for node in before.nodes}
    found: list[Room | NodeLost | NodeDraining] = []
    found += [NodeLost(name, cause) for name, cause in sorted(now.dead.items()) if name in known]
    found += [NodeDraining(name, _said(now.draining[name])) for name in sorted(now.draining.keys() - before.draining)]
    if now.nodes != before.nodes:
        found.append(Room(sum(node.room for node in now.nodes) // ranks_per_replica, now.nodes))
    return found


async def watch(sink: Sink, need: Mapping[str, float], ranks_per_replica: int, interval: float = INTERVAL_S) -> None:
    """Look again and again, until this is cancelled."""
    before, failed = Sight(), ""
    while True:
        try:
            now = await asyncio.to_thread(look_around, need)
        except Exception as error:
            # Ray's head may be away for a while; nodes are looked at again when it is back.
            if not failed:
                sink(Warned(f"Ray does not tell of its nodes: {describe(error)}"))
            failed = describe(error)
        else:
            for event in news(before, now, ranks_per_replica):
                sink(event)
            before, failed = now, ""
        await asyncio.sleep(interval)


def preferences(avoid: Iterable[str], node: str | None) -> list[dict[str, str]]:
    """Where a rank may be started, as selectors of labels: on the best node, on no avoided one, and else anywhere.

    Ray takes the first that has room; if none has, it waits for the first that comes to have any.
    """
    avoided = ",".join(sorted(avoid))
    best = [{_NODE_LABEL: node}] if node else []
    return [*best, *([{_NODE_LABEL: f"!in({avoided})"}] if avoided else []), {}]


def look_around(need: Mapping[str, float]) -> Sight:
    """Ask Ray, blocking."""
    import ray
    from ray._private import state

    # Ray has no public call for these two.
    available = state.available_resources_per_node()
    deadlines = state.state.get_draining_nodes()
    draining = {node: at / 1000 - time.time() if at else None for node, at in deadlines.items()}
    return sight(ray.nodes(), available, draining, need)


def store_room() -> dict[str, int]:
    """By node, bytes of its object store that are free; blocking."""
    import ray

    return {str(node["NodeID"]): vault_memory.store_room(node) for node in ray.nodes() if node["Alive"]}


def _said(seconds: float | None) -> str:
    return "Ray drains it" if seconds is None else f"Ray drains it, and ends it in {max(0.0, seconds):.0f} s"


def _room(available: Mapping[str, float], need: Mapping[str, float]) -> int:
    shares = [available.get(name, 0.0) / amount for name, amount in need.items() if amount > 0]
    return max(0, floor(min(shares) + _ROUNDING)) if shares else 0


def _first(labels: Mapping[str, str], names: Iterable[str]) -> str:
    return next((labels[name] for name in names if name in labels), "")
