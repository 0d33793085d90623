"""What is run once more on all peers at a boundary: one layer and one part of an optimizer, in rotation. Pure.

After SCOUT's in-situ replay (arXiv 2608.11034). Nothing is broadcast: what goes in is a pure function of the seed, the
step and the layer, and of the state that peers hold alike. What each must agree on beforehand stands in the names under
which signatures are told: whoever would run something else brings other names, so nobody is blamed for it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

# Numbers of a parameter in one part.
PART = 1 << 16


@dataclass(frozen=True)
class Part:
    """Rows of a parameter, along its first dimension."""

    parameter: str
    start: int
    stop: int

    def __str__(self) -> str:
        return f"{self.parameter}[{self.start}:{self.stop}]"


def layer_at(turn: int, layers: Sequence[str]) -> str | None:
    """Which layer is run again in the ``turn``-th replay; None if there is none."""
    return layers[turn % len(layers)] if layers else None


def part_at(turn: int, shapes: Mapping[str, Sequence[int]]) -> Part | None:
    """Which part of which parameter is updated again in the ``turn``-th replay.

    Args:
        turn: counts replays from 0.
        shapes: of parameters by name, in an order that is the same on all ranks.

    Returns:
        Rows that hold at most ``PART`` numbers, or one row if that holds more; None if there is nothing.
    """
    parts = {name: (_rows(shape), rows_of_a_part(shape)) for name, shape in shapes.items() if prod(shape)}
    counts = {name: -(-rows // step) for name, (rows, step) in parts.items()}
    if not counts:
        return None
    place = turn % sum(counts.values())
    for name, count in counts.items():
        if place < count:
            rows, step = parts[name]
            return Part(name, place * step, min(rows, (place + 1) * step))
        place -= count
    raise AssertionError("the parts are fewer than were counted")


def rows_of_a_part(shape: Sequence[int]) -> int:
    """How many rows of a parameter of this shape are a part."""
    return max(1, PART // max(1, prod(shape[1:])))


def _rows(shape: Sequence[int]) -> int:
    return shape[0] if shape else 1
