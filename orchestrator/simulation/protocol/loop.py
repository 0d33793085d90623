"""What the user's loop does in a simulated run: pure functions of the seed, as the real loop is of its position."""

from ....actors.rank.transaction import Verdict
from ....policies.world import Position, Work, WorkKind
from .chance import Chance


class Loop:
    """Every unit of work of a run, in order, and how each is decided.

    Args:
        seed: of the run.
        steps: optimizer steps in all.

    Attributes:
        units: by step, and then what follows the last one.
        whole: what every rank goes through.
    """

    def __init__(self, seed: int, steps: int) -> None:
        chance = Chance(f"loop {seed}")
        self._seed = seed
        self._usual = chance.between(1, 9)
        self.steps = steps
        self.units = tuple(self._units(step, chance) for step in range(steps + 1))
        self._poison = (chance.between(0, steps - 1), chance.between(0, 8)) if chance.of(0.2) else None
        self.whole = [
            (Position(step, unit), work) for step, units in enumerate(self.units) for unit, work in enumerate(units)
        ]

    def _units(self, step: int, chance: Chance) -> tuple[Work, ...]:
        """Up to two evaluations, sometimes over as many microbatches as a step, then the step; B changes at times."""
        sizes = (self._usual, chance.between(1, 9))
        units = [Work(WorkKind.EVALUATION, chance.pick(sizes)) for _ in range(chance.pick((0, 0, 0, 1, 2)))]
        if step < self.steps:
            units.append(Work(WorkKind.TRAINING, chance.pick(sizes)))
        return tuple(units)

    def verdict(self, position: Position, work: Work) -> Verdict:
        """It follows from the census, so it is the same everywhere: some first attempts at a step are void."""
        void = work.kind is WorkKind.TRAINING and position.attempt == 0 and (self._seed + position.step) % 4 == 0
        return Verdict.VOID if void else Verdict.COMMIT

    def poisons(self, position: Position, work: Work, index: int) -> bool:
        """Whether this microbatch ends whoever computes it."""
        return work.kind is WorkKind.TRAINING and (position.step, index) == self._poison
