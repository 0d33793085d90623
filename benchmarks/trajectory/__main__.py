"""Half of the ranks are lost, one by one, in the middle of reductions: what it does to the loss, and what it costs.

Run: ``python -m everstep.benchmarks.trajectory``
"""

from collections.abc import Sequence
from pathlib import Path

from everstep.benchmarks.common import console, parser, publish
from everstep.benchmarks.trajectory import elastic, restart
from everstep.benchmarks.trajectory.course import Course, Outcome
from everstep.benchmarks.trajectory.elastic import Arm
from everstep.benchmarks.trajectory.figures import (
    ADAPTIVE,
    EXACT,
    FLOAT,
    RESTART,
    UNDISTURBED,
    UNDISTURBED_FLOAT,
    ByArm,
    arm_table,
    gaps,
    identical,
    rows_of,
)

ARMS = {
    UNDISTURBED: Arm("exact", disturbed=False),
    EXACT: Arm("exact"),
    UNDISTURBED_FLOAT: Arm("float", disturbed=False),
    FLOAT: Arm("float", "versatile"),
    ADAPTIVE: Arm("float", "adaptive_world"),
}


def measure(course: Course, checkpoint_every: int) -> ByArm:
    """All arms of one seed, one after another."""
    outcomes: dict[str, Outcome] = {}
    for name, arm in ARMS.items():
        console().print(f"seed {course.seed}: {name}")
        outcomes[name] = elastic.run(arm, course)
    console().print(f"seed {course.seed}: {RESTART}")
    return {**outcomes, RESTART: restart.run(course, checkpoint_every)}


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    made = parser(__doc__)
    made.add_argument("--seeds", type=int, default=3, help="how many, from --seed on (default: 3)")
    made.add_argument("--steps", type=int, default=40, help="optimizer steps of each run (default: 40)")
    made.add_argument("--checkpoint-every", type=int, default=1, help="steps, where it restarts (default: 1)")
    made.add_argument("--quick", action="store_true", help="one seed, three ranks, five steps: does all of it work")
    made.add_argument("--plot", type=Path, metavar="FILE", help="draw the loss curves to this PNG")
    options = made.parse_args(arguments)
    if options.plot is not None:
        # Here, so that it is missed before the work and not after it.
        from everstep.benchmarks.trajectory.curves import draw

    size = {"ranks": 3, "steps": 5, "every": 2} if options.quick else {"ranks": 8, "steps": options.steps, "every": 5}
    if min(options.seeds, options.checkpoint_every) < 1:
        made.error("--seeds and --checkpoint-every must be at least 1")
    try:
        courses = [Course(options.seed + number, **size) for number in range(1 if options.quick else options.seeds)]
    except ValueError as error:
        made.error(str(error))
    seeds = [measure(course, options.checkpoint_every) for course in courses]

    course = courses[0]
    if options.plot is not None:
        draw(options.plot, course, seeds)
    console().print(arm_table(seeds, course.tokens, course.steps * course.microbatches))
    publish(f"{len(course.faults)} of {course.ranks} ranks lost", rows_of(seeds, course.tokens, options.seed), options)
    if max(gaps(EXACT, seeds)) or not identical(seeds):
        raise SystemExit("an exact run with losses is not the one without them")


if __name__ == "__main__":
    main()
