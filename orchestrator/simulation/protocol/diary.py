"""What happened in a simulated run: lines to read when it went wrong, and counts of everything worth seeing."""

from collections import Counter
from typing import Any


class Diary:
    """Kept as values and written out only when somebody reads: nearly all runs go well.

    Attributes:
        seen: how often what happened.
        hits: faults, by kind and by the point of the protocol at which they hit.
    """

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.hits: Counter[tuple[str, str]] = Counter()
        self._entries: list[tuple[float, str, tuple[Any, ...]]] = []

    def note(self, now: float, text: str, *facts: Any) -> None:
        """Facts are immutable values, which fill the braces of the text."""
        self._entries.append((now, text, facts))

    def saw(self, what: str) -> None:
        self.seen[what] += 1

    def lines(self, newest: int | None = None) -> list[str]:
        entries = self._entries if newest is None else self._entries[-newest:]
        return [f"{now:9.3f} {text.format(*facts)}" for now, text, facts in entries]
