"""Each step's record is published once and in order, whoever dies, and whatever is lost or comes twice."""

from everstep.actors.messages import Finished, Heartbeat, Ping
from everstep.actors.rank.history import History
from everstep.orchestrator.machine.events import Action, Heard, Publish, Send, Warned
from everstep.orchestrator.view import Phase
from everstep.policies.world import Position
from hypothesis import given, settings
from hypothesis import strategies as st

from .machine_script import Script, name, record_of


def published(actions: list[Action]) -> list[int]:
    return [record.step for action in actions if isinstance(action, Publish) for record in action.records]


def asked(actions: list[Action]) -> list[str]:
    return [
        action.incarnation
        for action in actions
        if isinstance(action, Send) and isinstance(action.message, Ping) and action.message.wanted
    ]


def test_records_are_taken_once_whoever_sends_them() -> None:
    script = Script(ranks=3).boot()
    assert published(script.beat(0, 2, records=(0, 1))) == [0, 1]
    assert published(script.beat(1, 3, records=(0, 1, 2))) == [2]
    assert published(script.beat(0, 3, records=(1, 2))) == []
    assert script.state.recorded == 3
    assert script.look.record == record_of(2)
    assert script.look.loss == record_of(2).loss


def test_a_record_that_would_leave_a_gap_waits_for_the_ones_before_it() -> None:
    script = Script(ranks=2).boot()
    assert published(script.beat(0, 5, held=3, records=(3, 4))) == []
    assert published(script.beat(1, 5, records=(0, 1, 2, 3, 4))) == [0, 1, 2, 3, 4]


def test_one_rank_is_asked_and_everybody_hears_what_is_here() -> None:
    script = Script(ranks=3).boot()
    script.beat(0, 2, records=(0, 1))
    actions = script.tick()
    pings = {action.incarnation: action.message for action in actions if isinstance(action, Send)}
    assert pings == {name(0): Ping(2, True), name(1): Ping(2, False), name(2): Ping(2, False)}


def test_the_lowest_seat_that_has_the_next_record_is_asked() -> None:
    script = Script(ranks=3).boot()
    assert asked(script.tick()) == [name(0)]
    script.beat(1, 1)
    assert asked(script.tick()) == [name(1)], "it has applied a step, for all that is known"
    script.beat(0, 1)
    assert asked(script.tick()) == [name(0)]
    script.end(0)
    assert asked(script.tick()) == [name(1)]


def test_a_newcomer_in_the_lowest_seat_is_not_asked_for_what_it_never_had() -> None:
    script = Script(ranks=3).boot()
    script.beat(1, 2, records=(0, 1))
    script.beat(0, 5, held=4)
    assert asked(script.tick()) == [name(1)], "it may come to have it"
    script.beat(2, 5, held=2)
    assert asked(script.tick()) == [name(2)]
    script.beat(1, 5, held=2)
    assert asked(script.tick()) == [name(1)]


def test_what_nobody_has_any_more_is_said_and_does_not_hold_up_the_rest() -> None:
    script = Script(ranks=3).boot()
    script.beat(0, 2, records=(0, 1))
    script.end(0)
    script.beat(1, 6, held=5)
    assert script.state.recorded == 2, "another rank may have them"
    script.beat(2, 6, held=4)
    assert script.look.warnings == ("the records of steps 2 to 3 are lost: every rank that had them is gone",)
    assert published(script.beat(2, 6, held=4, records=(4, 5))) == [4, 5]


def test_a_resumed_run_begins_where_it_begins() -> None:
    script = Script(ranks=2).boot()
    script.beat(0, 101, held=100)
    assert published(script.beat(1, 101, held=100, records=(100,))) == [100]
    assert script.look.warnings == ()


def test_the_rate_is_that_of_the_last_seconds() -> None:
    script = Script(ranks=2).boot()
    assert script.look.weight_per_s is None
    slow = [record_of(step, seconds=10.0) for step in range(3)]
    quick = [record_of(step, seconds=0.5) for step in range(3, 53)]
    script.hear(0, Heartbeat(name(0), Position(3), "training", records=tuple(slow)))
    assert (script.look.weight_per_s, script.look.model_flops_per_s) == (10.0, 60.0)
    script.hear(0, Heartbeat(name(0), Position(53), "training", records=tuple(quick)))
    assert (script.look.weight_per_s, script.look.model_flops_per_s) == (200.0, 1200.0)
    assert len(script.state.pace) == 20


def test_the_last_numbers_are_in_the_final_figures() -> None:
    script = Script(ranks=1, steps=1).boot()
    said = record_of(0, accuracy=0.75)
    script.hear(0, Heartbeat(name(0), Position(1), "training", records=(said,)))
    script.finish(0)
    assert script.look.metrics["numbers"] == {"accuracy": 0.75}


