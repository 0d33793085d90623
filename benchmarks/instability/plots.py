"""Courses of the loss and of the numbers that tell, with their envelope, the alarm and the divergence."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from pathlib import Path

from everstep.benchmarks.instability.outcomes import SMOOTHED, Outcome
from everstep.benchmarks.instability.plan import KINDS, Kind, Run
from everstep.benchmarks.instability.training import Course, Trained
from everstep.monitors.envelope import Envelope, Rule

Extreme = Callable[[Iterable[float]], float]
# (monitor, number, which of all layers and heads is drawn).
NUMBERS: tuple[tuple[str, str, Extreme], ...] = (
    ("attention", "delta2.entropy", min),
    ("attention", "delta2.norm", max),
    ("router", "entropy", min),
    ("baseline", "update_ratio", max),
)
SHOWN: tuple[Kind, ...] = (*KINDS, "router")


def plot(
    folder: Path,
    held: Mapping[Run, Trained],
    outcomes: Sequence[Outcome],
    course: Course,
    envelope: Envelope,
    rule: Rule,
) -> None:
    """Write ``courses.png`` and ``leads.png``."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    shown = [kind for kind in SHOWN if any(one.run.kind == kind for one in outcomes)]
    size = (1 + 4 * len(shown), 13)
    figure, axes = pyplot.subplots(1 + len(NUMBERS), len(shown), figsize=size, sharex=True, squeeze=False)
    for column, kind in enumerate(shown):
        axes[0][column].set_title(kind.replace("_", " "))
        mine = [one for one in outcomes if one.run.kind == kind]
        for other in (one for one in outcomes if one.run.kind == "healthy"):
            axes[0][column].plot(smoothed(held[other.run].losses), color="0.75", lw=0.7)
        for one in mine:
            (line,) = axes[0][column].plot(smoothed(held[one.run].losses), lw=1)
            colour = line.get_color()
            for row, (monitor, number, extreme) in enumerate(NUMBERS, 1):
                drawn = series(held[one.run], monitor, number, extreme)
                axes[row][column].plot(list(drawn), list(drawn.values()), color=colour, lw=0.9)
            for row in range(1 + len(NUMBERS)):
                if one.alarm is not None:
                    axes[row][column].axvline(one.alarm, color=colour, ls=":", lw=0.9)
            if one.divergence is not None:
                axes[0][column].axvline(one.divergence, color=colour, lw=0.9)
        for row, (monitor, number, extreme) in enumerate(NUMBERS, 1):
            edges = limits(envelope, monitor, number, extreme, rule, course.steps)
            axes[row][column].step(list(edges), list(edges.values()), where="post", color="k", lw=1.2)
            if edges:
                axes[row][column].set_yscale("log")
            axes[row][0].set_ylabel(f"{monitor} {number}\n({'least' if extreme is min else 'largest'} of all places)")
    axes[0][0].set_ylabel("loss, nats; grey: healthy")
    figure.supxlabel(f"step; fault from step {course.onset} on; dotted: alarm, line: loss shows it, black: envelope")
    figure.tight_layout()
    figure.savefig(folder / "courses.png", dpi=70)
    pyplot.close(figure)

    figure, axis = pyplot.subplots(figsize=(8, 3.5))
    for place, kind in enumerate(shown):
        leads = [one.lead for one in outcomes if one.run.kind == kind and one.lead is not None]
        axis.plot(leads, [place] * len(leads), "o", alpha=0.6)
    axis.set_yticks(range(len(shown)), [kind.replace("_", " ") for kind in shown])
    axis.axvline(0, color="k", lw=0.8)
    axis.set_xlabel("steps from the alarm to where the loss shows it")
    figure.tight_layout()
    figure.savefig(folder / "leads.png", dpi=110)
    pyplot.close(figure)


def smoothed(losses: Sequence[float]) -> list[float]:
    """Means of the newest; of fewer at the beginning."""
    parts = [losses[max(0, step - SMOOTHED + 1) : step + 1] for step in range(len(losses))]
    return [sum(part) / len(part) for part in parts]


def series(trained: Trained, monitor: str, number: str, extreme: Extreme) -> dict[int, float]:
    """By step, the most telling of all layers and heads."""
    found: dict[int, list[float]] = {}
    for one in trained.readings:
        if one.monitor == monitor and isfinite(value := one.numbers.get(number, float("nan"))):
            found.setdefault(one.step, []).append(value)
    return {step: extreme(values) for step, values in found.items()}


def limits(envelope: Envelope, monitor: str, number: str, extreme: Extreme, rule: Rule, steps: int) -> dict[int, float]:
    """By step, the edge of the envelope on the sick side, the widest of all layers."""
    edges: dict[int, list[float]] = {}
    for ((its, _, name), place), band in envelope.items():
        if (its, name) == (monitor, number) and place * rule.bin < steps:
            edges.setdefault(place * rule.bin, []).append(band.low if extreme is min else band.high)
    return {step: extreme(values) for step, values in sorted(edges.items())}
