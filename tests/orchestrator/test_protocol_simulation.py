"""Hundreds of runs through crashes, stops and late messages; and proof that the checks would find a broken protocol."""

from collections import Counter

import pytest
from everstep.actors.rank.transaction import Transaction
from everstep.orchestrator.machine import recovery
from everstep.policies.world import Generation, Progress

from .protocol_simulation import Simulation
from .simulated_rank import Violation

SEEDS = 600
CHUNK = 50


@pytest.fixture(scope="module")
def seen() -> Counter[str]:
    """What happened in all runs of this module."""
    return Counter()


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_nothing_forbidden_happens(first: int, seen: Counter[str]) -> None:
    """A failure names its seed; ``Simulation(seed).run()`` plays it again."""
    for seed in range(first, first + CHUNK):
        simulation = Simulation(seed)
        simulation.run()
        seen += simulation.seen


def test_the_runs_went_where_it_is_dangerous(seen: Counter[str]) -> None:
    if seen["opened"] < SEEDS:
        pytest.skip("needs the runs above")
    for what in (
        "followed",
        "promised before it saw the vote",
        "failed in the sum",
        "stale report refused",
        "refused, its sender is fenced",
        "deathless",
        "woke",
        "void",
        "fenced",
        "crash at vote",
        "crash at report",
        "crash at built",
        "stop at vote",
        "cut at vote",
        "succeeded",
        "failed",
    ):
        assert seen[what], f"no run saw: {what}"
    assert seen["recovered"] > SEEDS / 3


def test_a_seed_is_one_run() -> None:
    for seed in (3, 18, 44):
        first, second = Simulation(seed), Simulation(seed)
        first.run()
        second.run()
        assert first.log == second.log


def first_violation(seeds: int = SEEDS) -> str:
    for seed in range(seeds):
        try:
            Simulation(seed).run()
        except Violation as violation:
            return str(violation)
    return ""


def test_a_promise_that_does_not_bind_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def current(self: Transaction, generation: Generation) -> bool:
        return self.generation == generation

    monkeypatch.setattr(Transaction, "current", current)
    found = first_violation()
    assert found.startswith("seed ")
    assert "after it promised" in found


def test_microbatches_that_are_given_out_while_they_are_computed_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "Progress", lambda done=frozenset(), owed=frozenset(): Progress(done))
    assert "not owed" in first_violation() or "were given to others" in first_violation()


def test_a_commit_that_the_others_do_not_follow_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "max", min, raising=False)
    assert "follows a decided one" in first_violation()
