"""Nodes and their sentinels: what is a loss of a node, what is none, and who is told what."""

from dataclasses import dataclass, field

import pytest
from everstep.actors.messages import Fenced, Heartbeat, Ping, Release
from everstep.actors.node.sentinel_messages import Guard, SentinelBeat, SentinelHello
from everstep.conf.elastic import Timeouts
from everstep.orchestrator.machine.events import (
    Ended,
    Heard,
    NodeDraining,
    NodeLost,
    Resize,
    Room,
    Send,
    StartRank,
    StartSentinel,
    StopSentinel,
    Tick,
)
from everstep.orchestrator.machine.state import Standing
from everstep.orchestrator.view import Phase
from everstep.policies.placement import Node
from everstep.policies.world import Position
from hypothesis import given, settings
from hypothesis import strategies as st

from .machine_script import START, Script, killed, name
from .world_changes import arrive, asked, begins, opened

TIMEOUTS = Timeouts()
GIVEN_UP_S = TIMEOUTS.node + TIMEOUTS.probe


@dataclass
class Watched:
    """Ranks 0 and 1 on node a, 2 and 3 on node b; both nodes have a sentinel."""

    script: Script = field(default_factory=lambda: Script(ranks=4, timeouts=TIMEOUTS))
    sentinels: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        script = self.script.start()
        script.happen(Room(9, (Node("a"), Node("b"), Node("c"))))
        script.greet(0, 1, node="a")
        script.greet(2, 3, node="b")
        script.ready(0, 1, 2, 3)
        for rank in range(4):
            script.beat(rank)
        for node in ("a", "b"):
            self.come(node)

    def starts(self) -> list[StartSentinel]:
        return [action for action in self.script.history if isinstance(action, StartSentinel)]

    def come(self, node: str) -> None:
        """The newest sentinel that was asked for there is up."""
        self.sentinels[node] = next(start.incarnation for start in reversed(self.starts()) if start.node == node)
        self.hear(node, SentinelHello(self.sentinels[node], node, 500))

    def hear(self, node: str, message: SentinelHello | SentinelBeat) -> None:
        self.script.happen(Heard(message.incarnation, message))

    def beat(self, node: str, **ranks: str) -> None:
        self.hear(node, SentinelBeat(self.sentinels[node], node, ranks))

    def wait(self, seconds: float, *ranks: int, nodes: str = "ab", asleep: float = 0.0) -> None:
        """Time goes by, while these ranks and the sentinels of these nodes say that they live."""
        end = self.script.now + seconds
        while self.script.now < end - 1e-9:
            self.script.now += 0.5
            for rank in ranks:
                self.script.beat(rank)
            for node in nodes:
                self.beat(node)
            self.script.happen(Tick())

    def end_sentinel(self, node: str) -> None:
        self.script.happen(Ended(self.sentinels[node], "its connection ended"))

    def told(self, node: str, kind: type) -> list[object]:
        return [
            action.message
            for action in self.script.history
            if isinstance(action, Send)
            and action.incarnation == self.sentinels[node]
            and isinstance(action.message, kind)
        ]

    @property
    def lost(self) -> list[object]:
        return [record.facts["node"] for record in self.script.records("node lost")]


def test_each_node_with_ranks_gets_one_sentinel_that_knows_whom_it_guards() -> None:
    held = Watched()
    assert [start.node for start in held.starts()] == ["a", "b"]
    assert held.told("b", Guard) == [Guard({name(2): 1002, name(3): 1003})]
    held.script.tick()
    assert held.told("a", Ping) == [Ping()]


def test_where_the_cluster_tells_of_no_nodes_there_are_no_sentinels() -> None:
    script = Script(ranks=2).boot()
    script.wait(10.0, 0, 1)
    assert not [action for action in script.history if isinstance(action, StartSentinel)]


@pytest.mark.parametrize("sentinel_at", [0, 1, 2])
def test_what_ends_together_is_the_loss_of_a_node_whatever_is_heard_of_first(sentinel_at: int) -> None:
    held = Watched()
    script = held.script
    ends = [lambda: script.end(2), lambda: script.end(3)]
    ends.insert(sentinel_at, lambda: held.end_sentinel("b"))
    for end in ends:
        end()
    assert held.lost == ["b"]
    cause = "node b: its sentinel and its ranks ended together: rank 2.0, rank 3.0"
    assert script.look.first_cause == cause
    script.recover(0, 1)
    (recovery,) = script.look.recoveries
    assert (recovery.cause, recovery.world_before, recovery.world_after) == (cause, 4, 2)
    assert script.state.failures.records["b"].failures == 1
    # Ray tells of it much later.
    script.happen(NodeLost("b", "Ray has noticed"))
    assert held.lost == ["b"]


