"""Hundreds of runs through crashes, stops and late messages; and proof that the checks would find a broken protocol."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from everstep.actors.messages import Open
from everstep.actors.rank.ledger import Ledger
from everstep.actors.rank.transaction import Transaction
from everstep.orchestrator.machine import recovery, sharing
from everstep.policies.world import Generation, Position, Progress, Work

from .protocol_checks import Violation
from .protocol_simulation import Simulation

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
        "void of training",
        "commit of evaluation",
        "waited to begin",
        "nobody had begun",
        "some had begun",
        "opened in training",
        "opened in evaluation",
        "opened with poison",
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
            return str(violation).splitlines()[0]
    return ""


def test_a_promise_that_does_not_bind_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def current(self: Transaction, generation: Generation) -> bool:
        return self.generation == generation

    monkeypatch.setattr(Transaction, "current", current)
    found = first_violation()
    assert found.startswith("seed ")
    assert "after it promised" in found


def test_microbatches_that_are_given_out_while_they_are_computed_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "Progress", lambda done=frozenset(), owed=frozenset(), repeats=None: Progress(done))
    found = first_violation()
    assert "not owed" in found or "were given to others" in found


def test_a_commit_that_the_others_do_not_follow_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "max", min, raising=False)
    assert "follows a decided one" in first_violation()


@pytest.mark.parametrize("forgotten", [True, False])
def test_poison_that_is_forgotten_by_the_next_attempt_or_kept_for_the_next_unit_is_found(
    monkeypatch: pytest.MonkeyPatch, forgotten: bool
) -> None:
    at = Transaction._at

    def wrong(self: Transaction, position: Position) -> Transaction:
        return replace(at(self, position), poison=frozenset() if forgotten else self.poison)

    monkeypatch.setattr(Transaction, "_at", wrong)
    assert "poison at " in first_violation()


# --- units of work


def test_work_that_is_begun_after_a_report_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is planned in the old world, and the report has told that it was not begun."""

    def take_up(self: Ledger, position: Position, work: Work, timeout: float) -> Transaction:
        self._transaction = self._transaction.take_up(position, work, self._share(self._transaction, work))
        return self._transaction

    monkeypatch.setattr(Ledger, "take_up", take_up)
    found = first_violation()
    assert any(text in found for text in ("is not owed", "were given to others", "the controller forgot it"))


def test_survivors_that_get_no_share_of_what_they_had_not_begun_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    share = recovery.share

    def only_to_those_who_began(state: Any, world: Any, position: Any, reports: Any) -> Any:
        shared = share(state, world, position, reports)
        began = {name for name, held in reports.items() if held.position == position and held.work is not None}
        return replace(shared, indices={name: mine if name in began else () for name, mine in shared.indices.items()})

    monkeypatch.setattr(recovery, "share", only_to_those_who_began)
    assert " summed " in first_violation()


def test_a_position_that_nobody_has_begun_and_that_is_taken_for_decided_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def passed(*facts: Any) -> Open:
        opened = Open(*facts)
        return opened if opened.work else replace(opened, position=Position(opened.position.step + 1))

    monkeypatch.setattr(recovery, "Open", passed)
    assert "its vote was never entered here" in first_violation()


def test_an_open_that_forgets_the_work_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "Open", lambda *facts: replace(Open(*facts), work=None))
    assert "the controller forgot it" in first_violation()


def test_an_evaluation_that_is_taken_for_a_step_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the ranks count positions: a wrong count is the same everywhere, and shows in what they went through."""
    monkeypatch.setattr("everstep.actors.rank.ledger.after", lambda position, *_: Position(position.step + 1))
    assert "went" in first_violation()
