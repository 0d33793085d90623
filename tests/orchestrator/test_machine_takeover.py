"""What a controller that takes over makes of odd things that ranks tell it; the usual ones are a scenario."""

from collections.abc import Iterable
from dataclasses import replace

from everstep.actors.messages import Heartbeat, Hello, Hold, Open, Ready, Serving
from everstep.conf.elastic import Timeouts
from everstep.monitors.certification import Trust
from everstep.orchestrator.listener import DriverHello
from everstep.orchestrator.machine.distrust import Rollback
from everstep.orchestrator.machine.events import (
    Action,
    Heard,
    Record,
    Saved,
    Send,
    StoreOpened,
    Tick,
    TookOver,
    Undo,
)
from everstep.orchestrator.machine.past import KnownRank, Past
from everstep.orchestrator.machine.settings import Settings
from everstep.orchestrator.machine.state import Standing, State
from everstep.orchestrator.machine.transition import advance
from everstep.orchestrator.view import Phase
from everstep.policies.retention import Undone
from everstep.policies.workload import Balanced
from everstep.policies.world import Generation, Member, Position, Seat, Work, WorkKind, World

from .machine_script import Script, name

TRAINING, EVALUATION = Work(WorkKind.TRAINING, 8), Work(WorkKind.EVALUATION, 8)


class SecondLife:
    """A controller of the second term, which begins with ``past``, and with what it has ``found`` before."""

    def __init__(self, past: Past, *found: Saved, replicas: int = 2) -> None:
        ranks = tuple(f"{place:04d}-b" for place in range(replicas))
        self.state = State(Settings("test", 2, ranks, 1, Balanced(), Timeouts(), lives="b"))
        self.said: list[Action] = []
        for event in (*found, TookOver(past, None, 0.0), StoreOpened("host", 1)):
            self.hear(event)

    @property
    def held(self) -> list[str]:
        """Ranks that were told to be patient; they may have come to ``begin`` while nobody could tell them."""
        sends = [action for action in self.said if isinstance(action, Send)]
        return [action.incarnation for action in sends if isinstance(action.message, Hold)]

    def hear(self, event: TookOver | StoreOpened | Heard | Saved | Tick, now: float = 100.0) -> None:
        self.state, actions = advance(self.state, event, now)
        self.said += actions

    def come(self, incarnation: str, seat: Seat | None, world: World | None, work: Work = TRAINING) -> None:
        """It introduces itself."""
        messages: list[Hello | Ready | Serving] = [Hello(incarnation, 7, "node", seat=seat)]
        if world is not None:
            messages.append(Serving(incarnation, world, False, Position(3), work))
        for message in (*messages, Ready(incarnation, {"weight": "digest"}, 5)):
            self.hear(Heard(incarnation, message))


def world_of(number: int, *incarnations: str) -> World:
    members = tuple(Member(each, Seat(replica), "node") for replica, each in enumerate(incarnations))
    return World(Generation(1, number), members)


def known(*incarnations: str, seats: Iterable[int] = ()) -> dict[str, KnownRank]:
    places = [*map(Seat, seats)] or [Seat(replica) for replica in range(len(incarnations))]
    return {each: KnownRank(each, seat) for each, seat in zip(incarnations, places, strict=True)}


def test_who_serves_an_older_world_and_is_not_in_the_newest_is_shut_out_if_nobody_knows_why() -> None:
    life = SecondLife(Past())
    life.come("0002-a", Seat(2), world_of(1, "0000-a", "0001-a", "0002-a"))
    life.come("0000-a", Seat(0), world_of(2, "0000-a", "0001-a"))
    life.come("0001-a", Seat(1), world_of(2, "0000-a", "0001-a"))
    assert life.state.phase is Phase.RUNNING
    assert life.state.ranks["0002-a"].standing is Standing.FENCED
    assert life.state.ranks["0002-a"].cause == "it is no member of the newest generation"


def test_who_was_to_leave_and_was_not_told_is_told_by_the_next_controller() -> None:
    """The earlier one has written that they are let go, and died before it told them."""
    three = ("0000-a", "0001-a", "0002-a")
    life = SecondLife(Past(ranks=known(*three), target=2))
    for replica, each in enumerate(three):
        life.come(each, Seat(replica), world_of(1, *three))
    assert list(life.state.leaving) == ["0002-a"]
    drained = SecondLife(Past(ranks=known(*three), target=3, draining=frozenset({"node"})))
    unknown = SecondLife(Past(ranks=known(*three)))
    for other, leaving in ((drained, [*three]), (unknown, [])):
        for replica, each in enumerate(three):
            other.come(each, Seat(replica), world_of(1, *three))
        assert sorted(other.state.leaving) == leaving


