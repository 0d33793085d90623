"""The rank's half of the protocol, method by method: what it allows, and what it refuses."""

from dataclasses import replace

import pytest
from everstep.actors.messages import Open, StoreAddress
from everstep.actors.rank.transaction import ProtocolError, Transaction
from everstep.policies.world import Generation, Member, Position, Seat, Work, WorkKind, World
from hypothesis import given
from hypothesis import strategies as st

STORE = StoreAddress("host", 1, "root")
START = Position(0)
WORK = Work(WorkKind.TRAINING, 6)
ME, PEER, OTHER = "me", "peer", "other"


def generation(number: int) -> Generation:
    return Generation(1, number)


def opening(
    number: int, mine: tuple[int, ...], position: Position = START, members: tuple[str, ...] = (ME, PEER)
) -> Open:
    world = World(generation(number), tuple(Member(name, Seat(place)) for place, name in enumerate(members)))
    return Open(world, position, {name: mine if name == ME else () for name in members}, STORE, WORK)


def opened(mine: tuple[int, ...] = (0, 1, 2)) -> Transaction:
    return Transaction(ME).open(opening(1, mine))


def voted(mine: tuple[int, ...] = (0, 1, 2)) -> Transaction:
    """All done, and in the vote of generation 1."""
    transaction = opened(mine)
    for index in mine:
        transaction = transaction.fold(Position(0), index)
    return transaction.enter(generation(1))


# --- fold


def test_indices_are_folded_in_any_order_and_what_is_left_is_owed() -> None:
    transaction = opened().fold(Position(0), 1)
    assert transaction.done == {1}
    assert transaction.owed == (0, 2)
    assert transaction.fold(Position(0), 2).fold(Position(0), 0).owed == ()


def test_a_fold_changes_no_value_that_was_handed_out() -> None:
    before = opened()
    before.fold(Position(0), 1)
    assert before.done == frozenset()


@pytest.mark.parametrize(
    ("position", "index", "text"),
    [
        (Position(1), 1, "microbatch 1 of step 1 is folded while at step 0"),
        (Position(0, attempt=1), 1, "is folded while at step 0"),
        (Position(0), 7, "microbatch 7 of step 0 is not owed"),
        (Position(0), 0, "microbatch 0 of step 0 is not owed"),
    ],
)
def test_nothing_else_is_folded(position: Position, index: int, text: str) -> None:
    transaction = opened().fold(Position(0), 0)
    with pytest.raises(ProtocolError, match=text.replace("(", r"\(")):
        transaction.fold(position, index)


def test_nothing_is_owed_before_the_first_generation() -> None:
    assert Transaction(ME).generation is None
    with pytest.raises(ProtocolError, match="not owed"):
        Transaction(ME).fold(Position(0), 0)


def test_folding_goes_on_while_the_group_is_abandoned() -> None:
    assert opened().abandon(generation(1)).fold(Position(0), 0).done == {0}


# --- enter


def test_the_vote_is_entered_when_nothing_is_owed() -> None:
    assert voted().entered == generation(1)
    assert opened(()).enter(generation(1)).entered == generation(1)


def test_the_vote_is_not_entered_before_the_rank_has_come_to_its_work() -> None:
    nobody_there = replace(opening(1, ()), work=None, indices={})
    with pytest.raises(ProtocolError, match="the vote of step 0 is entered before this rank has come to it"):
        Transaction(ME).open(nobody_there).enter(generation(1))


def test_the_vote_is_not_entered_while_something_is_owed() -> None:
    with pytest.raises(ProtocolError, match=r"the vote of step 0 is entered while \(0, 1, 2\) are owed"):
        opened().enter(generation(1))


@pytest.mark.parametrize("number", [0, 2])
def test_the_vote_of_another_generation_is_not_entered(number: int) -> None:
    transaction = opened(())
    assert transaction.enter(generation(number)) is transaction


