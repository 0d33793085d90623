"""From outcomes to rows."""

from collections.abc import Iterator, Sequence
from statistics import median

from everstep.benchmarks.common import Row
from everstep.benchmarks.instability.outcomes import NAMES, Outcome
from everstep.benchmarks.instability.plan import KINDS

# A kind counts as foreseen if half of the runs in which the loss shows it are alarmed of so much earlier.
FORESEEN = 0.1


def rows(outcomes: Sequence[Outcome], prefix: str = "") -> Iterator[Row]:
    """The headline figures first.

    Args:
        prefix: of the names, for another envelope than that of other seeds.
    """
    shares = {kind: lead_share(outcomes, kind) for kind in NAMES}
    foreseen = sum(shares[kind] >= FORESEEN for kind in KINDS)
    yield Row(f"{prefix}fault_kinds_with_lead", foreseen, f"of {len(KINDS)}")
    for kind, value in shares.items():
        yield Row(f"{prefix}lead_share_{kind}", value, "of the steps to divergence, median of runs that diverge")
    yield Row(f"{prefix}false_alarms_per_1000_steps", false_alarms(outcomes), "healthy seeds")
    faulty = [one for one in outcomes if one.run.kind in NAMES]
    yield Row(f"{prefix}fault_kind_named_right_share", share([one.right for one in faulty]), "of faulty runs")
    for kind in NAMES:
        mine = [one for one in outcomes if one.run.kind == kind]
        yield Row(f"{prefix}diverged_share_{kind}", share([one.divergence is not None for one in mine]), "of runs")
        yield Row(f"{prefix}named_right_share_{kind}", share([one.right for one in mine]), "of runs")
        ahead = [one.share > 0 for one in mine if one.share is not None]
        yield Row(f"{prefix}alarmed_before_share_{kind}", share(ahead), "of runs that diverge")
        leads = [one.lead for one in mine if one.lead is not None]
        if leads:
            yield Row(f"{prefix}lead_{kind}", median(leads), "steps, median")
        before = [one.baseline is not None and one.baseline < one.divergence for one in mine if one.divergence]
        yield Row(f"{prefix}baseline_lead_share_{kind}", share(before), "of runs that diverge")
    flipped = [one.alarm is not None or one.baseline is not None for one in outcomes if one.run.kind == "bit_flip"]
    yield Row(f"{prefix}bit_flip_alarm_share", share(flipped), "of runs")


def lead_share(outcomes: Sequence[Outcome], kind: str) -> float:
    """Median over the runs in which the loss shows it, see ``Outcome.share``; 0 if there are none."""
    shares = [held for one in outcomes if one.run.kind == kind and (held := one.share) is not None]
    return median(shares) if shares else 0.0


def signatures(outcomes: Sequence[Outcome]) -> dict[tuple[str, str], dict[str, float]]:
    """By (monitor, number) and kind of fault, in which share of the runs it alarmed; what never did is left out."""
    kinds = {kind: [one for one in outcomes if one.run.kind == kind] for kind in NAMES}
    numbers = sorted({name for one in outcomes for name in one.fired})
    return {
        name: {kind: share([name in one.fired for one in mine]) for kind, mine in kinds.items() if mine}
        for name in numbers
    }


def false_alarms(outcomes: Sequence[Outcome]) -> float:
    """In healthy runs; a place that alarms counts once a run."""
    healthy = [one for one in outcomes if one.run.kind == "healthy"]
    steps = sum(one.steps for one in healthy)
    return 1000 * sum(one.false_alarms for one in healthy) / steps if steps else 0.0


def share(found: Sequence[bool]) -> float:
    """Of them; 0 of none."""
    return sum(found) / len(found) if found else 0.0
