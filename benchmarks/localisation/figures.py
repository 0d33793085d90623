"""What a campaign says: a table by kind and interval, the misses, and the rows for programs."""

from collections.abc import Iterable, Sequence

import numpy as np
from everstep.benchmarks.common import Row
from everstep.benchmarks.localisation.judge import Outcome
from everstep.benchmarks.localisation.plan import Family
from rich.table import Table

# From here on all must be found.
ENOUGH_PERCENT = 20


def table_of(outcomes: Sequence[Outcome]) -> Table:
    """Precision, recall and time to name, by kind, severity and interval."""
    shown = Table(
        "fault", "how", "checked every", "cases", "precision", "recall", "right rank, only", "median s", "longest s",
        title="who is named", title_justify="left",
    )  # fmt: skip
    for column in shown.columns[2:]:
        column.justify = "right"
    for key in dict.fromkeys(_key(outcome) for outcome in outcomes):
        here = [outcome for outcome in outcomes if _key(outcome) == key]
        hit = [outcome for outcome in here if outcome.fired and outcome.hit]
        found = [outcome for outcome in hit if outcome.hit in outcome.named]
        named = sum(len(outcome.named) for outcome in here)
        seconds = [outcome.seconds for outcome in found if outcome.seconds is not None]
        kind, how, every = key
        shown.add_row(
            kind,
            how,
            str(every) if every else "",
            str(len(here)),
            f"{len(found) / named:.3f}" if named else "",
            f"{len(found) / len(hit):.3f}" if hit else "",
            f"{sum(outcome.localised for outcome in hit) / len(hit):.3f}" if hit else "",
            f"{np.median(seconds):.2f}" if seconds else "",
            f"{max(seconds):.2f}" if seconds else "",
        )
    return shown


def misses_of(outcomes: Iterable[Outcome]) -> list[str]:
    """A line for each case that was not named, or of which somebody else was."""
    return [
        f"{outcome.launch} {outcome.place}: {outcome.kind} ({_how(outcome)}) of {outcome.hit or 'nobody'}: "
        + (f"named {', '.join(outcome.named)}: {outcome.said}" if outcome.named else _why(outcome))
        for outcome in outcomes
        if not outcome.right
    ]


def rows_of(outcomes: Sequence[Outcome]) -> list[Row]:
    """The figures."""
    numeric = [one for one in outcomes if one.family is Family.NUMERIC and one.fired]
    recurring, once = [one for one in numeric if one.recurs], [one for one in numeric if not one.recurs]
    hangs = [one for one in outcomes if one.family is Family.HANG and one.fired]
    healthy = [one for one in outcomes if one.family is Family.HEALTHY and one.fired]
    slow = [one for one in outcomes if one.family is Family.STRAGGLER and one.fired]
    enough = [one for one in slow if one.percent >= ENOUGH_PERCENT]
    late = [one.seconds for one in hangs if one.seconds is not None]
    rows = [
        Row("numeric_faults", len(recurring), "recurring faults"),
        Row("numeric_localised", _count(recurring), "of them, the right rank and no other"),
        Row("numeric_once", len(once), "faults that came once"),
        Row("numeric_once_localised", _count(once), "of them"),
        Row("hangs", len(hangs), "hangs and stalls"),
        Row("hangs_localised", _count(hangs), "of them, the right rank and no other"),
        Row("healthy_controls", len(healthy), "launches without a fault"),
        Row("stragglers", len(enough), f"ranks slower by {ENOUGH_PERCENT} % or more"),
        Row("stragglers_localised", _count(enough), "of them, the right rank and no other"),
        Row("false_alarms", sum(one.false_alarms for one in outcomes), "ranks named that were not hit"),
        Row("ray_cases", sum(one.cluster == "ray" for one in outcomes), "cases on Ray"),
    ]
    for percent in sorted({one.percent for one in slow if one.percent < ENOUGH_PERCENT}):
        here = [one for one in slow if one.percent == percent]
        rows.append(Row(f"stragglers_{percent}_percent_share", _count(here) / len(here), "of them localised"))
    if late:
        rows.append(Row("hang_named_after_threshold_s", max(late), "s, the longest"))
    return rows


def _count(outcomes: Iterable[Outcome]) -> int:
    return sum(outcome.localised for outcome in outcomes)


def _key(outcome: Outcome) -> tuple[str, str, int]:
    how = _how(outcome) if outcome.family is not Family.NUMERIC else "every step" if outcome.recurs else "once"
    return outcome.kind.value, how, outcome.interval if outcome.family in (Family.NUMERIC, Family.HEALTHY) else 0


def _how(outcome: Outcome) -> str:
    match outcome.family:
        case Family.STRAGGLER:
            return f"{outcome.percent} %"
        case Family.NUMERIC:
            return f"bit {outcome.bit}" + ("" if outcome.recurs else ", once")
    return ""


def _why(outcome: Outcome) -> str:
    if not outcome.fired:
        return "it did not happen"
    if outcome.family is Family.STRAGGLER:
        return "named nobody: slow is above 1.1 times the median and 2 ms, in three rounds in a row"
    if not outcome.recurs:
        return "named nobody: it was gone again when the next check came"
    return "named nobody"