def test_the_vote_of_an_abandoned_generation_is_not_entered() -> None:
    transaction = opened(()).abandon(generation(1))
    assert transaction.enter(generation(1)) is transaction


# --- decide


def test_a_decision_moves_on_and_empties_what_was_done() -> None:
    transaction = voted().decide(generation(1), Position(1))
    assert (transaction.position, transaction.work, transaction.indices) == (Position(1), None, ())
    assert transaction.done == frozenset()
    assert transaction.entered is None
    assert transaction.generation == generation(1)


def test_no_decision_without_a_vote() -> None:
    with pytest.raises(ProtocolError, match=r"step 0 cannot be decided in generation 1\.1"):
        opened(()).decide(generation(1), Position(1))


def test_no_decision_in_a_generation_that_was_not_voted_in() -> None:
    transaction = voted().abandon(generation(1)).open(opening(2, (0, 1, 2)))
    for number in (1, 2):
        with pytest.raises(ProtocolError, match="cannot be decided"):
            transaction.decide(generation(number), Position(1))


def test_a_decision_needs_a_vote_of_its_own() -> None:
    transaction = voted().decide(generation(1), Position(1))
    with pytest.raises(ProtocolError, match="step 1 cannot be decided"):
        transaction.decide(generation(1), Position(2))


# --- abandon and report: the promise


def test_nothing_is_decided_after_the_promise() -> None:
    """The vote may be seen whole a moment after the report went out: it is then too late."""
    transaction = voted().abandon(generation(1))
    with pytest.raises(ProtocolError, match="cannot be decided in generation"):
        transaction.decide(generation(1), Position(1))
    assert not transaction.current(generation(1))


def test_a_promise_for_later_generations_holds_for_this_one() -> None:
    assert voted().abandon(generation(7)).abandoned
    assert opened().abandon(generation(7)).generation == generation(1), "it is not a member of that one"


def test_an_old_promise_does_not_hold_for_a_newer_generation() -> None:
    transaction = opened().abandon(generation(1)).open(opening(2, (0, 1, 2)))
    assert transaction.abandon(generation(1)) is transaction
    assert transaction.current(generation(2))


def test_before_the_first_generation_there_is_nothing_to_abandon() -> None:
    transaction = Transaction(ME)
    assert transaction.abandon(generation(1)) is transaction
    assert not transaction.current(generation(1))


def test_a_report_says_what_is_held_and_why() -> None:
    report = opened().fold(Position(0), 1).abandon(generation(1)).report("closed", PEER)
    assert (report.incarnation, report.abandons, report.position) == (ME, generation(1), Position(0))
    assert (report.done, report.owed) == ({1}, {0, 2})
    assert (report.cause, report.accused) == ("closed", PEER)


def test_no_report_without_a_promise() -> None:
    for transaction in (Transaction(ME), opened(), opened().abandon(generation(1)).open(opening(2, (0, 1, 2)))):
        with pytest.raises(ProtocolError, match="a report needs a generation that was abandoned"):
            transaction.report()


# --- open


def test_the_first_generation_begins_where_this_rank_stands() -> None:
    transaction = Transaction(ME).open(opening(3, (1, 2)))
    assert (transaction.position, transaction.indices) == (START, (1, 2))
    assert transaction.generation == generation(3)


def test_a_new_generation_keeps_what_is_done_and_brings_more() -> None:
    transaction = opened((0, 1)).fold(Position(0), 0).abandon(generation(1)).open(opening(2, (0, 1, 5)))
    assert transaction.done == {0}
    assert transaction.owed == (1, 5)
    assert transaction.current(generation(2))
    assert transaction.entered is None


def test_a_vote_of_an_older_generation_does_not_count_in_the_new_one() -> None:
    transaction = voted().abandon(generation(1)).open(opening(2, (0, 1, 2)))
    assert transaction.entered is None
    with pytest.raises(ProtocolError, match="cannot be decided"):
        transaction.decide(generation(2), Position(1))


