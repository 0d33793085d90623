"""What a run has to say, as text and tables. Pure: from its state or its final metrics to something printable."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..actors.messages import StepRecord
from .view import MemberView, Phase, RecoveryRecord, RunState, VerdictRecord

_MOST = 4  # numbers, and learning rates, in one line
_NODE_DIGITS = 12  # of the 56 in Ray's ids of nodes


def status_line(state: RunState) -> str:
    """One look at a run in one line.

    >>> status_line(RunState("gpt", Phase.RUNNING, "", "1.2", step=12, steps=40, world=3, loss=3.2104))
    'step 12/40  loss 3.21  world 3  generation 1.2  running'
    """
    parts = [f"step {state.step}" if state.steps is None else f"step {state.step}/{state.steps}"]
    if state.loss is not None:
        parts.append(f"loss {state.loss:.4g}")
    if state.record is not None:
        parts.extend(_numbers(state.record))
    if state.weight_per_s is not None:
        parts.append(f"{short_count(state.weight_per_s)} {state.weight_unit}/s")
    if state.model_flops_per_s is not None:
        parts.append(f"{short_count(state.model_flops_per_s, ' ')}FLOP/s")
    parts.append(f"world {state.world}" + (f" and {state.parked} parked" if state.parked else ""))
    if state.generation:
        parts.append(f"generation {state.generation}")
    parts.append(str(state.phase))
    line = "  ".join(parts)
    # A healthy run has nothing to explain.
    return line if state.phase is Phase.RUNNING or not state.reason else f"{line}: {one_line(state.reason)}"


def state_report(state: RunState) -> RenderableType:
    """One look at a run in full: its line, the first cause, warnings, its members, verdicts and recoveries."""
    parts: list[RenderableType] = [Text(f"{state.run}: {status_line(state)}")]
    if state.first_cause:
        parts.append(Text(f"first cause  {one_line(state.first_cause)}"))
    replicas = len({member.replica for member in state.members if member.replica is not None})
    if state.target not in (0, replicas):
        parts.append(Text(f"target  {state.target} replicas, there are {replicas}"))
    if state.resumed:
        parts.append(Text(f"resumed  {state.resumed}"))
    parts.extend(Text(f"source  {one_line(text)}") for text in state.sources)
    if state.snapshots:
        parts.append(Text(f"snapshots  {state.snapshots}"))
    if state.stability:
        parts.append(Text(f"stability  {one_line(state.stability)}"))
    parts.extend(Text(f"{kind}  {one_line(text)}") for kind, text in sorted(state.trust.items()))
    parts.extend(Text(f"{saved}s  {reason}") for saved, reason in sorted(state.cadence.items()))
    if state.decision:
        parts.append(Text(f"decision  {one_line(state.decision)}"))
    parts.extend(Text(f"warning  {text}") for text in state.warnings)
    if state.members:
        parts.append(member_table(state.members))
    parts.extend(Text(verdict_line(record)) for record in state.verdicts)
    if state.recoveries:
        parts.append(recovery_report(state.recoveries))
    return Group(*parts)


def member_table(members: Iterable[MemberView]) -> Table:
    """The ranks of a run, one a row."""
    table = _table("rank", "status", "step", "silent, s", "node", "pid", "incarnation")
    for member in members:
        table.add_row(
            "" if member.replica is None else f"{member.replica}.{member.coordinate}",
            member.status,
            str(member.step),
            f"{member.silent_s:.1f}",
            member.node[:_NODE_DIGITS],
            str(member.pid),
            member.incarnation,
        )
    return table


def recovery_report(recoveries: Sequence[RecoveryRecord]) -> RenderableType:
    """The recoveries of a run: a table of their phases, and under it what caused each."""
    causes = (Text(f"{record.generation}  {one_line(record.cause)}") for record in recoveries)
    return Group(Text("recoveries, times in ms"), recovery_table(recoveries), *causes)


def recovery_line(record: RecoveryRecord) -> str:
    """One recovery in one line."""
    return (
        f"recovered  step {record.step}  world {record.world_before} → {record.world_after}  "
        f"generation {record.generation}  {_milliseconds(total_seconds(record))} ms  {one_line(record.cause)}"
    )


def verdict_line(record: VerdictRecord) -> str:
    """One verdict in one line.

    >>> verdict_line(VerdictRecord(0.0, 8, "hang", "attributed", "it is dead-locked", ("rank 1.0",), done="shut out"))
    'verdict  hang at step 8: rank 1.0: it is dead-locked; shut out'
    """
    who = f"{', '.join(record.who)}: " if record.who else f"{record.outcome}: "
    done = f"; {record.done}" if record.done else ""
    return f"verdict  {record.kind} at step {record.step}: {who}{one_line(record.reason)}{done}"


def recovery_table(recoveries: Sequence[RecoveryRecord]) -> Table:
    """The recoveries of a run, one a row, their phases in milliseconds and in the order in which they happened."""
    phases = list(dict.fromkeys(phase for record in recoveries for phase in record.phases if phase != "total"))
    table = _table("generation", "step", "world", "lost microbatches", *phases, "total")
    for record in recoveries:
        table.add_row(
            record.generation,
            str(record.step),
            f"{record.world_before} → {record.world_after}",
            ", ".join(map(str, record.lost_microbatches)) or "none",
            *(_milliseconds(record.phases[phase]) if phase in record.phases else "" for phase in phases),
            _milliseconds(total_seconds(record)),
        )
    return table


def summary_lines(metrics: Mapping[str, Any]) -> list[str]:
    """The final figures of a run, in a few lines."""
    loss = metrics.get("loss")
    done = [f"{metrics.get('steps', 0)} steps"]
    if loss is not None:
        done.append(f"loss {loss:.6g}")
    if "microbatches_computed" in metrics:
        done.append(f"{metrics['microbatches_computed']} microbatches computed")
    lines = ["finished  " + "  ".join(done)]
    if metrics.get("resumed"):
        lines.append(f"resumed  {metrics['resumed']}")
    totals = [1000 * total_seconds(record) for record in recoveries_of(metrics)]
    if totals:
        times = "once" if len(totals) == 1 else f"{len(totals)} times"
        lines.append(f"recovered  {times}  median {statistics.median(totals):.0f} ms  longest {max(totals):.0f} ms")
    lines.extend(verdict_line(VerdictRecord(**record)) for record in metrics.get("verdicts", ()))
    lines.extend(f"fault fired  {one_line(str(fault))}" for fault in metrics.get("faults_fired", ()))
    return lines


def weights_line(metrics: Mapping[str, Any]) -> str:
    """``weights  <sha256>``, the hash of all weights after the last step."""
    return f"weights  {metrics.get('weights_sha256') or 'unknown'}"


def identical(metrics: Mapping[str, Any], undisturbed: Mapping[str, Any]) -> bool:
    """Whether both runs are known to have ended with the same weights, bit for bit."""
    weights = metrics.get("weights_sha256")
    return bool(weights) and weights == undisturbed.get("weights_sha256")


def comparison_line(metrics: Mapping[str, Any], undisturbed: Mapping[str, Any]) -> str:
    """``identical: yes`` or ``identical: NO``."""
    return f"identical: {'yes' if identical(metrics, undisturbed) else 'NO'}"


def missed_faults_line(planned: int, metrics: Mapping[str, Any]) -> str | None:
    """Says that planned faults never fired, so that the run proves less than it was meant to; None if all did."""
    fired = len(metrics.get("faults_fired", ()))
    if fired >= planned:
        return None
    return f"only {fired} of {planned} planned faults fired; check their steps, replicas and points in elastic.chaos"


def recoveries_of(metrics: Mapping[str, Any]) -> tuple[RecoveryRecord, ...]:
    """The recoveries in the final metrics of a run, where they are plain mappings."""
    return tuple(RecoveryRecord(**record) for record in metrics.get("recoveries", ()))


def total_seconds(record: RecoveryRecord) -> float:
    """How long one recovery took, in seconds."""
    return record.phases.get("total", sum(record.phases.values()))


def short_count(value: float, between: str = "") -> str:
    """A number in at most three digits and a letter, with ``between`` between them.

    >>> short_count(5120), short_count(87.25), short_count(2.5e6, " ")
    ('5.12k', '87.2', '2.5 M')
    """
    for letter in ("", "k", "M", "G", "T"):
        if abs(value) < 999.5:
            return f"{value:.3g}{between}{letter}"
        value /= 1000
    return f"{value:.3g}{between}P"


def one_line(text: str) -> str:
    """A text without line breaks."""
    return " ".join(text.split())


def _numbers(record: StepRecord) -> list[str]:
    """The numbers of a step, short: what was recorded, then the learning rates."""
    skipped = [] if record.skipped is None else [f"skipped ({one_line(record.skipped)})"]
    recorded = [f"{name} {value:.4g}" for name, value in record.numbers.items()]
    rates = {f"{rate:.3g}" for rate in record.lr.values()}
    # Many groups often share one rate.
    lr = [f"lr {' '.join(rates)}"] if len(rates) == 1 else [f"lr {name} {rate:.3g}" for name, rate in record.lr.items()]
    return [*skipped, *_few(recorded), *_few(lr)]


def _few(parts: list[str]) -> list[str]:
    return parts if len(parts) <= _MOST else [*parts[:_MOST], f"and {len(parts) - _MOST} more"]


def _milliseconds(seconds: float) -> str:
    value = 1000 * seconds
    return f"{value:.1f}" if value < 10 else f"{value:.0f}"


def _table(*headers: str) -> Table:
    table = Table(box=None, pad_edge=False, collapse_padding=True, header_style="dim")
    for header in headers:
        # A word a line: the recoveries then fit into 80 columns.
        table.add_column(header.replace(" ", "\n"), justify="right", vertical="bottom")
    return table
