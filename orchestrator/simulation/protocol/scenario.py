"""What one seed stands for: the run, its policies, and the trouble that it will have."""

from dataclasses import dataclass

from ....conf.elastic import Timeouts
from .chance import Chance


@dataclass(frozen=True)
class Scenario:
    """Everything about a run that is drawn before it begins.

    Attributes:
        seed: that it comes from.
        replicas: of the first world.
        nodes: machines that its ranks are on.
        steps: optimizer steps.
        skip_poison: whether a poison microbatch is left out.
        timeouts: of the run.
        faults: how many hit it, if it lives so long.
        calm: how many points of the protocol lie between two faults, on average.
        doubling: share of control messages that arrive a second time.
    """

    seed: int
    replicas: int
    nodes: tuple[str, ...]
    steps: int
    skip_poison: bool
    timeouts: Timeouts
    faults: int
    calm: float
    doubling: float


def draw(seed: int) -> Scenario:
    """The scenario of a seed."""
    chance = Chance(f"scenario {seed}")
    replicas = chance.pick((2, 3, 4, 5, 6, 8))
    steps = chance.between(1, 6)
    return Scenario(
        seed=seed,
        replicas=replicas,
        nodes=tuple(f"node {place}" for place in range(chance.between(2, replicas + 1))),
        steps=steps,
        skip_poison=chance.of(0.7),
        timeouts=Timeouts(),
        faults=chance.between(0, 2 * replicas),
        calm=chance.pick((4.0, 8.0, 16.0)) * replicas,
        doubling=chance.pick((0.0, 0.0, 0.05)),
    )
