"""What will go wrong in a soak, drawn from a seed before it begins."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

STEPS_BETWEEN = 3


class Kind(StrEnum):
    """What happens, to whom."""

    KILL_RANK = "kill a rank"
    STOP_RANK = "stop a rank"
    KILL_SPARE = "kill a spare"
    KILL_CONTROLLER = "kill the controller"
    STOP_CONTROLLER = "stop the controller"
    KILL_VAULT = "kill a vault"
    KILL_SENTINEL = "kill a sentinel"
    KILL_NODE = "kill a node"
    DRAIN = "drain a node"
    SCALE = "scale"

    @property
    def asked(self) -> bool:
        """Whether it is asked for through the run's handle, and no failure."""
        return self in (Kind.DRAIN, Kind.SCALE)


@dataclass(frozen=True)
class Strike:
    """One fault.

    Attributes:
        pick: in [0, 1), which of those whom it may hit.
        delay: seconds after the step was let go.
        wakes: seconds after which a stopped process is woken.
    """

    kind: Kind
    pick: float
    delay: float
    wakes: float


@dataclass(frozen=True)
class Stage:
    """Faults that come at once, in a step that begins with everybody there."""

    step: int
    strikes: tuple[Strike, ...]


def draw(seed: int, faults: int) -> tuple[Stage, ...]:
    """So many faults, every kind about as often; one in four comes on top of the one before."""
    rng = random.Random(seed)
    groups: list[list[Strike]] = []
    for kind in _kinds(rng, faults):
        # Some wake before anybody has missed them, some after they were given up.
        strike = Strike(kind, rng.random(), rng.uniform(0, 0.3), rng.choice((0.3, 2.0, 10.0)))
        if groups and len(groups[-1]) == 1 and rng.random() < 0.25:
            groups[-1].append(strike)
        else:
            groups.append([strike])
    return tuple(Stage(2 + STEPS_BETWEEN * place, tuple(strikes)) for place, strikes in enumerate(groups))


def _kinds(rng: random.Random, count: int) -> Iterator[Kind]:
    deck: list[Kind] = []
    for _ in range(count):
        if not deck:
            deck = list(Kind)
            rng.shuffle(deck)
        yield deck.pop()
