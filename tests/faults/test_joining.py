"""Ranks that join and leave while others train: no failure is counted, and nothing is computed twice."""

from collections import Counter
from pathlib import Path

from everstep.orchestrator.controller import Controller
from everstep.orchestrator.local_cluster import LocalCluster
from everstep.orchestrator.view import RunState

from .harness import (
    MICROBATCHES,
    STEPS,
    During,
    Outcome,
    assert_as_if_undisturbed,
    drive,
    open_gate,
    plan_of,
    until,
)

# The world changes in this step, while everybody waits in its first microbatch.
GATE = 2


def statuses(state: RunState) -> Counter[str]:
    return Counter(member.status for member in state.members)


def changed(folder: Path, undisturbed: Outcome, ranks: int, world: int, during: During, **options: object) -> Outcome:
    """Train while the world changes; everything is as if undisturbed, and nothing is computed twice."""
    plan = plan_of(folder, ranks=ranks, gates=(GATE, GATE + 1), **options)
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

    outcome = changed(tmp_path, undisturbed, ranks=2, world=4, during=grow)
    assert outcome.state.target == 4
    assert [member.replica for member in outcome.state.members] == [0, 1, 2, 3]
    for name, steps in outcome.decided.items():
        joined = not name.startswith(("0000", "0001"))
        # Whoever joins takes part in the step under way with nothing to compute, and has its share of the next one.
        assert min(steps) in ((GATE, GATE + 1) if joined else (0,))
        assert steps[min(steps)] == [] if joined else len(steps[GATE]) == MICROBATCHES // 2
        assert len(steps[GATE + 2]) == MICROBATCHES // 4


def test_a_run_shrinks_from_four_to_two(undisturbed: Outcome, tmp_path: Path) -> None:
    async def shrink(controller: Controller) -> None:
        await until(lambda: controller.state().step == GATE)
        assert controller.scale(2) is None
        await until(lambda: statuses(controller.state())["leaving"] == 2)
        open_gate(tmp_path, GATE)
        open_gate(tmp_path, GATE + 1)

    outcome = changed(tmp_path, undisturbed, ranks=4, world=2, during=shrink)
    assert [member.replica for member in outcome.state.members] == [0, 1]
    ends = Counter(entry["cause"] for entry in outcome.journal if entry["what"] == "end confirmed")
    assert ends["its process ended with exit code 0"] == 2
    for name, steps in outcome.decided.items():
        left = not name.startswith(("0000", "0001"))
        # Whoever leaves has done its share of the step under way, and begins nothing more.
        assert len(steps[GATE]) == MICROBATCHES // 4
        assert len(steps.get(GATE + 1, [])) == (0 if left else MICROBATCHES // 2)


def test_fewer_than_the_minimum_is_refused(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, ranks=4, minimum=3)
    controller = Controller(plan.settings(term=1), LocalCluster(plan.program()), None)  # type: ignore[arg-type]
    assert controller.scale(2) == "2 replicas are fewer than the minimum of 3"
