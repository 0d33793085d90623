"""Ranks that join and leave while others train: no failure is counted, and nothing is computed twice."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep.conf.chaos import Fault, FaultPoint
from everstep.orchestrator.controller import CLOSE_TIMEOUT_S, Controller
from everstep.orchestrator.local_cluster import LocalCluster
from everstep.orchestrator.view import Phase, RunState
from everstep.policies.world import Seat

from .harness import (
    MICROBATCHES,
    STEPS,
    During,
    Outcome,
    assert_as_if_undisturbed,
    awaiting,
    drive,
    open_gate,
    plan_of,
    until,
)

# The world changes in this step, while everybody waits in its first microbatch.
GATE = 2


def statuses(state: RunState) -> Counter[str]:
    return Counter(member.status for member in state.members)


def ends(journal: Sequence[Mapping[str, object]]) -> list[str]:
    """How processes have ended."""
    causes = [str(entry["cause"]) for entry in journal if entry["what"] == "end confirmed"]
    return [cause for cause in causes if "exit code" in cause]


def changed(folder: Path, undisturbed: Outcome, ranks: int, world: int, during: During, **options: object) -> Outcome:
    """Train while the world changes; everything is as if undisturbed, and nothing is computed twice."""
    plan = plan_of(folder, ranks=ranks, gates=(GATE, GATE + 1, STEPS - 1), **options)
    outcome = drive(plan, LocalCluster(plan.program()), folder, during)
    assert_as_if_undisturbed(outcome, undisturbed, (), lost=4 - world)
    computed = Counter(place for places in outcome.computed.values() for place in places)
    assert computed == Counter((step, index) for step in range(STEPS) for index in range(MICROBATCHES))
    assert outcome.state.recoveries == ()
    assert outcome.state.first_cause is None
    assert {entry["what"] for entry in outcome.journal}.isdisjoint({"recovering", "fenced", "warning", "raised"})
    return outcome


def test_a_run_grows_from_two_to_four(undisturbed: Outcome, tmp_path: Path) -> None:
    async def grow(controller: Controller) -> None:
        await until(lambda: controller.state().step == GATE)
        assert controller.scale(4) is None
        await until(lambda: controller.state().world > 2)
        open_gate(tmp_path, GATE)
        # One that was ready a moment later joins in the next step.
        await until(lambda: controller.state().world == 4)
        open_gate(tmp_path, GATE + 1)
        open_gate(tmp_path, STEPS - 1)

    outcome = changed(tmp_path, undisturbed, ranks=2, world=4, during=grow)
    assert outcome.state.target == 4
    assert {member.replica for member in outcome.state.members} == {0, 1, 2, 3}
    for name, steps in outcome.decided.items():
        joined = not name.startswith(("0000", "0001"))
        # Whoever joins takes part in the step under way, with no more than nobody has begun, and has its share later.
        assert min(steps) in ((GATE, GATE + 1) if joined else (0,))
        assert len(steps[GATE + 2]) == MICROBATCHES // 4


def test_one_rank_that_is_alone_is_joined_in_its_first_step(undisturbed: Outcome, tmp_path: Path) -> None:
    """It had nobody to compare a probe with, and whoever joins does not know that."""

    async def grow(controller: Controller) -> None:
        await until(lambda: controller.state().phase is Phase.RUNNING)
        controller.scale(2)
        await until(lambda: controller.state().world == 2)
        open_gate(tmp_path, 0)

    plan = plan_of(tmp_path, ranks=1, gates=(0,))
    outcome = drive(plan, LocalCluster(plan.program()), tmp_path, grow)
    assert_as_if_undisturbed(outcome, undisturbed, (), lost=2)


def test_a_run_shrinks_from_four_to_two(undisturbed: Outcome, tmp_path: Path) -> None:
    async def shrink(controller: Controller) -> None:
        await until(lambda: awaiting(tmp_path, GATE) == 4)
        assert controller.scale(2) is None
        await until(lambda: statuses(controller.state())["leaving"] == 2)
        open_gate(tmp_path, GATE)
        # Those who stay wait in the next step: what the others would have had of it is dealt out before anybody is far.
        await until(lambda: len(ends(controller.events())) == 2)
        open_gate(tmp_path, GATE + 1)
        open_gate(tmp_path, STEPS - 1)

    outcome = changed(tmp_path, undisturbed, ranks=4, world=2, during=shrink)
    assert {member.replica for member in outcome.state.members} == {0, 1}
    assert ends(outcome.journal) == ["its process ended with exit code 0"] * 2
    for name, steps in outcome.decided.items():
        left = not name.startswith(("0000", "0001"))
        # Whoever leaves has done its share of the step under way, and begins nothing more.
        assert len(steps[GATE]) == MICROBATCHES // 4
        assert len(steps.get(GATE + 1, [])) == (0 if left else MICROBATCHES // 2)


def test_fewer_than_the_minimum_is_refused(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, ranks=4, minimum=3)
    controller = Controller(plan.settings(term=1), LocalCluster(plan.program()), None)  # type: ignore[arg-type]
    assert controller.scale(2) == "2 replicas are fewer than the minimum of 3"


# --- ranks in the place of lost ones


def test_a_lost_rank_is_replaced_by_one_that_joins_when_it_is_ready(undisturbed: Outcome, tmp_path: Path) -> None:
    faults = [Fault(GATE, 2, point=FaultPoint.IN_BACKWARD)]
    plan = plan_of(tmp_path, ranks=4, chaos=faults, gates=(GATE + 2,), replace=True, recovery="shrink")

    async def wait(controller: Controller) -> None:
        await until(lambda: len(controller.state().recoveries) == 1 and controller.state().world == 4)
        open_gate(tmp_path, GATE + 2)

    outcome = drive(plan, LocalCluster(plan.program()), tmp_path, wait)
    assert_as_if_undisturbed(outcome, undisturbed, faults, lost=0)
    (recovery,) = outcome.state.recoveries
    assert recovery.world_after == 3
    assert {member.replica for member in outcome.state.members} == {0, 1, 2, 3}


def test_below_the_minimum_the_run_waits_by_name_and_goes_on(undisturbed: Outcome, tmp_path: Path) -> None:
    faults = [Fault(GATE, place, point=FaultPoint.IN_BACKWARD) for place in (1, 2)]
    plan = plan_of(tmp_path, ranks=4, minimum=4, chaos=faults)
    waiting: list[RunState] = []

    async def watch(controller: Controller) -> None:
        await until(lambda: controller.state().phase is Phase.WAITING)
        waiting.append(controller.state())

    outcome = drive(plan, LocalCluster(plan.program()), tmp_path, watch)
    assert_as_if_undisturbed(outcome, undisturbed, faults, lost=0)
    (state,) = waiting
    assert state.phase == "waiting for capacity"
    assert "of 4 replicas are left, the minimum is 4: waiting for" in state.reason
    assert state.decision in state.reason
    (recovery,) = outcome.state.recoveries
    assert (recovery.world_before, recovery.world_after) == (4, 4)
    survivors = {name for name, steps in outcome.decided.items() if min(steps) == 0 and max(steps) == STEPS - 1}
    assert len(survivors) == 2


class Full(LocalCluster):
    """There is no room for any rank beside the first ones."""

    def start(self, incarnation: str, seat: Seat | None, *where: Any) -> None:
        if seat is not None:
            super().start(incarnation, seat, *where)


def test_a_wait_for_capacity_ends_with_the_patience(tmp_path: Path) -> None:
    faults = [Fault(GATE, 1, point=FaultPoint.IN_BACKWARD)]
    plan = plan_of(tmp_path, ranks=2, minimum=2, chaos=faults, patience=1.0)
    outcome = drive(plan, Full(plan.program()), tmp_path)
    assert outcome.state.phase is Phase.FAILED
    error = outcome.state.error or ""
    assert "1 of 2 replicas are left, the minimum is 2; waited 1" in error
    assert "first cause: rank 1.0" in error
    assert "\n" not in error
    assert outcome.leftovers == []


# --- the end


def test_the_end_waits_for_no_rank_that_is_not_needed(undisturbed: Outcome, tmp_path: Path) -> None:
    """Neither for spares that stand by, nor for one that has only begun to start."""
    faults = [Fault(STEPS - 1, 2, point=FaultPoint.IN_BACKWARD)]
    plan = plan_of(tmp_path, ranks=4, chaos=faults, spares=2, replace=True, recovery="shrink", gates=(GATE,))

    async def stand_by(controller: Controller) -> None:
        await until(lambda: controller.state().parked == 2)
        open_gate(tmp_path, GATE)

    outcome = drive(plan, LocalCluster(plan.program()), tmp_path, stand_by)
    ended = time.time()
    # There may be time left for a spare to join the last step.
    assert_as_if_undisturbed(outcome, undisturbed, faults, lost=4 - int(str(outcome.state.metrics["world"])))
    assert "ranks asked for" in {entry["what"] for entry in outcome.journal}
    (succeeded,) = (entry["time"] for entry in outcome.journal if entry["what"] == "succeeded")
    assert isinstance(succeeded, float)
    assert ended - succeeded < CLOSE_TIMEOUT_S / 2
