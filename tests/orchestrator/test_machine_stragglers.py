"""Members are timed by what their heartbeats say: who is slow is named, owes less, or leaves; and nobody is lost."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from everstep.actors.messages import Fenced, Heartbeat, Open
from everstep.monitors.spent import Tally
from everstep.monitors.stragglers import CONFIRM
from everstep.orchestrator.machine.events import Tick
from everstep.orchestrator.machine.state import Standing
from everstep.orchestrator.machine.stragglers import ROUND
from everstep.orchestrator.view import Phase, VerdictRecord
from everstep.policies.stragglers import StragglerPolicy, straggler_policy
from everstep.policies.values import changed
from everstep.policies.workload import Weighted
from everstep.policies.world import Position
from hypothesis import given
from hypothesis import strategies as st

from .machine_script import Script, name, prepared, sent
from .world_changes import asked, replicas

# Healthy ranks are not alike to the last digit.
USUAL = 0.1
JITTER = (0.0, 1e-4, -1e-4, 2e-4, -2e-4)
STEPS = 1000


class Timed:
    """A run whose ranks say what they have spent."""

    alike = True

    def __init__(self, policy: str = "observe", ranks: int = 4, **settings: int | bool) -> None:
        self.script = Script(ranks=ranks, steps=STEPS, **settings).boot()
        self.tallies = {rank: Tally() for rank in range(ranks)}
        self.step = 0
        self.idle: set[int] = set()
        state = self.script.state
        weighs = straggler_policy(policy, 600.0)
        held = replace(state.settings, stragglers=weighs, workload=Weighted(), alike=self.alike)
        self.script.state = changed(state, settings=held)
        self.beat()

    def beat(self) -> None:
        """All who have spent anything say so, and time goes on."""
        script = self.script
        for rank, tally in self.tallies.items():
            place = Position(self.step)
            script.hear(rank, Heartbeat(name(rank), place, "training", work=script.training, spent=tally.spent))
        script.now += 0.5
        script.happen(Tick())

    def round(self, compute: Mapping[int, float] = {}, data: Mapping[int, float] = {}, exchange: float = 0.01) -> None:
        """All compute until it is over."""
        self.step += 1
        for rank in self.tallies:
            each = compute.get(rank, USUAL) + JITTER[rank], data.get(rank, 0.0)
            self.tallies[rank].step([] if rank in self.idle else [each] * ROUND, exchange)
            self.tallies[rank].step([] if rank in self.idle else [each] * ROUND, exchange)
        self.beat()

    def rounds(self, count: int, compute: Mapping[int, float] = {}, data: Mapping[int, float] = {}) -> None:
        for _ in range(count):
            self.round(compute, data)

    def verdicts(self, outcome: str = "attributed") -> list[VerdictRecord]:
        return [record for record in self.script.look.verdicts if record.outcome == outcome]

    def named(self) -> list[str]:
        return [rank for record in self.verdicts() for rank in record.who]

    def change(self, *coming: int) -> Open:
        """The world changes as it was prepared, and these come in; what it is then."""
        script = self.script
        members = [rank for rank in self.tallies if script.state.is_member(name(rank))]
        for rank in members:
            script.report(rank, Position(self.step))
        opened = sent(script.history, members[0], Open)[-1]
        self.tallies |= {rank: Tally() for rank in coming}
        script.join(*self.tallies)
        script.resume(*self.tallies, step=self.step)
        assert script.state.recovery is None
        # The first look at a new world begins its rounds.
        self.beat()
        return opened


# --- who is named


def test_slow_for_long_enough_is_named_once_and_nothing_is_done() -> None:
    timed = Timed()
    timed.rounds(CONFIRM - 1, {2: 1.3 * USUAL})
    assert timed.named() == []
    timed.rounds(5, {2: 1.3 * USUAL})
    (record,) = timed.verdicts()
    assert (record.kind, record.who) == ("straggler", ("rank 2.0",))
    assert record.reason == "rank 2.0 is slow at computing: 0.13 s a microbatch, the median of 4 peers is 0.1 s"
    assert record.done == "replica 2 is slow, and observed: nothing else is wanted"
    taken = {"rank 0.0": 1.0, "rank 1.0": 1.0, "rank 2.0": 1.3, "rank 3.0": 1.0}
    assert record.evidence["computing"] == pytest.approx({rank: USUAL * n for rank, n in taken.items()}, rel=0.01)
    assert timed.script.look.phase is Phase.RUNNING
    assert timed.script.look.first_cause is None
    assert prepared(timed.script.history) == []
    assert "rank 2.0 is slow at computing" in timed.script.look.reason
    assert "replica 2 is slow, and observed: nothing else is wanted" in timed.script.look.reason


def test_what_it_is_slow_at_is_told_apart() -> None:
    timed = Timed()
    timed.rounds(CONFIRM, data={1: 0.05})
    assert [record.reason for record in timed.verdicts()] == [
        "rank 1.0 is slow at loading data: 0.05 s a microbatch, the median of 4 peers is 0 s"
    ]


def test_one_pause_is_no_straggler() -> None:
    timed = Timed()
    timed.rounds(2)
    timed.round({2: 10 * USUAL})
    timed.rounds(5)
    assert timed.named() == []


def test_who_is_quick_again_is_not_slow_any_more() -> None:
    timed = Timed()
    timed.rounds(CONFIRM, {2: 2 * USUAL})
    timed.rounds(CONFIRM - 1)
    assert not timed.script.records("not slow any more")
    timed.round()
    assert [record.facts["rank"] for record in timed.script.records("not slow any more")] == ["rank 2.0"]
    assert timed.script.look.reason == "training"


def test_two_peers_name_nobody() -> None:
    timed = Timed(ranks=2)
    timed.rounds(2 * CONFIRM, {1: 3 * USUAL})
    assert timed.named() == []


def test_heartbeats_that_are_lost_change_nothing() -> None:
    timed = Timed()
    for _ in range(CONFIRM):
        for rank, tally in timed.tallies.items():
            tally.step([(0.2 if rank == 3 else USUAL + JITTER[rank], 0.0)] * ROUND, 0.01)
        # Rank 0 is not heard at first: nobody is judged without it.
        for rank in (1, 2, 3):
            said = Heartbeat(name(rank), Position(0), "training", spent=timed.tallies[rank].spent)
            timed.script.hear(rank, said)
        timed.script.happen(Tick())
        timed.beat()
    assert timed.named() == ["rank 3.0"]


def test_who_owes_nothing_is_not_waited_for() -> None:
    timed = Timed(ranks=5)
    timed.idle = {0}
    timed.rounds(CONFIRM, {2: 2 * USUAL})
    assert timed.named() == ["rank 2.0"]


def test_all_of_them_become_slower() -> None:
    timed = Timed()
    timed.rounds(6)
    timed.rounds(CONFIRM, dict.fromkeys(range(4), 1.5 * USUAL))
    (record,) = timed.verdicts("alarm")
    assert record.reason == "all ranks are 1.50 times slower at computing than they were"
    assert timed.named() == []


def test_one_group_says_that_its_links_are_slow_and_not_whose() -> None:
    timed = Timed()
    for _ in range(6):
        timed.round(exchange=0.01)
    timed.round(exchange=0.5)
    timed.round(exchange=0.01)
    for _ in range(CONFIRM - 1):
        timed.round(exchange=0.02)
    assert timed.verdicts("inconclusive") == []
    for _ in range(2):
        timed.round(exchange=0.02)
    (record,) = timed.verdicts("inconclusive")
    assert record.who == ()
    assert "ranks [0, 1, 2, 3]: 2.00 times) that have no end in common" in record.reason


@given(st.dictionaries(st.integers(0, 4), st.floats(0.05, 0.5), max_size=5))
def test_nobody_is_named_who_is_not_clearly_slower_than_most(compute: dict[int, float]) -> None:
    timed = Timed(ranks=5)
    timed.rounds(CONFIRM + 1, compute)
    taken = sorted(compute.get(rank, USUAL) for rank in range(5))
    for rank in timed.named():
        assert compute.get(int(rank[5]), USUAL) > 1.09 * taken[2]
    assert len(timed.named()) <= 2


# --- what is done


def test_a_slow_one_owes_less_and_nobody_is_lost() -> None:
    timed = Timed("weigh")
    timed.rounds(CONFIRM, {2: 1.9 * USUAL})
    assert sorted(rank for rank, _ in prepared(timed.script.history)) == [0, 1, 2, 3]
    opened = timed.change()
    assert opened.speeds[2] == pytest.approx(opened.speeds[0] / 1.9, rel=0.01)
    shares = {rank: len(Weighted(opened.speeds).plan((0, 1, 2, 3), 8).indices[rank]) for rank in range(4)}
    assert shares[2] < 2
    assert max(shares.values()) == 3
    look = timed.script.look
    assert (look.recoveries, look.first_cause, look.phase, look.world) == ((), None, Phase.RUNNING, 4)
    # It is still slow, and owes as little as pays: nothing more is done.
    before = len(prepared(timed.script.history))
    timed.rounds(3 * CONFIRM, {2: 1.9 * USUAL})
    assert len(prepared(timed.script.history)) == before
    # Named once, and once more with what was done.
    assert timed.named() == ["rank 2.0"]
    # It is as quick as the others again: all owe the same.
    timed.rounds(CONFIRM + 1)
    opened = timed.change()
    assert opened.speeds == {}
    (record,) = timed.verdicts("alarm")
    assert (record.reason, record.done) == ("nobody is slow any more", "all owe alike again")
    before = len(prepared(timed.script.history))
    timed.rounds(3 * CONFIRM)
    assert len(prepared(timed.script.history)) == before


def test_where_shares_always_follow_speeds_they_follow_one_that_is_quick_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Timed, "alike", False)
    timed = Timed("weigh")
    timed.rounds(CONFIRM, {2: 1.9 * USUAL})
    timed.change()
    timed.rounds(CONFIRM + 1)
    opened = timed.change()
    assert opened.speeds[2] == pytest.approx(opened.speeds[0], rel=0.01)
    (record,) = timed.verdicts("alarm")
    assert record.done.startswith("nobody is slow, and all owe what they can do: microbatches of a step take 0.2")


def test_what_would_not_pay_is_not_done() -> None:
    timed = Timed("auto", microbatches=4)
    timed.rounds(2 * CONFIRM, {2: 1.2 * USUAL})
    assert timed.named() == ["rank 2.0"]
    assert prepared(timed.script.history) == []
    assert "no remedy gains" in timed.script.look.reason


def test_a_slow_one_leaves_for_a_spare_without_a_failure() -> None:
    timed = Timed("evict", spares=1, replaces=True)
    timed.rounds(CONFIRM, {2: 3 * USUAL})
    (record,) = timed.verdicts()
    assert record.who == ("rank 2.0",)
    assert "replica 2 is slow, and is let go" in record.done
    opened = timed.change(4)
    # It goes on with what it has, and begins nothing more; the spare is there already.
    assert opened.leaving == frozenset({name(2)})
    assert opened.world.replicas == (0, 1, 2, 3, 4)
    assert timed.script.standing(2) is Standing.MEMBER
    timed.step += 1
    timed.beat()
    for rank in (0, 1, 3, 4):
        timed.script.report(rank, Position(timed.step))
    timed.script.report(2, Position(timed.step), owed=())
    assert replicas(timed.script) == (0, 1, 3, 4)
    assert timed.script.standing(2) is Standing.LEFT
    assert sent(timed.script.history, 2, Fenced) == []
    look = timed.script.look
    assert (look.recoveries, look.first_cause, look.warnings) == ((), None, ())
    # The place of the spare is taken by another one.
    assert len(asked(timed.script)) == 1


def test_the_minimum_stays() -> None:
    timed = Timed("evict", minimum=4)
    timed.rounds(CONFIRM, {2: 3 * USUAL})
    assert ["no remedy gains" in record.done for record in timed.verdicts()] == [True]
    assert prepared(timed.script.history) == []


def test_nothing_is_done_in_the_middle_of_a_recovery() -> None:
    timed = Timed("evict")
    timed.rounds(CONFIRM - 1, {2: 3 * USUAL})
    timed.script.end(1)
    del timed.tallies[1]
    timed.round({2: 3 * USUAL})
    assert timed.named() == []


def test_a_policy_that_may_do_nothing_is_the_default() -> None:
    assert straggler_policy("observe", 600.0) == StragglerPolicy(600.0, weighs=False, evicts=False)
    with pytest.raises(ValueError, match="unknown straggler policy 'shoot'; use one of: observe, weigh, evict, auto"):
        straggler_policy("shoot", 600.0)