def test_a_sentinel_that_dies_alone_is_replaced_and_that_is_no_loss() -> None:
    held = Watched()
    held.wait(10.0, 0, 1, 2, 3)
    first = held.sentinels["b"]
    held.end_sentinel("b")
    assert len(held.starts()) == 2
    held.script.beat(2)
    again = held.starts()[2:]
    assert [start.node for start in again] == ["b"]
    assert again[0].incarnation != first
    held.come("b")
    held.wait(30.0, 0, 1, 2, 3)
    assert held.lost == []
    assert len(held.starts()) == 3
    assert (held.script.look.phase, held.script.look.world, held.script.look.first_cause) == (Phase.RUNNING, 4, None)
    # A rank that ends much later is a rank that ends.
    held.script.end(2)
    assert held.lost == []


def test_sentinels_that_do_not_stay_are_not_asked_for_again_and_again() -> None:
    held = Watched()
    held.end_sentinel("b")
    for _ in range(20):
        held.wait(0.5, 0, 1, 2, 3, nodes="a")
        newest = held.starts()[-1]
        if newest.node == "b":
            held.script.happen(Ended(newest.incarnation, "there is no room for it"))
    assert len([start for start in held.starts() if start.node == "b"]) <= 2 + 10.0 / TIMEOUTS.heartbeat


def test_a_rank_that_dies_alone_is_no_lost_node() -> None:
    held = Watched()
    held.script.end(2, 3)
    held.script.recover(0, 1)
    held.wait(10.0, 0, 1)
    assert held.lost == []
    assert (held.script.look.phase, held.script.look.world) == (Phase.RUNNING, 2)
    assert held.told("b", Ping)


@pytest.mark.parametrize("sentinel_first", [False, True])
def test_ends_that_are_far_apart_are_no_loss_of_a_node(sentinel_first: bool) -> None:
    held = Watched()
    if sentinel_first:
        # Before another one is asked for.
        held.end_sentinel("b")
        held.wait(3.0, 0, 1, 2, 3, nodes="a")
        held.script.end(2, 3)
    else:
        held.script.end(2, 3)
        held.script.recover(0, 1)
        held.wait(10.0, 0, 1)
        held.end_sentinel("b")
    assert held.lost == []


def test_a_silent_node_is_suspected_probed_and_given_up_at_once_with_all_its_ranks() -> None:
    held = Watched()
    script = held.script
    began = script.now
    while not held.lost:
        held.wait(0.5, 0, 1, nodes="a")
        assert script.now - began < 60.0
    assert GIVEN_UP_S < script.now - began <= GIVEN_UP_S + 1.5
    assert held.lost == ["b"]
    assert killed(script.answered) == [2, 3]
    assert held.told("b", Fenced)
    assert [action.incarnation for action in script.answered if isinstance(action, StopSentinel)] == [
        held.sentinels["b"]
    ]
    # Nobody could confirm these ends, so nobody waits for that.
    for rank in (0, 1):
        script.report(rank)
    assert [member.incarnation for member in opened(script).world.members] == [name(0), name(1)]
    # It comes back.
    for rank in (2, 3):
        script.beat(rank)
        assert [action.message for action in script.answered if isinstance(action, Send)] == [
            Fenced("this rank was replaced or given up")
        ]
    held.beat("b")
    assert isinstance(script.answered[0], Send)
    assert isinstance(script.answered[0].message, Fenced)
    held.hear("b", SentinelHello(held.sentinels["b"], "b", 500))
    assert isinstance(script.answered[0], Send)
    assert isinstance(script.answered[0].message, Fenced)


def test_while_a_rank_of_it_speaks_a_node_lives_and_its_stuck_sentinel_is_replaced() -> None:
    held = Watched()
    held.wait(20.0, 0, 1, 2, 3, nodes="a")
    assert held.lost == []
    assert held.script.look.world == 4
    assert [start.node for start in held.starts()] == ["a", "b", "b"]
    assert held.told("b", Fenced)


def test_while_its_sentinel_speaks_a_node_lives_and_only_its_silent_rank_is_given_up() -> None:
    held = Watched()
    began = held.script.now
    while held.script.standing(2) is not Standing.FENCED:
        held.script.now += 0.5
        held.beat("a")
        held.beat("b", **{name(2): "stopped", name(3): "sleeping"})
        for rank in (0, 1, 3):
            held.script.beat(rank)
        held.script.happen(Tick())
        assert held.script.now - began < 60.0
    assert held.lost == []
    assert held.script.look.first_cause is not None
    assert held.script.look.first_cause.endswith("nor an answer to a probe; its process is stopped")
    assert held.script.standing(3) is not Standing.FENCED


def test_a_pause_of_the_controller_itself_accuses_no_node() -> None:
    held = Watched()
    held.wait(1.0, 0, 1, 2, 3)
    held.script.tick(seconds=60.0, asleep=59.5)
    held.wait(0.5, 0, 1, 2, 3)
    held.script.tick(seconds=60.0, asleep=59.5)
    assert held.lost == []
    assert held.script.records("node suspected") == []
    assert held.script.records("sentinel given up") == []


