"""A campaign of faults with known culprits: is the right rank named, is nobody else, and how soon.

Run: ``python -m everstep.benchmarks.localisation --runs FILE`` (``--cases N`` for at most so many of each family,
``--families``, ``--ray`` for some of them on Ray). What stands in FILE is not played again.
"""

import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from everstep.benchmarks.common import console, own_ray, parser, publish
from everstep.benchmarks.localisation import figures, store
from everstep.benchmarks.localisation.judge import Outcome
from everstep.benchmarks.localisation.launch import play
from everstep.benchmarks.localisation.plan import RANKS, Family, Launch, Size, draw
from everstep.orchestrator.drivers import Driver, LocalDriver, RayDriver


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    made = parser(__doc__)
    made.add_argument("--runs", type=Path, metavar="FILE", help="where cases are kept, one a line")
    made.add_argument("--cases", type=int, metavar="N", help="at most so many of each family")
    made.add_argument("--families", nargs="+", type=Family, default=list(Family), choices=list(Family))
    made.add_argument("--ray", action="store_true", help="on Ray instead of processes of this machine")
    made.add_argument("--jobs", type=int, default=1, metavar="N", help="launches at a time; they mostly wait")
    made.add_argument("--seconds", type=float, metavar="S", help="begin no launch after so many seconds")
    options = made.parse_args(arguments)
    size = Size() if options.cases is None else Size().cut(options.cases)
    launches = draw(options.seed, size, options.families)
    held = store.load(options.runs, options.seed) if options.runs else []
    cluster = "ray" if options.ray else "local"
    todo = store.missing(launches, held, cluster)
    until = time.monotonic() + options.seconds if options.seconds else None
    if options.ray:
        with own_ray(RANKS):
            held += _played(todo, RayDriver(), cluster, options, until)
    else:
        held += _played(todo, LocalDriver(), cluster, options, until)
    console().print(figures.table_of(held))
    publish(f"a campaign, seed {options.seed}", figures.rows_of(held), options)
    for line in figures.misses_of(held):
        print(line)


def _played(
    launches: Sequence[Launch], driver: Driver, cluster: str, options: Namespace, until: float | None
) -> list[Outcome]:
    def one(launch: Launch) -> list[Outcome]:
        if until is not None and time.monotonic() > until:
            return []
        began = time.monotonic()
        try:
            outcomes = play(launch, driver, cluster)
        except RuntimeError as error:
            # The others are not lost with it.
            print(error, file=sys.stderr)
            return []
        right = sum(outcome.right for outcome in outcomes)
        print(f"{launch.name}: {right} of {len(outcomes)} in {time.monotonic() - began:.1f} s", file=sys.stderr)
        return outcomes

    found: list[Outcome] = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for outcomes in pool.map(one, launches):
            if options.runs is not None:
                store.append(options.runs, options.seed, outcomes)
            found += outcomes
    if len(found) < sum(len(launch.cases) for launch in launches):
        print("not all launches were played; go on with the same --runs", file=sys.stderr)
    return found


if __name__ == "__main__":
    main()
