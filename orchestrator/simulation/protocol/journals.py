"""What every controller life of a simulated run has written down; read through JSON, as it is from files."""

import json
from typing import Any

from ...machine import events
from ...machine.past import Past, fold
from .chance import Chance

_TORN = 0.1
_LOST = 0.15


class Journals:
    """The journals of one run, by term.

    Args:
        chance: of the run.

    Attributes:
        torn: whether something was missing when they were read last.
    """

    def __init__(self, chance: Chance) -> None:
        self._chance = chance
        self.torn = False
        self._written: list[list[tuple[float, events.Record]]] = []
        # Of each journal, those of its first lines that somebody has read: a line is parsed once.
        self._parsed: list[list[dict[str, Any]]] = []

    def begin(self) -> None:
        """A journal for the next term."""
        self._written.append([])
        self._parsed.append([])

    def write(self, term: int, now: float, record: events.Record) -> None:
        self._written[term - 1].append((now, record))

    def read(self) -> Past | None:
        """What they say; sometimes the last lines of one are lost; None if all of them are."""
        self.torn = self._chance.of(_LOST)
        if self.torn:
            return None
        entries: list[dict[str, Any]] = []
        for written, parsed in zip(self._written, self._parsed, strict=True):
            parsed += json.loads(json.dumps([_entry(*line) for line in written[len(parsed) :]]))
            torn = self._chance.between(1, 3) if self._chance.of(_TORN) else 0
            self.torn |= torn > 0
            entries += parsed[: len(parsed) - torn]
        return fold(entries)


def _entry(when: float, record: events.Record) -> dict[str, Any]:
    generation = str(record.generation) if record.generation else None
    return {"time": when, "what": record.what, "generation": generation, **record.facts}
