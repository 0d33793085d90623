"""How early monitors see that a training is getting sick, and whether they name what it has.

Trains what is not in the file of runs yet, then calibrates on development seeds and evaluates on others.

Run: ``python -m everstep.benchmarks.instability --plot FOLDER``
"""

import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import torch
from everstep.benchmarks.common import console, parser, publish
from everstep.benchmarks.instability import figures, plots, store
from everstep.benchmarks.instability.outcomes import UNSEEN, Outcome, calibrated, outcome
from everstep.benchmarks.instability.plan import SEEDS, STRENGTHS, Part, Run, part_of, runs
from everstep.benchmarks.instability.training import Course, Trained, train
from everstep.examples.text import default_cache, prepare, whole_text
from everstep.monitors.envelope import Rule
from rich.table import Table

# Of readings ten steps apart: a bin holds five of each place and run.
RULE = Rule(persistence=3, enough=8, window=32, floor=0.02, bin=50)


def fill(path: Path, course: Course, kinds: Collection[str], parts: Sequence[Part], minutes: float) -> None:
    """Train what is missing of these kinds and parts, one run after the other."""
    held = store.load(path, course)
    wanted = [run for part in parts for run in runs(part)]
    missing = [run for run in wanted if run.kind in kinds and run not in held]
    text = torch.from_numpy(whole_text(prepare()).copy()) if missing else torch.empty(0)
    deadline = time.monotonic() + 60 * minutes
    for place, run in enumerate(missing):
        if time.monotonic() > deadline:
            return
        begun = time.monotonic()
        trained = train(course, run.fault, run.seed, text)
        store.append(path, course, run, trained)
        took, last = time.monotonic() - begun, trained.losses[-1]
        print(f"{place + 1} of {len(missing)}: {run.kind} {run.seed}, loss {last:.2f}, {took:.0f} s", file=sys.stderr)


def show(outcomes: Sequence[Outcome]) -> None:
    """A line for each run."""
    table = Table("kind", "seed", "alarm", "baseline", "loss", "lead", "first", "fits", title="evaluation")
    for one in sorted(outcomes, key=lambda one: (one.run.kind, one.run.seed)):
        steps = (one.alarm, one.baseline, one.divergence, one.lead)
        first = ", ".join(" ".join(names) for names in one.first)
        numbers = ["" if step is None else str(step) for step in steps]
        table.add_row(one.run.kind, str(one.run.seed), *numbers, first, "; ".join(sorted(one.faults)))
    console().print(table)
    fired = figures.signatures(outcomes)
    kinds = sorted({kind for shares in fired.values() for kind in shares})
    table = Table("alarmed in", *kinds, title="signatures: share of runs")
    for (monitor, number), shares in fired.items():
        table.add_row(f"{monitor} {number}", *(f"{shares[kind]:.2f}" for kind in kinds))
    console().print(table)


def judged(held: Mapping[Run, Trained], course: Course, path: Path | None) -> dict[str, list[Outcome]]:
    """Evaluated runs by the envelope of development seeds, by that of their own past, and as a run of everstep is.

    That goes by its own past as well, and by fewer numbers: those that do not need a look into the forward.
    """
    healthy = [held[run] for run in runs("development") if run.kind == "healthy" and run in held]
    envelope = calibrated(healthy, RULE)
    tested = {run: trained for run, trained in held.items() if part_of(run) == "evaluation"}
    by_seeds = [outcome(run, trained, course, envelope, RULE) for run, trained in tested.items()]
    by_past = [outcome(run, trained, course, None, RULE) for run, trained in tested.items()]
    in_a_run = [outcome(run, trained, course, None, RULE, UNSEEN) for run, trained in tested.items()]
    print(f"{len(healthy)} healthy runs of development seeds")
    if path is not None:
        plots.plot(path, held, by_seeds, course, envelope, RULE)
    return {"": by_seeds, "own_past_": by_past, "in_a_run_": in_a_run}


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    made = parser(__doc__)
    default = default_cache() / "instability.jsonl"
    made.add_argument("--runs", type=Path, default=default, help=f"where trained runs are kept (default: {default})")
    made.add_argument("--kinds", nargs="+", choices=list(STRENGTHS), default=list(STRENGTHS), help="train only these")
    made.add_argument("--parts", nargs="+", choices=list(SEEDS), default=list(SEEDS), help="train only these")
    made.add_argument("--minutes", type=float, default=1e6, help="begin no run after so many (default: no end)")
    made.add_argument("--plot", type=Path, metavar="FOLDER", help="write courses.png and leads.png there")
    options = made.parse_args(arguments)
    # Small tensors: more threads only wait for each other; and one thread repeats to the bit.
    torch.set_num_threads(1)
    course = Course()
    fill(options.runs, course, options.kinds, options.parts, options.minutes)
    held = store.load(options.runs, course)
    outcomes = judged(held, course, options.plot)
    show(outcomes[""])
    rows = [row for prefix, mine in outcomes.items() for row in figures.rows(mine, prefix)]
    publish(f"instability, {len(held)} runs", rows, options)


if __name__ == "__main__":
    main()
