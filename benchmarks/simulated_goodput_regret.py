"""What ``auto`` loses when the costs that it predicts with are wrong, against the best fixed policy in hindsight."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from everstep.conf.simulation import Batch, Failures, Fleet, PolicyKeys, SimulatedCosts, Simulation
from everstep.orchestrator.simulation.engine import Engine

FIXED = ("swap", "shrink", "restart")
WRONG_BY = 0.5


@dataclass(frozen=True)
class Duel:
    """One drawn world.

    Attributes:
        world: as it is.
        goodput: by policy; ``auto`` with wrong costs, ``auto, true costs`` with the right ones.
    """

    world: Simulation
    goodput: Mapping[str, float]

    @property
    def best(self) -> str:
        """The fixed policy that one would have wanted."""
        return max(FIXED, key=lambda name: self.goodput[name])

    def regret(self, policy: str = "auto") -> float:
        """Share of the best fixed policy's goodput that this one does not reach; below 0 if it is better."""
        return 1 - self.goodput[policy] / self.goodput[self.best]


def duel(chance: random.Random) -> Duel:
    """Draw a world, and let every policy go through the same failures in it."""
    world = drawn(chance)
    wrong = {item.name: 1 + WRONG_BY * (2 * chance.random() - 1) for item in fields(SimulatedCosts)}
    goodput = {name: _goodput(world, name) for name in FIXED}
    goodput["auto"] = _goodput(replace(world, believed=wrong), "auto")
    goodput["auto, true costs"] = _goodput(world, "auto")
    return Duel(world, goodput)


def drawn(chance: random.Random) -> Simulation:
    """A world out of many: small and large shares of a step, quick and slow states, with and without replacements."""
    replicas, size = chance.choice((4, 8, 16, 32)), chance.choice((1, 1, 2, 4))
    spares = size * chance.choice((0, 1, 2, 4))
    microbatch = _between(chance, 0.2, 5.0)
    microbatches = replicas * chance.choice((1, 2, 4, 8))
    step = microbatches / replicas * microbatch
    seconds, losses = 12 * 3600.0, _between(chance, 4, 40)
    saved = max(1, round(_between(chance, 300.0, 3600.0) / step))
    return Simulation(
        fleet=Fleet(
            replicas=replicas,
            ranks_per_replica=size,
            minimum=max(1, replicas // 2),
            ranks_per_node=size,
            idle_nodes=chance.choice((0, 2)),
            repair=_between(chance, 60.0, 7200.0),
        ),
        batch=Batch(microbatches=microbatches),
        costs=SimulatedCosts(
            microbatch=microbatch,
            step=step * _between(chance, 0.01, 0.3),
            detect=_between(chance, 0.1, 30.0),
            rebuild=_between(chance, 0.1, 30.0),
            adopt=_between(chance, 0.1, 60.0),
            restart=_between(chance, 5.0, 600.0),
            state_bytes=1e9,
            transfer_per_byte=_between(chance, 1e-9, 3e-7),
            vault_per_byte=_between(chance, 1e-9, 3e-8),
            storage_per_byte=_between(chance, 1e-8, 3e-7),
            checkpoint=_between(chance, 0.1, 30.0),
            snapshot=_between(chance, 0.01, 0.3),
        ),
        policies=PolicyKeys(
            spares=spares,
            replace=chance.random() < 0.7,
            patience=4 * 3600.0,
            checkpoint_every=saved,
            snapshot_every=max(1, saved // 10) * chance.choice((0, 1)),
        ),
        failures=Failures(rank_mtbf=seconds / losses * replicas * size),
        seconds=seconds,
        seed=chance.randrange(2**31),
    )


def _goodput(world: Simulation, recovery: str) -> float:
    return Engine(replace(world, policies=replace(world.policies, recovery=recovery))).run().goodput


def _between(chance: random.Random, low: float, high: float) -> float:
    """Even over orders of magnitude."""
    return float(low * (high / low) ** chance.random())
