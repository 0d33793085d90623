"""What the user's loop does in a simulated run: pure functions of the seed, as the real loop is of its position."""

from ....actors.rank.transaction import Verdict
from ....policies.world import Position, Work, WorkKind
from .chance import Chance

# (step, what is done): evaluations before a step belong to it.
Unit = tuple[int, Work]


class Loop:
    """Every unit of work of a run, in order, and how each is decided.

    Args:
        seed: of the run.
        steps: optimizer steps in all.

    Attributes:
        training: the steps alone; weights are a function of how many of them were gone through.
    """

    def __init__(self, seed: int, steps: int) -> None:
        chance = Chance(f"loop {seed}")
        self._seed = seed
        self._usual = chance.between(1, 9)
        self.steps = steps
        self._units = [(step, work) for step in range(steps + 1) for work in self._of(step, chance)]
        self._poison = (chance.between(0, steps - 1), chance.between(0, 8)) if chance.of(0.2) else None
        self.training = [unit for unit in self._units if unit[1].kind is WorkKind.TRAINING]

    def _of(self, step: int, chance: Chance) -> list[Work]:
        """Up to two evaluations, sometimes over as many microbatches as a step, then the step; B changes at times."""
        sizes = (self._usual, chance.between(1, 9))
        units = [Work(WorkKind.EVALUATION, chance.pick(sizes)) for _ in range(chance.pick((0, 0, 0, 1, 2)))]
        if step < self.steps:
            units.append(Work(WorkKind.TRAINING, chance.pick(sizes)))
        return units

    def begun_at(self, step: int, training: bool) -> list[Unit]:
        """What a training function comes to that begins at ``step``: not the evaluations that followed the one before.

        Args:
            training: whether it begins with the step itself, as whoever joins the others there does.
        """
        late = training or step > 0
        return [
            (place, work)
            for place, work in self._units
            if place > step or (place == step and (work.kind is WorkKind.TRAINING or not late))
        ]

    def verdict(self, position: Position, work: Work) -> Verdict:
        """It follows from the census, so it is the same everywhere: some first attempts at a step are void."""
        void = work.kind is WorkKind.TRAINING and position.attempt == 0 and (self._seed + position.step) % 4 == 0
        return Verdict.VOID if void else Verdict.COMMIT

    def poisons(self, position: Position, work: Work, index: int) -> bool:
        """Whether this microbatch ends whoever computes it."""
        return work.kind is WorkKind.TRAINING and (position.step, index) == self._poison
