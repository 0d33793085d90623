"""What one controller life notes is what the next one begins with, whatever has happened."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from everstep.orchestrator.machine.asking import avoided
from everstep.orchestrator.machine.events import Event, Record, StartRank, TookOver
from everstep.orchestrator.machine.look import look
from everstep.orchestrator.machine.memory import inherited, note
from everstep.orchestrator.machine.past import Ending, Past, fold
from everstep.orchestrator.machine.state import State
from everstep.orchestrator.machine.transition import advance
from everstep.orchestrator.simulation.protocol import controllers
from everstep.orchestrator.simulation.protocol.simulation import Simulation
from everstep.policies.quarantine import NodeEvent
from everstep.policies.values import changed
from everstep.policies.world import Seat
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .machine_script import Script

KEPT = (
    "cadence",
    "setbacks",
    "target",
    "first_cause",
    "decision",
    "recoveries",
    "verdicts",
    "faults_fired",
    "warnings",
    "raised",
    "poison",
    "draining",
    "failures", "saved",
)  # fmt: skip


class Writer:
    """Keeps a journal as a controller does, through text."""

    def __init__(self) -> None:
        self.entries: list[Mapping[str, Any]] = []

    def keep(self, before: State, after: State, actions: list[Any], now: float) -> None:
        for action in (*note(before, after), *actions):
            if isinstance(action, StartRank):
                seat = None if action.seat is None else str(action.seat)
                action = Record("rank asked for", facts={"incarnation": action.incarnation, "seat": seat})
            if isinstance(action, Record):
                generation = str(action.generation) if action.generation else None
                entry = {"time": now, "what": action.what, "generation": generation, **action.facts}
                self.entries.append(json.loads(json.dumps(entry, default=str)))

    def past(self) -> Past:
        return fold(self.entries)


def played(seed: int) -> tuple[State, Past]:
    """A simulated run of one controller, to its end, and what is in its journal."""
    writer = Writer()
    last: list[State] = []

    def noting(state: State, event: Event, now: float) -> tuple[State, list[Any]]:
        after, actions = advance(state, event, now)
        if not last or after.settings.term == last[0].settings.term:
            writer.keep(state, after, actions, now)
            last[:] = [after]
        return after, actions

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(controllers, "advance", noting)
        Simulation(seed).run()
    return last[0], writer.past()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 100_000))
def test_the_next_life_knows_what_this_one_knew(seed: int) -> None:
    state, past = played(seed)
    after = inherited(State(state.settings), past)
    for name in KEPT:
        if name == "saved":
            # Which step vaults hold they tell themselves.
            assert after.saved.keys() == state.saved.keys()
            assert after.saved.get("storage") == state.saved.get("storage")
        else:
            assert getattr(after, name) == getattr(state, name), name
    if state.phase.ended:
        assert past.ending is not None
        assert (past.ending.phase, past.ending.error) == (state.phase, state.error)
        assert past.ending.metrics == json.loads(json.dumps(look(state, 0.0).metrics))
    else:
        assert past.ending is None


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 100_000))
def test_it_knows_every_rank_that_was_asked_for(seed: int) -> None:
    state, past = played(seed)
    assert set(past.ranks) == set(state.ranks)
    for name, known in past.ranks.items():
        rank = state.ranks[name]
        assert (known.pid, known.node) == (rank.pid, rank.node), name
        if known.gone:
            assert not rank.standing.living, name


def test_entries_of_nobody_are_passed_over() -> None:
    end = {"phase": "failed", "error": "it was deposed", "traceback": None, "metrics": {}}
    ending = {"what": "memory", "time": 1.0, "ending": end}
    went_on, cleans_up = ({"what": "taken over", "time": 2.0, "ended": ended} for ended in (False, True))
    assert fold([ending, went_on]).ending is None
    assert fold([ending, cleans_up]).ending == fold([went_on, ending]).ending == Ending(**end)
    assert fold([{"what": "something new", "time": 1.0}, {"time": 2.0}]) == Past()
    (known,) = fold([{"what": "rank asked for", "incarnation": "a", "seat": "1.0"}]).ranks.values()
    assert known.seat == Seat(1)


def test_nodes_that_failed_under_an_earlier_controller_are_kept_out_by_a_later_one() -> None:
    """Its clock is another one: what counts is how long ago it was."""
    writer = Writer()
    life = Script(ranks=5, replaces=True).start()
    epoch = 1.7e9
    for rank in range(5):
        life.greet(rank, node=f"node-{rank}")
    life.ready(*range(5))
    before = life.state
    for seconds in (0.0, 100.0, 200.0):
        life.now += seconds
        event = NodeEvent("node-1", "it broke")
        after = changed(before, failures=before.settings.quarantine.record(before.failures, event, life.now))
        writer.keep(before, after, [], epoch + life.now)
        before = after
    assert avoided(before, life.now) == {"node-1"}
    past = writer.past()
    later = State(changed(before.settings, term=2))
    state, _ = advance(later, TookOver(past, None, epoch + life.now + 10.0), 7.0)
    state = changed(state, ranks=before.ranks)
    assert avoided(state, 7.0) == avoided(before, life.now + 10.0) == {"node-1"}
    held = state.failures.records["node-1"]
    assert (held.failures, held.last, held.kept_out) == (3, "it broke", True)
    assert held.at == pytest.approx(-3.0)
    # It is forgiven as early as if nobody had taken over.
    forgiven = 4800.0
    assert avoided(state, 7.0 + forgiven) == avoided(before, life.now + 10.0 + forgiven) == frozenset()
    # And nothing of it is written once more.
    assert note(inherited(later, past, 7.0 - epoch - life.now - 10.0), state) == []


def test_a_journal_that_says_nothing_of_failures_is_read() -> None:
    assert fold([{"what": "memory", "time": 1.0, "decision": "wait"}]) == Past(decision="wait")
