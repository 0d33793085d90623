"""From what the arms left behind to figures: by arm for people, as rows for programs."""

import statistics
from collections.abc import Mapping, Sequence
from itertools import combinations

from everstep.benchmarks.common import Row, median_row
from everstep.benchmarks.trajectory.course import Outcome
from rich.table import Table

UNDISTURBED, EXACT, FLOAT, RESTART = "undisturbed", "exact", "float_versatile", "restart"
UNDISTURBED_FLOAT, ADAPTIVE = "undisturbed_float", "adaptive_world"
# Whose curve an arm should follow: that of the run which lost nobody and sums with the same precision.
REFERENCES = {EXACT: UNDISTURBED, FLOAT: UNDISTURBED_FLOAT, ADAPTIVE: UNDISTURBED_FLOAT, RESTART: UNDISTURBED_FLOAT}

ByArm = Mapping[str, Outcome]


def gaps(arm: str, seeds: Sequence[ByArm]) -> list[float]:
    """By step: the largest distance, over all seeds, of an arm's loss from that of its reference; in nats."""
    distances = [
        [abs(ours - theirs) for ours, theirs in zip(one[arm].losses, one[REFERENCES[arm]].losses, strict=True)]
        for one in seeds
    ]
    return [max(at_step) for at_step in zip(*distances, strict=True)]


def identical(seeds: Sequence[ByArm]) -> bool:
    """Whether exact runs with losses ended with the bits of those without."""
    return all(one[EXACT].weights == one[UNDISTURBED].weights for one in seeds)


def rows_of(seeds: Sequence[ByArm], tokens: int, seed: int) -> list[Row]:
    """All figures; ``tokens`` are those of a microbatch."""

    def ratios(*, starts: bool) -> list[float]:
        return [one[EXACT].tokens_per_cpu_s(tokens) / one[RESTART].tokens_per_cpu_s(tokens, starts) for one in seeds]

    rows = [
        Row("identical", float(identical(seeds)), "1: same weights, bit for bit"),
        *(Row(f"{arm}_loss_gap", max(gaps(arm, seeds)), "nats, largest") for arm in REFERENCES),
        median_row("everstep_vs_restart_tokens_per_cpu_s", ratios(starts=True), "ratio", seed),
        median_row("everstep_vs_restart_tokens_per_cpu_s_starts_free", ratios(starts=False), "ratio", seed),
    ]
    if len(seeds) > 1:
        rows.append(Row("loss_gap_of_two_seeds", _seed_gap([one[UNDISTURBED] for one in seeds]), "nats, largest"))
    for arm in seeds[0]:
        throughput = [one[arm].tokens_per_cpu_s(tokens) for one in seeds]
        rows.append(median_row(f"{arm}_tokens_per_cpu_s", throughput, "tokens/s", seed))
    return rows


def arm_table(seeds: Sequence[ByArm], tokens: int, owed: int) -> Table:
    """What each arm kept and lost; ``owed`` are the microbatches of all steps together."""
    shown = Table(
        "arm", "loss gap", "tokens per CPU-s", "computed in vain", "left out", title="By arm; medians, gaps largest"
    )
    for column in shown.columns[1:]:
        column.justify = "right"
    for arm in seeds[0]:
        outcomes = [one[arm] for one in seeds]
        shown.add_row(
            arm,
            f"{max(gaps(arm, seeds)):.2g}" if arm in REFERENCES else "",
            f"{statistics.median(one.tokens_per_cpu_s(tokens) for one in outcomes):,.0f}",
            f"{statistics.median(one.wasted for one in outcomes):.0f}",
            f"{statistics.median(owed - one.summed for one in outcomes):.0f} of {owed}",
        )
    return shown


def _seed_gap(outcomes: Sequence[Outcome]) -> float:
    return max(
        abs(one - other)
        for pair in combinations(outcomes, 2)
        for one, other in zip(pair[0].losses, pair[1].losses, strict=True)
    )