def test_who_was_left_behind_and_is_known_is_a_spare() -> None:
    life = SecondLife(Past(ranks=known("0000-a", "0001-a", "0002-a")))
    life.come("0002-a", Seat(2), world_of(1, "0000-a", "0001-a", "0002-a"))
    life.come("0000-a", Seat(0), world_of(2, "0000-a", "0001-a"))
    life.come("0001-a", Seat(1), world_of(2, "0000-a", "0001-a"))
    assert life.state.phase is Phase.RUNNING
    assert list(life.state.parked) == life.held == ["0002-a"]
    assert life.state.ranks["0002-a"].seat is None


def test_members_that_went_different_ways_meanwhile_end_the_run() -> None:
    life = SecondLife(Past(ranks=known("0000-a", "0001-a")))
    world = world_of(1, "0000-a", "0001-a")
    life.come("0000-a", Seat(0), world)
    life.come("0001-a", Seat(1), world, EVALUATION)
    assert life.state.phase is Phase.FAILED
    assert life.state.error is not None
    assert "every rank must call run.evaluate alike" in life.state.error


def test_of_two_ranks_that_claim_a_seat_before_the_first_generation_one_is_a_spare() -> None:
    life = SecondLife(Past(ranks=known("0000-a", "0001-a", "0002-a", seats=(0, 1, 1))))
    for incarnation, seat in (("0000-a", 0), ("0001-a", 1), ("0002-a", 1)):
        life.come(incarnation, Seat(seat), None)
        life.hear(Heard(incarnation, Heartbeat(incarnation, Position(0), "begin")))
    assert life.state.phase is Phase.RUNNING
    assert life.state.world is not None
    assert life.state.world.incarnations == ("0000-a", "0001-a")
    assert list(life.state.parked) == life.held == ["0002-a"]


def test_a_member_that_says_late_that_it_is_ready_stays_one() -> None:
    world = world_of(1, "0000-a", "0001-a")
    life = SecondLife(Past(known("0000-a", "0001-a"), "1.1"))
    life.come("0000-a", Seat(0), world)
    for message in (Hello("0001-a", 7, "node"), Serving("0001-a", world, False, Position(3), TRAINING)):
        life.hear(Heard("0001-a", message))
    life.hear(Tick(), 101.0 + life.state.settings.timeouts.adopt)
    assert life.state.world == world
    life.hear(Heard("0001-a", Ready("0001-a", {"weight": "digest"}, 5)))
    assert (list(life.state.parked), life.held) == ([], [])
    assert life.state.ranks["0001-a"].standing is Standing.MEMBER


def test_an_introduction_without_a_new_controller_says_nothing() -> None:
    script = Script(ranks=2).boot()
    before = script.state
    script.hear(0, Serving(name(0), world_of(1, name(0), name(1)), False, Position(0)))
    assert (script.answered, script.state) == ([], before)


def test_what_is_not_known_is_told_to_the_journal() -> None:
    script = Script(ranks=2).boot()
    script.hear(0, DriverHello())  # type: ignore[arg-type]
    assert script.answered == [Record("unknown message", facts={"message": "DriverHello"})]


def going_back(gone: bool) -> SecondLife:
    """Everybody was to go back from step 4 to step 2 when the earlier controller died; nobody comes in time."""
    ranks = {one: replace(rank, gone=gone) for one, rank in known("0000-a", "0001-a").items()}
    pending = Rollback("corruption", "rank 0.0 computed wrong", 2)
    trust = {"corruption": Trust(verified=2, checked=4)}
    past = Past(ranks=ranks, generation="1.1", saved={"storage": 4}, rollback=pending, trust=trust)
    life = SecondLife(past, Saved("storage", 4, (2, 4), Generation(1, 1)))
    life.hear(Tick(), 100.0 + 2 * life.state.settings.timeouts.adopt)
    assert life.state.phase is Phase.STARTING
    return life


def test_who_begins_in_the_place_of_those_who_were_to_go_back_begins_with_what_is_trusted() -> None:
    life = going_back(gone=True)
    for place in range(2):
        life.come(f"{place:04d}-b", Seat(place), None)
    opened = [action.message for action in life.said if isinstance(action, Send) and isinstance(action.message, Open)]
    assert {(message.position, message.restore and message.restore.step) for message in opened} == {(Position(2), 2)}
    assert Undo(Undone(2, Generation(2, 1))) in life.said
    assert (life.state.rollback, life.state.held, life.state.saved) == (None, {"storage": (2,)}, {"storage": 2})
    assert life.state.trust["corruption"] == Trust(verified=2, checked=2)


def test_who_comes_too_late_goes_back_all_the_same() -> None:
    """Before anybody has begun in their place."""
    life = going_back(gone=False)
    for place in range(2):
        life.come(f"{place:04d}-a", Seat(place), world_of(1, "0000-a", "0001-a"))
    assert life.state.rollback is not None
    assert life.state.rollback.opened is None
    assert life.state.recovery is not None
