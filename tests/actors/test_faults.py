"""Planned faults: on whom, where and when, and never without a word before."""

import os
import signal

import pytest
from everstep.actors.faults import Chaos, PlannedError
from everstep.conf.chaos import Fault, FaultKind, FaultPoint
from everstep.policies.world import Seat


class Bench:
    """A chaos and what it did, in order; signals are noted and not sent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *faults: Fault) -> None:
        self.log: list[str] = []
        monkeypatch.setattr(os, "kill", lambda pid, number: self.log.append(signal.Signals(number).name))
        self.chaos = Chaos(faults, Seat(1), lambda fault, evidence: self.log.append(f"{fault}: {evidence}"))

    def at(self, point: FaultPoint, step: int, ordinal: int = -1) -> list[str]:
        """What happens at this place."""
        self.log.clear()
        self.chaos.step, self.chaos.ordinal = step, ordinal
        self.chaos.at(point)
        return list(self.log)


def test_a_fault_strikes_its_rank_at_its_step_and_place_and_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, Fault(step=3, replica=1, point="in_vote"))
    assert bench.chaos
    assert bench.at(FaultPoint.IN_VOTE, 2) == []
    assert bench.at(FaultPoint.BEFORE_VOTE, 3) == []
    said, struck = bench.at(FaultPoint.IN_VOTE, 3)
    assert "sigkill of rank 1.0 at step 3 in_vote" in said
    assert f"pid {os.getpid()}" in said
    assert struck == "SIGKILL"
    assert bench.at(FaultPoint.IN_VOTE, 3) == []
    assert not bench.chaos


def test_faults_of_others_are_none_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, Fault(step=3, replica=0, point="in_vote"), Fault(step=3, replica=1, coordinate=1))
    assert not bench.chaos
    assert bench.at(FaultPoint.IN_VOTE, 3) == []


def test_a_fault_in_a_microbatch_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = Fault(step=1, replica=1, point="in_forward", kind="sigstop", microbatch=2)
    bench = Bench(monkeypatch, fault)
    assert bench.at(FaultPoint.IN_FORWARD, 1, 1) == []
    assert bench.at(FaultPoint.IN_FORWARD, 1, 2)[1] == "SIGSTOP"


def test_a_fault_in_any_microbatch_takes_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, Fault(step=1, replica=1, point="in_forward"))
    assert len(bench.at(FaultPoint.IN_FORWARD, 1, 0)) == 2


def test_a_planned_exception_says_that_it_was_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, Fault(step=1, replica=1, point="in_optimizer", kind=FaultKind.EXCEPTION))
    with pytest.raises(PlannedError, match=r"planned: exception of rank 1\.0 at step 1 in_optimizer"):
        bench.at(FaultPoint.IN_OPTIMIZER, 1)
    assert len(bench.log) == 1, "it is announced, and no signal is sent"


def test_evidence_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, Fault(step=0, replica=1, point="in_transfer"))
    bench.chaos.step = 0
    assert bench.chaos.planned(FaultPoint.IN_TRANSFER)
    bench.chaos.at(FaultPoint.IN_TRANSFER, "3 of 9 probes")
    assert bench.log[0].endswith(": 3 of 9 probes")
    assert not bench.chaos.planned(FaultPoint.IN_TRANSFER)


def test_two_faults_at_one_place_are_two(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = Fault(step=0, replica=1, point="in_vote", kind="sigstop")
    bench = Bench(monkeypatch, stop, Fault(step=0, replica=1, point="in_vote"))
    assert bench.at(FaultPoint.IN_VOTE, 0)[1] == "SIGSTOP"
    assert bench.at(FaultPoint.IN_VOTE, 0)[1] == "SIGKILL"


def test_a_spare_is_told_apart_by_its_number_and_takes_no_fault_of_the_dead() -> None:
    faults = (Fault(step=3, replica=1), Fault(step=3, replica=4, target="spare"), Fault(step=3, replica=5))
    cases = [(Seat(1), 1, True), (Seat(4), 4, False), (None, 4, True), (None, 5, False), (None, 1, False)]
    for seat, number, hit in cases:
        chaos = Chaos(faults, seat, lambda fault, evidence: None, number)
        chaos.step = 3
        assert bool(chaos) is hit, (seat, number)
        assert chaos.planned(FaultPoint.IN_BACKWARD) is hit
