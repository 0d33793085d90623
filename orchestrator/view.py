"""What a run says about itself: the frozen values that ``connect(run).state()`` and the reports show."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from ..actors.messages import StepRecord


class Phase(StrEnum):
    """Where a run is. ``reason`` in ``RunState`` says why it waits there."""

    STARTING = "starting"
    ADOPTING = "taking over"
    RUNNING = "running"
    RECOVERING = "recovering"
    WAITING = "waiting for capacity"
    SUCCEEDED = "succeeded"
    FAILED = "failed"

    ended: bool

    def __init__(self, said: str) -> None:
        self.ended = said in ("succeeded", "failed")


@dataclass(frozen=True)
class RecoveryRecord:
    """One recovery, from the first notice to the first commit of the new generation.

    Attributes:
        generation: the generation that it opened, as ``term.number``.
        cause: the first cause, in one line.
        step: the optimizer step that was in progress.
        world_before: ranks before.
        world_after: ranks after.
        lost: seats that left, as ``replica.coordinate``.
        lost_microbatches: indices that survivors computed again.
        phases: seconds by phase, in the order in which they happened; ``total`` is their sum.
        decision: how it was answered, and why, in one line.
    """

    generation: str
    cause: str
    step: int
    world_before: int
    world_after: int
    lost: tuple[str, ...] = ()
    lost_microbatches: tuple[int, ...] = ()
    phases: Mapping[str, float] = field(default_factory=dict)
    decision: str = ""


@dataclass(frozen=True)
class VerdictRecord:
    """What those who watch have come to, with what it rests on.

    Attributes:
        at: when, in seconds since the epoch.
        step: optimizer steps taken by the state that it is about, or by that rank which is furthest.
        kind: ``hang``, ``straggler``, ``corruption`` or ``stability``.
        outcome: ``attributed`` to somebody, ``inconclusive``, or ``alarm`` where there is nobody to name.
        reason: one line.
        who: the ranks that are named, as people know them.
        evidence: what the verdict rests on, by name; numbers, texts, lists and mappings.
        done: what was done about it, in one line.
    """

    at: float
    step: int
    kind: str
    outcome: str
    reason: str
    who: tuple[str, ...] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict)
    done: str = ""


@dataclass(frozen=True)
class MemberView:
    """One rank as the controller sees it. ``silent_s`` is the time since it was last heard of, in seconds.

    A spare, and whoever is still to join, has no replica and no coordinate; its status is ``parked``.
    """

    incarnation: str
    replica: int | None
    coordinate: int | None
    status: str
    node: str = ""
    pid: int = 0
    step: int = 0
    silent_s: float = 0.0


@dataclass(frozen=True)
class Look:
    """What a driver asks for: where the controller listens, what it sees, and whether the run is over and gone."""

    address: tuple[str, int] | None
    state: "RunState"
    over: bool


@dataclass(frozen=True)
class RunState:
    """One look at a run; it can be taken at any moment, also in the middle of a recovery.

    Attributes:
        run: name of the run.
        phase: where it is.
        reason: one line on what it is doing or waiting for.
        generation: ``term.number`` of the newest group.
        step: optimizer steps committed so far.
        steps: optimizer steps in all; None until the ranks have said it.
        world: ranks in the current group.
        members: every rank of the run that is not gone.
        loss: weighted mean loss of the last committed step that was heard of.
        record: all numbers of that step.
        weight_unit: what the weights of losses count, tokens for example.
        weight_per_s: weight per second of late.
        model_flops_per_s: model FLOPs per second of late, of all ranks together; None if nobody knows.
        first_cause: the first failure of the run, None while there was none.
        decision: how the last loss was answered, and why, in one line.
        resumed: what the run went on from, in one line; empty if it began anew.
        snapshots: what there is in memory, where, and what it needs, in one line; empty if there are none.
        cadence: by what is saved, checkpoint or snapshot, how often and why, where that is not configured.
        sources: where state was looked for when all ranks began, or last went back: living peers, vaults, storage; one
            line each, the one that it was taken from last.
        stability: what the stability monitors watch, their alarms, and what is different because of them, in one line.
        trust: by what is looked for, corruption for example, which states were found right, one line each.
        target: replicas that there should be.
        parked: ranks that are ready and no members: spares, and those that are still to join.
        recoveries: finished recoveries, oldest first.
        verdicts: the newest on hangs, stragglers, corruption and stability, oldest first.
        faults_fired: planned faults that were seen to fire.
        warnings: what went wrong beside the training, one line each.
        error: for a failed run, what ended it, in one line.
        traceback: for a failed run, the first traceback of the user's code, if there was one.
        metrics: for a finished run, its final figures.
    """

    run: str
    phase: Phase
    reason: str
    generation: str = ""
    step: int = 0
    steps: int | None = None
    world: int = 0
    members: tuple[MemberView, ...] = ()
    loss: float | None = None
    record: StepRecord | None = None
    weight_unit: str = "weight"
    weight_per_s: float | None = None
    model_flops_per_s: float | None = None
    first_cause: str | None = None
    decision: str = ""
    resumed: str = ""
    cadence: Mapping[str, str] = field(default_factory=dict)
    sources: tuple[str, ...] = ()
    snapshots: str = ""
    stability: str = ""
    trust: Mapping[str, str] = field(default_factory=dict)
    target: int = 0
    parked: int = 0
    recoveries: tuple[RecoveryRecord, ...] = ()
    verdicts: tuple[VerdictRecord, ...] = ()
    faults_fired: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    error: str | None = None
    traceback: str | None = None
    metrics: Mapping[str, object] = field(default_factory=dict)
