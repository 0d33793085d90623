"""Where failures come from: endless, ordered, seeded streams of them. Nothing here knows who is alive."""

import heapq
import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from math import log

from ...conf.simulation import Simulation
from .traces import read


class What(StrEnum):
    """What is hit."""

    RANK = "rank"
    NODE = "node"
    RACK = "rack"
    SLOW = "slow"


@dataclass(frozen=True, order=True)
class Failure:
    """One failure.

    Attributes:
        at: when, in seconds of virtual time.
        what: is hit; ``SLOW`` hits the rank in one slot.
        target: slot, node or rack, from 0.
        repair: seconds until what was hit can be used again; None never. Without meaning for ``SLOW``.
        factor: by which a microbatch takes longer; for ``SLOW`` only.
        seconds: how long it lasts; for ``SLOW`` only.
        source: of it.
    """

    at: float
    what: What
    target: int
    repair: float | None = None
    factor: float = 1.0
    seconds: float = 0.0
    source: str = ""


def failures(simulation: Simulation) -> Iterator[Failure]:
    """All failures of a simulation in the order of time.

    Raises:
        ConfigError: the trace is not what it should be.
    """
    fleet, said = simulation.fleet, simulation.failures
    nodes = simulation.nodes
    counts = {
        What.RANK: (nodes * fleet.ranks_per_node, said.rank_mtbf),
        What.NODE: (nodes, said.node_mtbf),
        What.RACK: (-(-nodes // fleet.nodes_per_rack), said.rack_mtbf),
    }
    streams = [
        _exponential(what, count, mtbf, fleet.repair, f"{simulation.seed} {what}", str(what))
        for what, (count, mtbf) in counts.items()
        if mtbf is not None
    ]
    flapping = said.flapping
    if flapping.nodes:
        seed = f"{simulation.seed} flapping"
        count = min(flapping.nodes, nodes)
        streams.append(_exponential(What.NODE, count, flapping.mtbf, flapping.repair, seed, "flapping node"))
    slow = said.stragglers
    if slow.mtbf is not None:
        slots = nodes * fleet.ranks_per_node
        begins = _exponential(What.SLOW, slots, slow.mtbf, None, f"{simulation.seed} slow", "straggler")
        streams.append(
            Failure(one.at, one.what, one.target, None, slow.factor, slow.seconds, one.source) for one in begins
        )
    if said.trace is not None:
        streams.append(_traced(simulation))
    return heapq.merge(*streams, key=lambda failure: failure.at)


def _exponential(
    what: What, count: int, mtbf: float, repair: float | None, seed: str, source: str
) -> Iterator[Failure]:
    """``count`` of them, each failing with this mean time between: together one Poisson process with even targets."""
    chance = random.Random(seed)
    now, mean = 0.0, mtbf / count
    while True:
        now -= mean * log(1.0 - chance.random())
        yield Failure(now, what, chance.randrange(count), repair, source=source)


def _traced(simulation: Simulation) -> Iterator[Failure]:
    fleet = simulation.fleet
    counts = {
        What.RANK: simulation.nodes * fleet.ranks_per_node,
        What.SLOW: simulation.nodes * fleet.ranks_per_node,
        What.NODE: simulation.nodes,
        What.RACK: -(-simulation.nodes // fleet.nodes_per_rack),
    }
    assert simulation.failures.trace is not None
    for line in read(
        simulation.folder / simulation.failures.trace, {str(what): count for what, count in counts.items()}
    ):
        repair = fleet.repair if line.repair is None else line.repair
        yield Failure(line.time, What(line.what), line.target, repair, line.factor, line.seconds, "trace")
