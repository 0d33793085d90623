"""The worlds that are compared, and what goes on in each of them: one arm for each way to answer a loss."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from everstep.conf.simulation import Batch, Failures, Fleet, OnSteps, PolicyKeys, SimulatedCosts, Simulation
from everstep.orchestrator.simulation.engine import Engine
from everstep.orchestrator.simulation.outcome import Outcome

DAY = 86400.0
LLAMA_3 = (419, 54 * DAY, 16_384)  # unexpected interruptions, seconds, GPUs
GPUS_PER_NODE = 8


@dataclass(frozen=True)
class Arm:
    """One way to answer losses.

    Attributes:
        name: shown.
        policies: what differs from the world's.
        costs: likewise.
        fleet: likewise.
    """

    name: str
    policies: Mapping[str, Any] = field(default_factory=dict)
    costs: Mapping[str, float] = field(default_factory=dict)
    fleet: Mapping[str, Any] = field(default_factory=dict)

    def play(self, world: Simulation) -> Outcome:
        """This arm in that world."""
        return Engine(
            replace(
                world,
                policies=replace(world.policies, **self.policies),
                costs=replace(world.costs, **self.costs),
                fleet=replace(world.fleet, **self.fleet),
            )
        ).run()


ADAPTIVE = Arm("adaptive_world", {"recovery": "shrink", "workload": "adaptive_world"})
VERSATILE = Arm("versatile", {"recovery": "shrink", "workload": "versatile"})
BALANCED = Arm("balanced", {"recovery": "shrink"})


def restart(every: int, seconds: float, minimum: int = 1, spares: int = 0, name: str = "") -> Arm:
    """All processes are started anew from the newest checkpoint on storage.

    Args:
        every: steps between checkpoints.
        seconds: what starting takes beside reading the checkpoint.
        minimum: fewest replicas that it goes on with.
        spares: that stand by.
        name: in place of one that says all of that.
    """
    policies = {"recovery": "restart", "checkpoint_every": every, "snapshot_every": 0, "spares": spares}
    return Arm(
        name or f"restart, every {every} steps, {seconds:g} s", policies, {"relaunch": seconds}, {"minimum": minimum}
    )


def swap(spares: int) -> Arm:
    """Spares stand by; without one the world shrinks."""
    return Arm(f"swap, {spares} spares", {"recovery": "swap", "spares": spares})


def auto(spares: int) -> Arm:
    """Whatever is predicted to delay training least."""
    return Arm(f"auto, {spares} spares", {"recovery": "auto", "spares": spares})


def recover_3d(every: int, losses: int) -> Simulation:
    """ReCoVer's comparison with checkpoints: 128 GPUs as 16 replicas of 4 x 2, G = 8, losses at 1.5 N, 2.5 N, ...

    A step is calibrated so that training through the losses reaches the published tokens in the published GPU-hours.
    """
    return Simulation(
        fleet=Fleet(replicas=16, gpus_per_rank=8, ranks_per_node=1),
        batch=Batch(microbatches=128, tokens_per_microbatch=4096),
        costs=SimulatedCosts(
            microbatch=1.7,
            step=0.8,
            detect=1.0,
            rebuild=2.0,
            checkpoint=5.0,
            state_bytes=1.1e11,
            transfer_per_byte=1e-10,
            storage_per_byte=1e-10,
        ),
        failures=Failures(on_steps=OnSteps(first=1.5 * every, every=every, count=losses)),
        gpu_hours=234.0,
    )


def recover_trajectory() -> Simulation:
    """ReCoVer's long run: 512 GPUs as 64 replicas, G = 128, half of them lost, one in five steps; 260 steps."""
    world = recover_3d(5, 32)
    return replace(
        world,
        fleet=replace(world.fleet, replicas=64),
        batch=replace(world.batch, microbatches=8192),
        failures=Failures(on_steps=OnSteps(first=5.5, every=5, count=32)),
        gpu_hours=None,
        steps=260,
    )


def large(gpus: int, mtbf: float, seconds: float) -> Simulation:
    """A large run whose nodes are replaced when they fail.

    Args:
        gpus: in replicas of 128, made of 16 nodes.
        mtbf: seconds between two failures of the whole fleet.
        seconds: of virtual time.
    """
    nodes = gpus // GPUS_PER_NODE
    replicas = nodes // 16
    return Simulation(
        fleet=Fleet(
            replicas=replicas,
            ranks_per_replica=16,
            gpus_per_rank=GPUS_PER_NODE,
            ranks_per_node=1,
            minimum=replicas // 2,
            idle_nodes=nodes // 64,
            repair=4 * 3600.0,
        ),
        batch=Batch(microbatches=16 * replicas, tokens_per_microbatch=8192),
        costs=SimulatedCosts(
            microbatch=0.55,
            step=0.8,
            detect=5.0,
            rebuild=5.0,
            adopt=5.0,
            restart=180.0,
            state_bytes=5e10,
            transfer_per_byte=2.5e-11,
            vault_per_byte=2.5e-11,
            storage_per_byte=4e-10,
            checkpoint=5.0,
            snapshot=0.1,
        ),
        policies=PolicyKeys(replace=True, checkpoint_every=240, snapshot_every=24, patience=3600.0),
        failures=Failures(rank_mtbf=mtbf * nodes),
        seconds=seconds,
    )
