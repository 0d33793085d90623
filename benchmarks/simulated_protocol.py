"""The controller's machine and the ranks' ledgers in virtual time, under crashes, stops and partitions at any instant.

No process is started: time is virtual, and a seed is always the same run. Checkers look on; planted bugs show that they
would find something. A seed that violates a rule is printed with its story, and ``--seed N`` alone plays it again.
With ``--part FILE`` an interrupted campaign goes on where it was, if the code is still the same.

Run: ``python -m everstep.benchmarks.simulated_protocol --faults 1000000 --jobs 2``
"""

import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from everstep.benchmarks.common import Row, console, parser, publish
from everstep.orchestrator.simulation.protocol.bugs import BUGS
from everstep.orchestrator.simulation.protocol.campaign import campaign, find
from everstep.orchestrator.simulation.protocol.checkers import Violation
from everstep.orchestrator.simulation.protocol.faults import COUNTED, POINTS
from everstep.orchestrator.simulation.protocol.outcome import Outcome
from everstep.orchestrator.simulation.protocol.parts import Parts, fingerprint
from everstep.orchestrator.simulation.protocol.simulation import Simulation
from rich.table import Table

_PROGRESS_S = 10.0
_BUG_SEEDS = 500
_SHOWN = 5


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    made = parser(__doc__)
    made.set_defaults(seed=None)
    size = made.add_mutually_exclusive_group()
    size.add_argument("--seeds", type=int, help="play so many seeds, from --seed on")
    size.add_argument("--faults", type=int, help="play seeds until there were so many faults (default: 20000)")
    made.add_argument("--jobs", type=int, default=1, help="processes (default: 1)")
    made.add_argument("--part", type=Path, help="keep what is played in this file, and play nothing of it again")
    options = made.parse_args(arguments)
    if options.seed is not None and options.seeds is None and options.faults is None:
        sys.exit(0 if replay(options.seed) else 1)
    options.seed = options.seed or 0
    outcome = Outcome()
    parts = None if options.part is None else Parts(options.part, fingerprint())
    for part in _told(campaign(options.seed, options.jobs, parts)):
        outcome.add(part)
        if outcome.seeds >= options.seeds if options.seeds else outcome.faults >= (options.faults or 20_000):
            break
    console().print(phases(outcome.hits))
    found = planted()
    for seed in sorted(outcome.violations)[:_SHOWN]:
        print(outcome.violations[seed], file=sys.stderr)
    publish("simulated protocol", rows(outcome, found), options)
    if outcome.violations or found < len(BUGS):
        sys.exit(1)


def replay(seed: int) -> bool:
    """Play one seed and print all that happened; whether it went well."""
    simulation = Simulation(seed)
    violation = None
    try:
        simulation.run()
    except Violation as error:
        violation = str(error).splitlines()[0]
    print(simulation.scenario, *simulation.diary.lines(), sep="\n")
    print(violation or f"seed {seed} ends as {simulation.controller.state.phase}: no violation")
    return violation is None


def rows(outcome: Outcome, found: int) -> list[Row]:
    return [
        Row("simulated_faults", outcome.faults, "faults"),
        Row("simulated_seeds", outcome.seeds, "runs"),
        Row("simulated_violations", len(outcome.violations), "runs"),
        Row("planted_bugs", len(BUGS), "bugs"),
        Row("planted_bugs_found", found, "bugs"),
        Row("faults_per_core_second", outcome.faults / outcome.seconds, "1/s"),
    ]


def phases(hits: Counter[tuple[str, str]]) -> Table:
    """Which kinds of faults hit at which points of the protocol; above the line those that are counted."""
    shown = Table("fault", *POINTS, title="faults by what the rank was about", title_justify="left")
    for column in shown.columns[1:]:
        column.justify = "right"
    others = sorted({kind for kind, _ in hits} - set(COUNTED))
    for kind in (*COUNTED, *others):
        shown.add_row(kind, *(str(hits[kind, point]) for point in POINTS), end_section=kind == COUNTED[-1])
    return shown


def planted() -> int:
    """Plant each bug and look for it; how many were found."""
    shown = Table("planted bug", "found by seed", "as a violation of", title="planted bugs", title_justify="left")
    found = 0
    for bug in BUGS:
        first = find(bug, range(_BUG_SEEDS))
        if first is None:
            shown.add_row(bug.name, "not found", f"nothing in {_BUG_SEEDS} seeds")
        else:
            found += 1
            shown.add_row(bug.name, str(first[0]), first[1].check)
    console().print(shown)
    return found


def _told(parts: Iterator[Outcome]) -> Iterator[Outcome]:
    """The same, with a sign of life now and then."""
    started = told = time.monotonic()
    whole = Outcome()
    for part in parts:
        whole.add(part)
        yield part
        if time.monotonic() - told > _PROGRESS_S:
            told = time.monotonic()
            print(
                f"{whole.faults:,} faults in {whole.seeds:,} runs, {len(whole.violations)} violations, "
                f"{told - started:.0f} s",
                file=sys.stderr,
                flush=True,
            )


if __name__ == "__main__":
    main()