def test_warnings_are_kept_also_after_the_end() -> None:
    script = Script(ranks=1).boot()
    script.happen(Warned("metrics.jsonl: the disk is full"))
    script.finish(0)
    script.happen(Warned("callback Mine did not end in time"))
    assert script.state.phase is Phase.SUCCEEDED
    assert script.look.warnings == ("metrics.jsonl: the disk is full", "callback Mine did not end in time")


RANKS, STEPS = 4, 12
moves = st.lists(
    st.tuples(
        st.sampled_from(("apply", "apply", "beat", "beat", "lose", "twice", "late", "tick", "kill", "unheard")),
        st.integers(0, RANKS - 1),
    ),
    max_size=120,
)


class Ranks:
    """Ranks that apply steps, and a network that may lose, double and delay what they say; pings too."""

    def __init__(self) -> None:
        self.script = Script(ranks=RANKS, steps=STEPS).boot()
        self.histories = [History() for _ in range(RANKS)]
        self.applied = [0] * RANKS
        self.living = set(range(RANKS))
        self.late: list[tuple[int, Heartbeat]] = []

    def play(self, move: str, rank: int) -> None:
        script = self.script
        if rank not in self.living:
            return
        match move:
            case "apply" if self.applied[rank] < min(STEPS, min(self.applied[other] for other in self.living) + 1):
                # Members are at most one step apart.
                self.histories[rank].add(record_of(self.applied[rank]))
                self.applied[rank] += 1
            case "beat" | "twice":
                for _ in range(1 + (move == "twice")):
                    script.happen(Heard(name(rank), beat := self.beat(rank)))
                if move == "twice":
                    script.happen(Heard(name(rank), beat))
            case "lose":
                self.beat(rank)
            case "late":
                self.late.append((rank, self.beat(rank)))
            case "tick" | "unheard":
                self.deliver_late()
                self.ping(script.tick(0.1), deaf=rank if move == "unheard" else None)
            case "kill" if len(self.living) > 1:
                self.living.discard(rank)
                self.late = [(sender, beat) for sender, beat in self.late if sender != rank]
                script.end(rank)

    def beat(self, rank: int, last: bool = False) -> Heartbeat:
        history = self.histories[rank]
        held = history.held
        records = history.rest() if last else history.answer()
        return Heartbeat(name(rank), Position(self.applied[rank]), "training", held=held, records=records)

    def deliver_late(self) -> None:
        for rank, beat in self.late:
            self.script.happen(Heard(name(rank), beat))
        self.late = []

    def ping(self, actions: list[Action], deaf: int | None = None) -> None:
        for action in actions:
            if isinstance(action, Send) and isinstance(action.message, Ping):
                rank = int(action.incarnation.rpartition("-")[2])
                if rank in self.living and rank != deaf:
                    self.histories[rank].acknowledge(action.message.recorded, action.message.wanted)

    def finish(self) -> None:
        """Whoever lives applies the rest and says its last words."""
        self.deliver_late()
        for rank in sorted(self.living):
            while self.applied[rank] < STEPS:
                self.histories[rank].add(record_of(self.applied[rank]))
                self.applied[rank] += 1
            self.script.happen(Heard(name(rank), self.beat(rank, last=True)))
            self.script.happen(
                Heard(name(rank), Finished(name(rank), self.script.generation, "weights", 0.5, STEPS, 10))
            )


@settings(max_examples=300, deadline=None)
@given(moves)
def test_every_record_is_published_once_and_in_order_while_one_rank_lives(scenario: list[tuple[str, int]]) -> None:
    ranks = Ranks()
    for move, rank in scenario:
        ranks.play(move, rank)
        assert published(ranks.script.history) == list(range(ranks.script.state.recorded))
    ranks.finish()
    assert published(ranks.script.history) == list(range(STEPS))
    assert ranks.script.state.warnings == ()


@settings(max_examples=100, deadline=None)
@given(moves)
def test_ranks_keep_only_what_the_controller_lacks(scenario: list[tuple[str, int]]) -> None:
    """A few quiet rounds are enough for everything to arrive and to be dropped."""
    ranks = Ranks()
    for move, rank in scenario:
        ranks.play(move, rank)
    for _ in range(4):
        ranks.play("tick", min(ranks.living))
        for rank in sorted(ranks.living):
            ranks.play("beat", rank)
    ranks.ping(ranks.script.tick(0.1))
    assert ranks.script.state.recorded >= max(ranks.applied[rank] for rank in ranks.living)
    assert [ranks.histories[rank].rest() for rank in ranks.living] == [()] * len(ranks.living)
