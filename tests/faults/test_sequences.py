"""Losses one after another, down to a single rank; the first rank; exceptions; and ranks that stop."""

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

from everstep.actors.messages import Open, ToRank
from everstep.conf.chaos import Fault, FaultKind, FaultPoint
from everstep.orchestrator.controller import Controller
from everstep.orchestrator.journal import Journal
from everstep.orchestrator.local_cluster import LocalCluster
from everstep.orchestrator.view import Phase, RunState

from .harness import QUICK, RUN_DEADLINE_S, WIDE, Outcome, assert_as_if_undisturbed, drive, plan_of, read, run


def test_four_three_two_one(undisturbed_wide: Outcome, tmp_path: Path) -> None:
    faults = [
        Fault(1, 1, point=FaultPoint.IN_BACKWARD),
        Fault(2, 3, point=FaultPoint.IN_TRANSFER),
        Fault(4, 0, point=FaultPoint.IN_VOTE),
    ]
    outcome = run(tmp_path, ranks=4, chaos=faults, width=WIDE)
    assert_as_if_undisturbed(outcome, undisturbed_wide, faults, lost=3)
    assert [record.world_after for record in outcome.state.recoveries] == [3, 2, 1]


def test_losses_in_the_first_and_in_the_last_step(undisturbed: Outcome, tmp_path: Path) -> None:
    faults = [Fault(0, 0, point=FaultPoint.BEFORE_FORWARD), Fault(6, 1, point=FaultPoint.AFTER_VOTE)]
    outcome = run(tmp_path, ranks=4, chaos=faults)
    assert_as_if_undisturbed(outcome, undisturbed, faults, lost=2)


def test_a_second_and_a_third_loss_within_one_step(undisturbed: Outcome, tmp_path: Path) -> None:
    faults = [
        Fault(3, 1, point=FaultPoint.IN_BACKWARD),
        Fault(3, 2, point=FaultPoint.IN_EXTENSION),
        Fault(3, 3, point=FaultPoint.BEFORE_VOTE),
    ]
    outcome = run(tmp_path, ranks=4, chaos=faults, hold=(1, 3))
    assert_as_if_undisturbed(outcome, undisturbed, faults, lost=3)


def test_an_exception_on_one_rank_is_taken_for_its_own_fault(undisturbed: Outcome, tmp_path: Path) -> None:
    faults = [Fault(3, 2, point=FaultPoint.IN_FORWARD, kind=FaultKind.EXCEPTION)]
    outcome = run(tmp_path, ranks=4, chaos=faults)
    assert_as_if_undisturbed(outcome, undisturbed, faults, lost=1)
    assert outcome.state.first_cause is not None
    assert "PlannedError" in outcome.state.first_cause


def test_two_exceptions_alike_end_the_run(tmp_path: Path) -> None:
    faults = [Fault(3, place, point=FaultPoint.IN_FORWARD, kind=FaultKind.EXCEPTION) for place in (1, 2)]
    outcome = run(tmp_path, ranks=4, chaos=faults)
    assert outcome.state.phase is Phase.FAILED
    assert "alike" in (outcome.state.error or "")
    assert "PlannedError" in (outcome.state.traceback or "")
    assert outcome.leftovers == []


def test_a_stopped_rank_is_noticed_fenced_and_killed(undisturbed: Outcome, tmp_path: Path) -> None:
    faults = [Fault(3, 2, point=FaultPoint.IN_BACKWARD, kind=FaultKind.SIGSTOP)]
    outcome = run(tmp_path, ranks=4, chaos=faults)
    assert_as_if_undisturbed(outcome, undisturbed, faults, lost=1)
    (recovery,) = outcome.state.recoveries
    assert "no sign of life" in recovery.cause
    assert QUICK.heartbeat < recovery.phases["total"] + QUICK.heartbeat < 10.0


