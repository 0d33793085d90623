"""An evaluation as a unit of work: split over the world, decided like a step, and as hard to kill."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ...conf.errors import LoopError
from ...policies.world import Work, WorkKind, World
from .census import Census, Contribution, Part, Statement
from .communicator import Communicator
from .tally import checked
from .transaction import Verdict

Evaluate = Callable[[Any], Mapping[str, Any]]


class Evaluation:
    """Numbers of every microbatch of a data set, each computed once.

    Args:
        microbatches: of the data set.
        device: of the collectives.
    """

    def __init__(self, microbatches: int, device: torch.device) -> None:
        self.work = Work(WorkKind.EVALUATION, microbatches)
        self._device = device
        self._contributions: dict[int, Contribution] = {}
        self.place = ""

    def begin(self) -> None:
        self._contributions = {}

    def add(self, index: int, numbers: Mapping[str, tuple[float | Tensor, float]]) -> None:
        """What was computed of one microbatch."""
        self._contributions[index] = Contribution(numbers=numbers)

    def reduce(self, communicator: Communicator, part: Part) -> Census:
        # A loop that evaluates on one rank only must not meet the others' gradients.
        communicator.meet(self.place)
        held = {**dict.fromkeys(part.poison, Contribution()), **self._contributions}
        maxima = torch.zeros(0, dtype=torch.float64, device=self._device)
        statement = Statement(held, self.work.microbatches, (), maxima, part=part)
        return statement.begin(communicator).finish(communicator)

    def forget(self) -> None:
        pass

    def judge(self, census: Census) -> Verdict:
        return Verdict.COMMIT

    def conclude(self, verdict: Verdict, census: Census, world: World) -> None:
        pass


class InOrder:
    """Each sample of a data set once, in its order; the last microbatch may be shorter."""

    def __init__(self, length: int, size: int) -> None:
        self.length = length
        self.size = size
        self.microbatches = math.ceil(length / size)

    def samples(self, step: int, index: int) -> tuple[int, ...]:
        """Sample ids of a microbatch, in any step."""
        return tuple(range(index * self.size, min(self.length, (index + 1) * self.size)))


def numbers_of(said: object) -> dict[str, tuple[float | Tensor, float]]:
    """What ``eval_fn`` returned for one microbatch: by name a number, or a number and its weight.

    Raises:
        LoopError: it is something else.
    """
    if not isinstance(said, Mapping):
        raise LoopError(
            f"eval_fn returned {type(said).__name__}: it must return a dict of numbers, or of (number, weight)"
        )
    found = {}
    for key, held in said.items():
        value, weight = held if isinstance(held, tuple) and len(held) == 2 else (held, 1.0)
        name, number, weighed = checked(key, value, weight)
        found[name] = (number, weighed)
    return found
