"""The loss curves of all arms, and how far each is from the curve that it should follow."""

from collections.abc import Sequence
from pathlib import Path

from everstep.benchmarks.trajectory.course import Course
from everstep.benchmarks.trajectory.figures import REFERENCES, ByArm, gaps
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

# Colours that the colour-blind can tell apart (Okabe and Ito).
_COLOURS = ("#000000", "#0072B2", "#999999", "#009E73", "#D55E00", "#CC79A7")
# Below this distance the axis is linear, so that zero has a place.
_LINEAR_BELOW = 1e-7


def draw(path: Path, course: Course, seeds: Sequence[ByArm]) -> None:
    """Write a PNG: the curves of the first seed above, the largest gap over all seeds below."""
    figure = Figure(figsize=(8, 7), dpi=90, layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    colours = dict(zip(seeds[0], _COLOURS, strict=False))
    for arm, colour in colours.items():
        dashes = "-" if arm not in REFERENCES else (0, (4, 2 + len(arm) % 3))
        above.plot(seeds[0][arm].losses, color=colour, linestyle=dashes, linewidth=1.5, label=arm.replace("_", " "))
        if arm in REFERENCES:
            below.plot(gaps(arm, seeds), color=colour, linewidth=1.5)
    for axes in (above, below):
        for fault in course.faults:
            axes.axvline(fault.step, color="#bbbbbb", linewidth=0.8, zorder=0)
    above.legend()
    above.set_ylabel("loss of one seed, nats per byte")
    above.set_title(
        f"{course.ranks} ranks; at each grey line one of them is lost in the reduction; seeds: {len(seeds)}"
    )
    below.set_yscale("symlog", linthresh=_LINEAR_BELOW)
    below.set_ylim(bottom=-_LINEAR_BELOW / 5)
    below.set_ylabel("largest distance from undisturbed, nats")
    below.set_xlabel("step")
    below.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.savefig(path)