def test_all_but_one_die_at_once(undisturbed: Outcome, tmp_path: Path) -> None:
    faults = [Fault(3, place, point=FaultPoint.IN_BACKWARD) for place in (0, 1, 2)]
    outcome = run(tmp_path, ranks=4, chaos=faults)
    assert_as_if_undisturbed(outcome, undisturbed, faults, lost=3)


def test_all_dead_ends_with_the_first_cause(tmp_path: Path) -> None:
    faults = [Fault(2, place, point=FaultPoint.IN_BACKWARD) for place in (0, 1)]
    outcome = run(tmp_path, ranks=2, chaos=faults)
    assert outcome.state.phase is Phase.FAILED
    assert "first cause: rank" in (outcome.state.error or "")
    assert outcome.leftovers == []


class _DeafToKills(LocalCluster):
    """A node that kills do not reach, as behind a partition: a stopped rank there can wake up later."""

    def kill(self, incarnation: str) -> None:
        if not hasattr(self, "spared"):
            self.spared = incarnation
        if incarnation != self.spared:
            super().kill(incarnation)

    def pid(self, incarnation: str) -> int:
        pid = self._processes[incarnation].pid
        assert pid is not None
        return pid


def test_a_stopped_rank_that_wakes_after_it_was_replaced_ends_itself(undisturbed_wide: Outcome, tmp_path: Path) -> None:
    faults = [Fault(3, 2, point=FaultPoint.IN_TRANSFER, kind=FaultKind.SIGSTOP)]
    plan = plan_of(tmp_path, ranks=4, chaos=faults, width=WIDE)
    cluster = _DeafToKills(plan.program())

    async def scenario() -> Outcome:
        controller = Controller(plan.settings(term=1), cluster, Journal())
        running = asyncio.create_task(controller.run())
        looks: list[RunState] = []
        await _until(lambda: looks.append(controller.state()) or bool(controller.state().recoveries))
        waiting = [look for look in looks if look.phase is Phase.RECOVERING]
        assert any("waiting for the end of fenced ranks 2.0" in look.reason for look in waiting)
        assert all("rank 2.0" in (look.first_cause or "") for look in waiting)
        survivors = [cluster.pid(member.incarnation) for member in controller.state().members]
        for pid in survivors:
            os.kill(pid, signal.SIGSTOP)
        os.kill(cluster.pid(cluster.spared), signal.SIGCONT)
        process = cluster._processes[cluster.spared]
        await _until(lambda: not process.is_alive())
        for pid in survivors:
            os.kill(pid, signal.SIGCONT)
        state = await asyncio.wait_for(running, RUN_DEADLINE_S)
        assert process.exitcode == 1, "it must end by itself, as it was told"
        return Outcome(state, controller.events(), controller.leftovers)

    outcome = read(asyncio.run(scenario()), tmp_path)
    assert_as_if_undisturbed(outcome, undisturbed_wide, faults, lost=1)
    assert {"fenced", "end confirmed"} <= {entry["what"] for entry in outcome.journal} | {"end confirmed"}


class _Muddled(LocalCluster):
    """A controller gone wrong: it gives what a rank has finished to nobody."""

    def send(self, incarnation: str, message: ToRank) -> None:
        if isinstance(message, Open) and message.world.generation.number > 1:
            message = replace(message, indices=dict.fromkeys(message.indices, ()))
        super().send(incarnation, message)


def test_a_violated_protocol_ends_the_run_and_says_so(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, ranks=4, chaos=[Fault(3, 2, point=FaultPoint.IN_BACKWARD)], hold=(2, 3))
    outcome = drive(plan, _Muddled(plan.program()), tmp_path)
    assert outcome.state.phase is Phase.FAILED
    assert "were given to others" in (outcome.state.error or "")
    assert outcome.leftovers == []


async def _until(condition: Any) -> None:
    """Poll with a deadline: the condition lies in other processes."""
    async with asyncio.timeout(30.0):
        while not condition():
            await asyncio.sleep(0.005)