@pytest.mark.parametrize("number", [0, 1])
def test_a_stale_open_changes_nothing(number: int) -> None:
    transaction = opened().fold(Position(0), 0)
    assert transaction.open(opening(number, (7,), Position(9))) is transaction
    abandoned = transaction.abandon(generation(1))
    assert abandoned.open(opening(number, (7,))) is abandoned, "an old generation cannot be made current again"


def test_what_a_peer_has_decided_is_followed_by_those_who_voted() -> None:
    transaction = voted().abandon(generation(1)).open(opening(2, (3, 4), Position(1)))
    assert (transaction.position, transaction.indices, transaction.done) == (Position(1), (3, 4), frozenset())
    assert transaction.entered is None
    assert transaction.current(generation(2))


def test_a_void_attempt_is_followed_too() -> None:
    transaction = voted().abandon(generation(1)).open(opening(2, (0, 1), Position(0, attempt=1)))
    assert transaction.position == Position(0, attempt=1)
    assert transaction.owed == (0, 1)


def test_nobody_follows_who_did_not_vote() -> None:
    transaction = opened(()).abandon(generation(1))
    with pytest.raises(ProtocolError, match="step 0 is called decided, but its vote was never entered here"):
        transaction.open(opening(2, (), Position(1)))


def test_a_vote_of_an_older_generation_is_no_reason_to_follow() -> None:
    transaction = voted().abandon(generation(1)).open(opening(2, (0, 1, 2))).abandon(generation(2))
    with pytest.raises(ProtocolError, match="was never entered here"):
        transaction.open(opening(3, (), Position(1)))


def test_what_is_decided_is_not_opened_again() -> None:
    transaction = voted().decide(generation(1), Position(1)).abandon(generation(1))
    with pytest.raises(ProtocolError, match="step 1 follows a decided one, 0 was opened"):
        transaction.open(opening(2, (), Position(0)))


def test_what_is_done_is_not_given_to_others() -> None:
    transaction = opened().fold(Position(0), 0).fold(Position(0), 2).abandon(generation(1))
    with pytest.raises(ProtocolError, match=r"finished microbatches \[2\] of step 0 were given to others"):
        transaction.open(opening(2, (0, 1)))


def test_a_generation_without_me_is_not_mine() -> None:
    with pytest.raises(ProtocolError, match=r"generation 1\.2 was opened to me, not a member"):
        opened().open(opening(2, (), members=(PEER, OTHER)))


# --- over whole lives

moves = st.lists(
    st.tuples(st.sampled_from(["fold", "enter", "decide", "abandon", "open", "follow"]), st.integers(0, 3))
)


@given(moves)
def test_whatever_happens_positions_only_go_up_and_promises_hold(life: list[tuple[str, int]]) -> None:
    transaction = opened()
    promised = generation(0)
    for move, number in life:
        before = transaction
        current = transaction.generation
        assert current is not None
        try:
            match move:
                case "fold":
                    transaction = transaction.fold(transaction.position, number)
                case "enter":
                    transaction = transaction.enter(replace(current, number=max(0, current.number - number % 2)))
                case "decide":
                    following = Position(transaction.position.step + 1)
                    transaction = transaction.decide(current, following).take_up(following, WORK, (0, 1, 2))
                    assert current > promised
                    assert before.owed == ()
                case "abandon":
                    transaction = transaction.abandon(replace(current, number=current.number + number - 1))
                    if transaction.abandoned:
                        promised = max(promised, current)
                case "open":
                    message = opening(current.number + number - 1, (0, 1, 2), transaction.position)
                    transaction = transaction.open(message)
                case "follow":
                    following = Position(transaction.position.step + 1)
                    transaction = transaction.open(opening(current.number + 1, (0, 1, 2), following))
                    assert before.entered == current
        except ProtocolError:
            assert transaction == before
        assert transaction.position >= before.position
        assert transaction.generation is not None
        assert transaction.generation >= current
        assert transaction.done <= set(transaction.indices)
        if transaction.entered is not None:
            assert transaction.owed == ()