def test_a_node_that_is_back_is_watched_anew_and_used_again() -> None:
    held = Watched(Script(ranks=4, timeouts=TIMEOUTS, replaces=True))
    script = held.script
    held.wait(10.0, 0, 1, 2, 3)
    script.happen(NodeLost("b", "its raylet is gone"))
    starts = [action for action in script.answered if isinstance(action, StartRank)]
    assert [start.avoid for start in starts] == [frozenset({"b"})] * 2
    script.recover(0, 1)
    # Nowhere else was room, and Ray has it on the same node, since that was only stopped.
    arrive(script, asked(script)[0], node="b")
    script.happen(Heard(asked(script)[0], Heartbeat(asked(script)[0], START, "waiting")))
    assert [start.node for start in held.starts()] == ["a", "b", "b"]
    old = held.sentinels["b"]
    held.come("b")
    held.hear("b", SentinelBeat(old, "b"))
    assert [action.message for action in script.answered if isinstance(action, Send)] == [
        Fenced("this sentinel was replaced, or its node was given up")
    ]
    script.happen(Resize(5))
    assert [action.avoid for action in script.answered if isinstance(action, StartRank)] == [frozenset()]


def test_a_node_that_is_back_is_used_again_also_where_no_sentinels_are() -> None:
    script = Script(ranks=3, replaces=True).start()
    script.greet(0, 1, node="a")
    script.greet(2, node="b")
    script.ready(0, 1, 2)
    script.happen(NodeLost("b", "out of reach"))
    script.recover(0, 1)
    arrive(script, asked(script)[0], node="b")
    script.happen(Resize(5))
    assert [action.avoid for action in script.answered if isinstance(action, StartRank)] == [frozenset()] * 2


def test_a_drained_node_is_left_in_peace_and_its_sentinel_is_let_go() -> None:
    held = Watched()
    script = held.script
    begins(script, 0)
    script.happen(NodeDraining("b", "Ray drains it"))
    for rank in range(4):
        script.report(rank, done=script.indices(rank), owed=())
    script.join(0, 1, 2, 3)
    script.resume(0, 1, 2, 3)
    begins(script, 0, step=1)
    for rank in range(4):
        script.report(rank, position=Position(1), begun=rank == 0, owed=())
    assert script.state.world is not None
    assert script.state.world.replicas == (0, 1)
    for rank in (2, 3):
        script.happen(Ended(name(rank), "its process ended"))
    held.wait(1.0, 0, 1)
    assert held.told("b", Release)
    script.happen(Ended(held.sentinels["b"], "its process ended"))
    script.happen(NodeLost("b", "it was drained"))
    assert held.lost == []
    assert script.look.first_cause is None
    assert script.look.recoveries == ()
    assert not script.state.failures.records


def test_a_loss_before_a_drained_node_is_left_was_foreseen_and_counts_as_no_failure() -> None:
    held = Watched()
    script = held.script
    begins(script, 0)
    script.happen(NodeDraining("b", "Ray drains it, and ends it in 1 s"))
    script.end(2)
    held.end_sentinel("b")
    script.end(3)
    assert held.lost == ["b"]
    assert script.look.first_cause is not None
    assert "foreseen" in script.look.first_cause
    assert not script.state.failures.records
    script.recover(0, 1)
    assert script.look.world == 2


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_node_is_lost_only_if_nobody_there_was_heard_for_long_or_all_have_ended(data: st.DataObject) -> None:
    held = Watched()
    script = held.script
    heard, alive = {"a": script.now, "b": script.now}, {0, 1, 2, 3}
    for _ in range(data.draw(st.integers(1, 40))):
        match data.draw(st.sampled_from(["rank", "sentinel", "tick", "tick", "end", "end sentinel", "come"])):
            case "rank":
                rank = data.draw(st.integers(0, 3))
                if script.standing(rank).living:
                    script.beat(rank)
                    heard["ab"[rank // 2]] = script.now
            case "sentinel":
                node = data.draw(st.sampled_from("ab"))
                if script.state.watches[node].up:
                    held.beat(node)
                    heard[node] = script.now
            case "tick":
                script.tick(data.draw(st.sampled_from([0.5, 1.0])))
            case "end":
                rank = data.draw(st.integers(0, 3))
                alive -= {rank}
                script.end(rank)
            case "end sentinel":
                held.end_sentinel(data.draw(st.sampled_from("ab")))
            case "come":
                node = data.draw(st.sampled_from("ab"))
                if held.starts()[-1].node == node and not script.state.watches[node].lost:
                    held.come(node)
                    heard[node] = script.now
        if script.state.phase.ended:
            return
        for node in held.lost:
            ranks = {0, 1} if node == "a" else {2, 3}
            silent = script.now - heard[str(node)]
            assert silent > GIVEN_UP_S - 1.5 or not any(rank in alive for rank in ranks)
