"""Many seeds, one after another or on several cores, and what came of them."""

from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import count, islice
from multiprocessing import get_context

from .bugs import Bug
from .checkers import Violation
from .faults import COUNTED
from .simulation import Simulation

_CHUNK = 50


@dataclass
class Outcome:
    """What came of some seeds.

    Attributes:
        seeds: how many were played.
        seen: how often what happened.
        hits: faults, by kind and by the point of the protocol at which they hit.
        violations: by seed, each with its story.
    """

    seeds: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    hits: Counter[tuple[str, str]] = field(default_factory=Counter)
    violations: dict[int, str] = field(default_factory=dict)

    @property
    def faults(self) -> int:
        """Crashes, stops and partitions; what is lost, late or doubled is not counted."""
        return sum(number for (kind, _), number in self.hits.items() if kind in COUNTED)

    def add(self, other: "Outcome") -> None:
        self.seeds += other.seeds
        self.seen += other.seen
        self.hits += other.hits
        self.violations |= other.violations


def play(seeds: Iterable[int]) -> Outcome:
    """Play these seeds; a violation ends its own run only."""
    outcome = Outcome()
    for seed in seeds:
        simulation = Simulation(seed)
        try:
            simulation.run()
        except Violation as violation:
            outcome.violations[seed] = str(violation)
        outcome.seeds += 1
        outcome.seen += simulation.diary.seen
        outcome.hits += simulation.diary.hits
    return outcome


def campaign(first: int, jobs: int) -> Iterator[Outcome]:
    """Play seeds from ``first`` on without end, on so many processes, and tell what came of each handful."""
    chunks = (range(start, start + _CHUNK) for start in count(first, _CHUNK))
    if jobs == 1:
        yield from map(play, chunks)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("forkserver")) as pool:
        # A few ahead: seeds take unequally long, and nobody should wait.
        pending = [pool.submit(play, chunk) for chunk in islice(chunks, 3 * jobs)]
        try:
            while True:
                yield pending.pop(0).result()
                pending.append(pool.submit(play, next(chunks)))
        finally:
            pool.shutdown(cancel_futures=True)


def find(bug: Bug, seeds: Iterable[int]) -> tuple[int, Violation] | None:
    """The first seed that shows a planted bug, with what was violated; None if no seed shows it."""
    with bug.plant():
        for seed in seeds:
            try:
                Simulation(seed).run()
            except Violation as violation:
                return seed, violation
    return None
