"""Everything that is random in one simulated run, from one seed."""

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Chance:
    """Draws of one run; the same seed gives the same draws, on every machine.

    Args:
        seed: an integer or a text; nothing else is hashed alike everywhere.
    """

    def __init__(self, seed: int | str) -> None:
        self._random = random.Random(seed)
        # In [0, 1).
        self.share = self._random.random

    def of(self, share: float) -> bool:
        """Whether something happens that happens so often."""
        return self.share() < share

    def pick(self, options: Sequence[T]) -> T:
        return options[int(self.share() * len(options))]

    def between(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        return low + int(self.share() * (high - low + 1))

    def within(self, seconds: float) -> float:
        return seconds * self.share()

    def short(self) -> float:
        """Seconds that two things may lie apart which happen at about the same time; often exactly at the same."""
        return self.pick((0.0, 0.001, 0.01, 0.05)) * self.share()

    def long(self) -> float:
        """Seconds that one microbatch takes."""
        return 0.3 * self.share()

    def latency(self) -> float:
        """Seconds that a message is under way; now and then very long."""
        return self.share() * (0.8 if self.share() < 0.05 else 0.02)
