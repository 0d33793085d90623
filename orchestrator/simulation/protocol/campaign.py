"""Many seeds, one after another or on several cores, and what came of them."""

import gc
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from itertools import count
from multiprocessing import get_context

from .bugs import Bug
from .checkers import Violation
from .outcome import Outcome
from .parts import Parts
from .simulation import Simulation

CHUNK = 50


def play(seeds: Iterable[int]) -> Outcome:
    """Play these seeds; a violation ends its own run only."""
    outcome, began = Outcome(), time.process_time()
    with _collected_at_once():
        for seed in seeds:
            simulation = Simulation(seed)
            try:
                simulation.run()
            except Violation as violation:
                outcome.violations[seed] = str(violation)
            outcome.seeds += 1
            outcome.seen.update(simulation.diary.seen)
            outcome.hits.update(simulation.diary.hits)
    outcome.seconds = round(time.process_time() - began, 3)
    return outcome


def campaign(first: int, jobs: int, parts: Parts | None = None, chunk: int = CHUNK) -> Iterator[Outcome]:
    """Play seeds from ``first`` on without end, on so many processes, and tell what came of each handful, in order.

    Args:
        first: seed.
        jobs: processes.
        parts: what was played before, which is not played again; what is played now is added.
        chunk: seeds in a handful.
    """
    known = parts.read() if parts is not None else {}
    handfuls = (range(start, start + chunk) for start in count(first, chunk))
    with ProcessPoolExecutor(jobs, mp_context=get_context("forkserver")) as pool:
        # A few ahead: seeds take unequally long, and nobody should wait.
        pending: deque[tuple[range, Future[Outcome] | None]] = deque()
        try:
            while True:
                while len(pending) < 3 * jobs:
                    seeds = next(handfuls)
                    pending.append((seeds, None if seeds in known else pool.submit(play, seeds)))
                seeds, played = pending.popleft()
                if played is None:
                    yield known[seeds]
                    continue
                outcome = played.result()
                if parts is not None:
                    parts.write(seeds, outcome)
                yield outcome
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


@contextmanager
def _collected_at_once() -> Iterator[None]:
    """Garbage is looked for when all is played: half a megabyte a run may wait, to look costs a tenth of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
        gc.collect()
