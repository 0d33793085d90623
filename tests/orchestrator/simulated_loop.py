"""What the user's loop does in a simulated run: pure functions of the seed, as the real loop is of its position."""

import random

from everstep.actors.rank.transaction import Verdict
from everstep.policies.world import Position, Work, WorkKind


class Loop:
    """Every unit of work of a run, in order, and how each is decided.

    Attributes:
        steps: optimizer steps in all.
        units: by step, and then what follows the last one.
    """

    def __init__(self, seed: int) -> None:
        chance = random.Random(f"loop {seed}")
        self._seed = seed
        self._usual = chance.randint(1, 9)
        self.steps = chance.randint(1, 3)
        self.units = tuple(self._units(step, chance) for step in range(self.steps + 1))
        self._poison = (chance.randrange(self.steps), chance.randint(0, 8)) if chance.random() < 0.2 else None

    def _units(self, step: int, chance: random.Random) -> tuple[Work, ...]:
        """Up to two evaluations, sometimes over as many microbatches as a step, then the step; B changes at times."""
        sizes = (self._usual, chance.randint(1, 9))
        units = [Work(WorkKind.EVALUATION, chance.choice(sizes)) for _ in range(chance.choice((0, 0, 0, 1, 2)))]
        if step < self.steps:
            units.append(Work(WorkKind.TRAINING, chance.choice(sizes)))
        return tuple(units)

    @property
    def whole(self) -> list[tuple[Position, Work]]:
        """What every rank goes through."""
        return [
            (Position(step, unit), work) for step, units in enumerate(self.units) for unit, work in enumerate(units)
        ]

    def verdict(self, position: Position, work: Work) -> Verdict:
        """It follows from the census, so it is the same everywhere: some first attempts at a step are void."""
        void = work.kind is WorkKind.TRAINING and position.attempt == 0 and (self._seed + position.step) % 4 == 0
        return Verdict.VOID if void else Verdict.COMMIT

    def poisons(self, position: Position, work: Work, index: int) -> bool:
        """Whether this microbatch ends whoever computes it."""
        return work.kind is WorkKind.TRAINING and (position.step, index) == self._poison
