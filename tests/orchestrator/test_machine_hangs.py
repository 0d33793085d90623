"""Everybody lives and nothing moves: whoever holds up the others is named, given the probe time, and replaced."""

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest
from everstep.actors.messages import Fenced, Heartbeat
from everstep.actors.node.sentinel_messages import SentinelBeat
from everstep.conf.elastic import ElasticConfig, Timeouts
from everstep.conf.errors import ConfigError
from everstep.monitors.progress import LEAST, Activity, Pending, ProgressRecord
from everstep.orchestrator.machine.events import KillRank, StartRank, Tick
from everstep.orchestrator.machine.past import fold
from everstep.orchestrator.view import Phase
from everstep.policies.values import changed
from everstep.policies.world import Position

from .machine_script import START, Script, name, record_of, sent
from .test_machine_nodes import Watched

PROBE = Timeouts().probe
PENDING = Pending("1.1", 2, "all-reduce", 100, "float32")
WAITS = ProgressRecord(0, activity=Activity.REDUCING, pending=PENDING)
COMPUTES = ProgressRecord(0, activity=Activity.COMPUTING, microbatch=3)


def script(ranks: int = 4, hang: float | None = 5.0, **settings: bool) -> Script:
    held = Script(ranks=ranks, **settings).boot()
    held.state = changed(held.state, settings=replace(held.state.settings, hang=hang))
    return held


def stand(held: Script, records: Mapping[int, ProgressRecord], seconds: float, since: float = 0.0) -> None:
    """Time goes by, and with each tick every rank says that it is still at the same."""
    for tick in range(1, round(2 * seconds) + 1):
        held.now += 0.5
        for rank, record in records.items():
            said = replace(record, unchanged=since + tick / 2)
            held.hear(rank, Heartbeat(name(rank), START, "training", progress=said))
        held.happen(Tick())


def stuck(culprit: ProgressRecord = COMPUTES, ranks: int = 4) -> dict[int, ProgressRecord]:
    return {**dict.fromkeys(range(ranks), WAITS), 1: culprit}


def killed(held: Script) -> list[str]:
    return [action.incarnation for action in held.history if isinstance(action, KillRank)]


def test_who_holds_up_the_others_is_named_then_shut_out() -> None:
    held = script(replaces=True)
    before = len([action for action in held.history if isinstance(action, StartRank)])
    stand(held, stuck(), 5.0)
    assert not held.records("standstill")
    stand(held, stuck(), 0.5, since=5.0)
    (record,) = held.records("standstill")
    assert record.facts["ranks"] == ["rank 1.0"]
    assert "rank 1 is dead-locked in forward and backward at microbatch 3 of step 0" in str(record.facts["reason"])
    assert held.look.reason == record.facts["reason"]
    assert held.look.phase is Phase.RUNNING
    stand(held, stuck(), PROBE, since=5.5)
    assert killed(held) == []
    stand(held, stuck(), 0.5, since=5.5 + PROBE)
    assert killed(held) == [name(1)]
    assert sent(held.history, 1, Fenced)
    assert held.look.phase is Phase.RECOVERING
    assert str(held.look.first_cause).startswith("rank 1.0: is dead-locked in forward and backward at microbatch 3")
    assert "3 of 4 ranks wait for it" in str(held.look.first_cause)
    assert len([action for action in held.history if isinstance(action, StartRank)]) == before + 1
    (verdict,) = held.look.verdicts
    assert (verdict.kind, verdict.outcome, verdict.who) == ("hang", "attributed", ("rank 1.0",))
    assert verdict.evidence["rank 0.0"] == str(replace(WAITS, unchanged=5.5))
    entry = json.loads(json.dumps({"what": "verdict", **held.records("verdict")[0].facts}))
    assert fold([entry]).verdicts == (verdict,)
    held.end(1)
    held.recover(0, 2, 3)
    stand(held, dict.fromkeys((0, 2, 3), replace(WAITS, step=1)), 2.0)
    assert held.look.phase is Phase.RUNNING
    assert held.look.reason == "training"
    assert len(held.records("standstill")) == 1


def test_who_moves_again_in_time_stays() -> None:
    held = script()
    stand(held, stuck(), 6.0)
    assert held.records("standstill")
    stand(held, stuck(), 1.0)
    assert held.records("moving again")
    assert held.look.reason == "training"
    stand(held, stuck(), 5.0, since=1.0)
    assert killed(held) == []


@pytest.mark.parametrize(
    ("culprit", "bears"),
    [
        (replace(COMPUTES, activity=Activity.LOADING), 20.0),
        (replace(COMPUTES, activity=Activity.OUTSIDE), 50.0),
        (replace(COMPUTES, stage="evaluation"), 200.0),
        (replace(COMPUTES, stage="compilation"), 200.0),
    ],
)
def test_what_may_take_long_takes_long(culprit: ProgressRecord, bears: float) -> None:
    held = script()
    stand(held, stuck(culprit), bears)
    assert not held.records("standstill")
    if bears < 200.0:
        stand(held, stuck(culprit), 0.5, since=bears)
        assert held.records("standstill")


