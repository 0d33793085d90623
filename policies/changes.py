"""What is different from a step on, since everybody has gone back to it: a pure function of the step, as all else is.

Changes are a part of what is saved, and are told with every state that is gone back to; so every rank, whenever it
came, holds the same ones.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Change:
    """One of them.

    Attributes:
        number: how many there were when it was decided; names it.
        step: the first one that it holds for.
        reason: why, in one line.
        skip_steps: the data of so many steps is passed over.
        learning_rate: what every learning rate is multiplied with.
        switches: what the training function finds in ``ctx.switches``.
    """

    number: int
    step: int
    reason: str = ""
    skip_steps: int = 0
    learning_rate: float = 1.0
    switches: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = [f"the data of {self.skip_steps} steps is passed over"] if self.skip_steps else []
        parts += [f"learning rates times {self.learning_rate:g}"] if self.learning_rate != 1 else []
        parts += [f"{name} is {text}" for name, text in self.switches.items()]
        return f"from step {self.step} on: {', '.join(parts) or 'nothing is different'}"


Changes = tuple[Change, ...]


def joined(saved: Iterable[Change], told: Iterable[Change]) -> Changes:
    """Those that a saved state holds, and those that were decided since."""
    return tuple(held for _, held in sorted({(one.number, one.step): one for one in (*saved, *told)}.items()))


def learning_rate(changes: Iterable[Change], step: int) -> float:
    """What learning rates are multiplied with in this step."""
    return math.prod(one.learning_rate for one in changes if one.step <= step)


def skipped(changes: Iterable[Change], step: int) -> tuple[tuple[int, int], ...]:
    """(step, steps) of each window of data that is passed over before this step."""
    return tuple((one.step, one.skip_steps) for one in changes if one.step <= step and one.skip_steps)


def switches(changes: Iterable[Change], step: int) -> dict[str, str]:
    """What the training function reads in this step; later changes win."""
    held: dict[str, str] = {}
    for one in changes:
        if one.step <= step:
            held.update(one.switches)
    return held


def following(changes: Collection[Change]) -> int:
    """The number of the next one."""
    return max((one.number for one in changes), default=0) + 1
