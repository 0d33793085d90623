"""The shared identities: order, names, and worlds that cannot be."""

import pickle
from itertools import pairwise

import pytest
from everstep.policies.world import Generation, Member, Position, Seat, Work, WorkKind, World


def member(replica: int, coordinate: int = 0) -> Member:
    return Member(f"r{replica}c{coordinate}", Seat(replica, coordinate))


def world(*members: Member, size: int = 1) -> World:
    return World(Generation(1, 1), members, size)


def test_generations_count_up_within_a_term_and_terms_come_first() -> None:
    first = Generation(1, 9)
    assert first.next() == Generation(1, 10) > first
    assert Generation(2, 1) > first.next()
    assert str(first) == "1.9"


def test_an_attempt_lies_between_its_step_and_the_next() -> None:
    assert Position(3) < Position(3, attempt=1) < Position(3, attempt=2) < Position(4)
    assert str(Position(3)) == "3"
    assert str(Position(3, attempt=1)) == "3 (attempt 1)"
    assert Position(3, attempt=2).first == Position(3)


def test_units_lie_between_steps_and_attempts_between_units() -> None:
    ordered = [
        Position(3),
        Position(3, attempt=7),
        Position(3, unit=1),
        Position(3, unit=1, attempt=1),
        Position(3, unit=2),
        Position(4),
    ]
    assert all(earlier < later for earlier, later in pairwise(ordered))
    assert str(Position(3, unit=1)) == "3, unit 1"
    assert str(Position(3, unit=1, attempt=2)) == "3, unit 1 (attempt 2)"
    assert Position(3, unit=1, attempt=2).first == Position(3, unit=1)


def test_work_is_the_same_if_kind_and_size_are() -> None:
    assert Work(WorkKind.EVALUATION, 4) == Work(WorkKind.EVALUATION, 4)
    assert Work(WorkKind.EVALUATION, 4) != Work(WorkKind.TRAINING, 4)
    assert Work(WorkKind.EVALUATION, 4) != Work(WorkKind.EVALUATION, 5)
    assert str(Work(WorkKind.EVALUATION, 4)) == "evaluation over 4 microbatches"


def test_seats_are_ordered_by_replica_then_coordinate() -> None:
    assert Seat(0, 1) < Seat(1, 0) < Seat(1, 1)
    assert str(Seat(2, 1)) == "2.1"


def test_members_are_found_by_incarnation_replica_and_coordinate() -> None:
    held = world(member(1, 0), member(1, 1), member(4, 0), member(4, 1), size=2)
    assert held.replicas == (1, 4)
    assert held.incarnations == ("r1c0", "r1c1", "r4c0", "r4c1")
    assert held.member("r4c1") == member(4, 1)
    assert held.member("r9c0") is None
    assert held.peers(1) == (member(1, 1), member(4, 1))


def test_replicas_keep_their_ids_when_others_leave() -> None:
    assert world(member(0), member(3)).replicas == (0, 3)


@pytest.mark.parametrize(
    ("members", "size", "text"),
    [
        ((member(1), member(0)), 1, "sorted by distinct seats"),
        ((member(0), member(0)), 1, "sorted by distinct seats"),
        ((member(0, 0), member(0, 1), member(1, 0)), 2, "replica 1 holds coordinates \\[0\\], not all 2"),
        ((member(0, 1),), 1, "replica 0 holds coordinates \\[1\\]"),
        ((member(0, 0), member(0, 1)), 1, "replica 0 holds coordinates \\[0, 1\\]"),
    ],
)
def test_a_world_that_cannot_be_is_refused(members: tuple[Member, ...], size: int, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        world(*members, size=size)


def test_only_what_was_given_travels() -> None:
    """What follows from it would make every message that carries a world several times larger."""
    there = world(member(0), member(1))
    before = len(pickle.dumps(there))
    assert there.by_name
    assert there.groups
    sent = pickle.dumps(there)
    assert len(sent) == before
    assert pickle.loads(sent) == there
    assert pickle.loads(sent).incarnations == there.incarnations