@pytest.mark.parametrize(
    "records",
    [
        # Two detect, and say so.
        {0: WAITS, 1: COMPUTES},
        dict.fromkeys(range(4), WAITS),
        dict.fromkeys(range(4), COMPUTES),
        {0: WAITS, 1: COMPUTES, 2: WAITS, 3: COMPUTES},
    ],
)
def test_who_cannot_be_named_is_left_alone(records: dict[int, ProgressRecord]) -> None:
    held = script(len(records))
    stand(held, records, 30.0)
    (record,) = held.records("standstill")
    assert record.facts["ranks"] == []
    assert "equally far behind" in held.look.reason
    (verdict,) = held.look.verdicts
    assert (verdict.outcome, verdict.who, verdict.done) == ("inconclusive", (), "nothing")
    assert killed(held) == []


def test_another_collective_than_the_others() -> None:
    held = script()
    stand(held, stuck(replace(WAITS, pending=replace(PENDING, kind="all-gather"))), 8.0)
    assert killed(held) == [name(1)]
    assert "entered all-gather number 2 of group 1.1" in str(held.look.first_cause)
    assert "its peers entered all-reduce" in str(held.look.first_cause)


def test_nobody_is_judged_before_all_have_told_where_they_are() -> None:
    held = script()
    records = stuck()
    del records[3]
    for tick in range(1, 60):
        held.now += 0.5
        held.beat(3)
        for rank, record in records.items():
            held.hear(rank, Heartbeat(name(rank), START, "training", progress=replace(record, unchanged=tick / 2)))
        held.happen(Tick())
    assert not held.records("standstill")


def test_by_default_the_steps_say_what_is_long() -> None:
    held = script(hang=None)
    stand(held, stuck(), 200.0)
    assert not held.records("standstill"), "no step was measured yet, and the first one may compile"
    held.beat(0, 1, records=[0])
    stand(held, stuck(), LEAST.hang)
    assert not held.records("standstill")
    stand(held, stuck(), 0.5, since=LEAST.hang)
    assert held.records("standstill")


def test_a_run_that_ends_waits_for_no_steps() -> None:
    held = script()
    held.finish(0, 2, 3)
    stand(held, stuck(), 60.0)
    assert not held.records("standstill")


def test_whoever_is_named_has_the_time_of_a_step_to_move() -> None:
    held = script()
    slow = (record_of(0, 8.0),)
    held.hear(0, Heartbeat(name(0), START, "training", records=slow, progress=WAITS))
    stand(held, stuck(), 1.0, since=100.0)
    assert held.records("standstill")
    stand(held, stuck(), 7.5, since=101.0)
    assert killed(held) == []
    stand(held, stuck(), 0.5, since=108.5)
    assert killed(held) == [name(1)]


def test_what_a_sentinel_sees_of_those_who_say_nothing() -> None:
    watched = Watched()
    held = watched.script
    held.state = changed(held.state, settings=replace(held.state.settings, hang=1.0))
    # Its silence alone would be borne for longer.
    for tick in range(1, 9):
        held.now += 0.5
        for rank in (0, 2, 3):
            said = replace(WAITS, unchanged=tick / 2)
            held.hear(rank, Heartbeat(name(rank), START, "training", progress=said))
        seen = {name(1): replace(COMPUTES, unchanged=tick / 2, process="stopped")}
        sentinel = watched.sentinels["a"]
        watched.hear("a", SentinelBeat(sentinel, "a", {name(1): "stopped"}, seen))
        watched.beat("b")
        held.happen(Tick())
    assert killed(held) == [name(1)]
    assert "is stopped by a signal, in forward and backward at microbatch 3" in str(held.look.first_cause)


def test_what_is_older_does_not_count() -> None:
    """A sentinel may have looked before the rank spoke, or after it."""
    watched = Watched()
    held = watched.script
    held.state = changed(held.state, settings=replace(held.state.settings, hang=1.0))
    for tick in range(1, 20):
        held.now += 0.5
        for rank in range(4):
            said = replace(WAITS if rank != 1 else replace(WAITS, step=1), unchanged=tick / 2)
            held.hear(rank, Heartbeat(name(rank), Position(0), "training", progress=said))
        seen = {name(1): replace(COMPUTES, unchanged=100.0)}
        watched.hear("a", SentinelBeat(watched.sentinels["a"], "a", {}, seen))
        watched.beat("b")
        held.happen(Tick())
    assert killed(held) == []


@pytest.mark.parametrize("hang", [0.0, -1.0, float("nan")])
def test_a_hang_that_is_no_time(hang: float) -> None:
    with pytest.raises(ConfigError, match=r"elastic\.hang="):
        ElasticConfig(microbatches_per_step=4, hang=hang)


def test_whoever_tells_last_that_all_go_on_is_not_named() -> None:
    """All have waited for one that had announced it; then they go on, and their heartbeats come one after the other."""
    held = script()
    waited = dict.fromkeys(range(4), WAITS)
    waited[3] = replace(COMPUTES, stage="export")
    stand(held, waited, 8.0)
    assert not held.records("standstill")
    ahead = replace(WAITS, pending=replace(PENDING, sequence=3))
    for rank in (0, 1, 3):
        held.hear(rank, Heartbeat(name(rank), START, "training", progress=replace(ahead, unchanged=0.01)))
    held.happen(Tick())
    assert not held.records("standstill")
    # It says so itself a moment later.
    stand(held, dict.fromkeys(range(4), ahead), 3.0)
    assert not held.records("standstill")
    # But whoever is still there when the others have stood for long is named.
    stand(held, {**dict.fromkeys(range(4), replace(ahead, step=1)), 2: ahead}, 1.0, since=5.0)
    assert [record.facts["ranks"] for record in held.records("standstill")] == [["rank 2.0"]]
