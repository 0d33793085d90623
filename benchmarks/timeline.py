"""From the lines that ranks trace to the time that a recovery took beyond computing. Pure arithmetic on seconds."""

import json
import statistics
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

Span = tuple[float, float]


@dataclass
class RankTrace:
    """What one rank did, on the clock that all processes of a machine share.

    Attributes:
        computed: microbatches by step, from the load of the batch to the end of its fold.
        decided: when each step was committed here.
        applied: when each step's update was done here.
        generations: in which generation each step was committed.
    """

    computed: dict[int, list[Span]] = field(default_factory=dict)
    decided: dict[int, float] = field(default_factory=dict)
    applied: dict[int, float] = field(default_factory=dict)
    generations: dict[int, str] = field(default_factory=dict)


def read_traces(folder: Path) -> dict[str, RankTrace]:
    """By incarnation."""
    return {path.stem: read_trace(path.read_text(encoding="utf-8").splitlines()) for path in folder.glob("*.jsonl")}


def read_trace(lines: Iterable[str]) -> RankTrace:
    """One rank's."""
    trace = RankTrace()
    for line in map(json.loads, lines):
        step = line["step"]
        match line["event"]:
            case "computed":
                begin, end = line["span"]
                trace.computed.setdefault(step, []).append((begin, end))
            case "decided" if line["verdict"] == "commit":
                trace.decided[step] = line["at"]
                trace.generations[step] = line["generation"]
            case "applied":
                trace.applied[step] = line["at"]
    return trace


def uncovered(whole: Span, covers: Iterable[Span]) -> float:
    """Seconds of ``whole`` that lie in none of the ``covers``."""
    begin, end = whole
    left = max(0.0, end - begin)
    reached = begin
    for low, high in sorted(covers):
        low, high = max(low, reached), min(high, end)
        if high > low:
            left -= high - low
            reached = high
    return left


def step_committed_after(moment: float, survivors: Sequence[RankTrace]) -> int:
    """The first step that not every survivor had committed at this moment."""
    steps = sorted(set.intersection(*(set(trace.decided) for trace in survivors)))
    return next(step for step in steps if committed(step, survivors) > moment)


def first_commit_in(generations: Collection[str], ranks: Sequence[RankTrace]) -> tuple[int, list[RankTrace]]:
    """The first step that was committed in one of these generations, and by whom.

    Raises:
        ValueError: none was.
    """
    steps = {step for trace in ranks for step, held in trace.generations.items() if held in generations}
    first = min(steps)
    return first, [trace for trace in ranks if first in trace.decided]


def committed(step: int, ranks: Sequence[RankTrace]) -> float:
    """When the last of the ranks committed a step."""
    return max(trace.decided[step] for trace in ranks)


def step_seconds(ranks: Sequence[RankTrace]) -> float:
    """How long a step takes, by the median."""
    ends = [committed(step, ranks) for step in sorted(ranks[0].decided)]
    return statistics.median(later - sooner for sooner, later in pairwise(ends))


def final_reduction(step: int, ranks: Sequence[RankTrace]) -> float:
    """Seconds from the end of a step's last microbatch to its commit on the last rank: what every step pays."""
    return committed(step, ranks) - max(end for trace in ranks for _, end in trace.computed[step])


def idle(whole: Span, ranks: Sequence[RankTrace]) -> float:
    """Seconds of ``whole`` in which no rank is inside a microbatch."""
    return uncovered(whole, (span for trace in ranks for spans in trace.computed.values() for span in spans))


def undisturbed_reductions(members: Sequence[RankTrace]) -> list[float]:
    """Final reductions of the steps in the members' last generation, without the step in which it began."""
    last = max(members[0].decided)
    newest = members[0].generations[last]
    calm = [step for step in members[0].decided if members[0].generations.get(step - 1) == newest]
    return [final_reduction(step, members) for step in calm]
