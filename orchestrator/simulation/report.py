"""What a simulated run came to, as a table."""

from rich.console import Group, RenderableType
from rich.table import Table

from .outcome import Outcome


def outcome_report(outcome: Outcome) -> RenderableType:
    """Everything worth knowing, and every second of it."""
    facts = Table("figure", "value", title="simulated run", title_justify="left")
    facts.columns[1].justify = "right"
    for name, value in (
        ("ended", outcome.end),
        ("virtual time", f"{outcome.elapsed:,.1f} s"),
        ("goodput, share of ideal training", f"{outcome.goodput:.2%}"),
        ("effective throughput, tokens per alive GPU-hour", f"{outcome.effective_throughput:,.0f}"),
        ("tokens", f"{outcome.tokens:,}"),
        ("optimizer steps", f"{outcome.steps:,}"),
        ("alive GPU-hours", f"{outcome.gpu_hours:,.1f}"),
        ("smallest world, replicas", f"{outcome.fewest:,}"),
        ("failures", _counted(outcome.failures)),
        ("recoveries by remedy", _counted(outcome.remedies)),
        ("microbatches lost with a rank", f"{outcome.lost_microbatches:,}"),
        ("microbatches of steps done again", f"{outcome.redone_microbatches:,}"),
        ("events of the machine", f"{outcome.events:,}"),
    ):
        facts.add_row(name, value)
    time = Table("the time went into", "seconds", "share", title_justify="left")
    for column in time.columns[1:]:
        column.justify = "right"
    for cause, seconds in outcome.seconds.items():
        if seconds:
            time.add_row(cause, f"{seconds:,.1f}", f"{seconds / outcome.elapsed:.2%}")
    return Group(facts, time)


def _counted(counts: object) -> str:
    assert isinstance(counts, dict)
    return ", ".join(f"{count:,} {name}" for name, count in counts.items()) or "none"
