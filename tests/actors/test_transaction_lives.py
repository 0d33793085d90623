"""Whatever comes to a transaction, in whatever order: what must hold after each move."""

from collections.abc import Mapping
from typing import Any

from everstep.actors.messages import Open
from everstep.actors.rank.transaction import ProtocolError, Transaction
from everstep.policies.workload import Versatile
from everstep.policies.world import Generation, Position
from hypothesis import given
from hypothesis import strategies as st

from .transactions import ME, OTHER, PEER, VAULT, WORK, folded, generation, opening

indices = st.frozensets(st.integers(0, 7)).map(sorted)
messages = st.fixed_dictionaries(
    {
        "number": st.integers(0, 2),
        "mine": indices,
        "ahead": st.integers(-1, 1),
        "known": st.booleans(),
        "shadows": st.sampled_from([{}, {ME: PEER}, {ME: OTHER}, {PEER: ME}]),
        "sources": st.sampled_from([{}, {}, {ME: ME}, {ME: PEER}, {OTHER: PEER}]),
        "restore": st.sampled_from([None, None, None, VAULT]),
        "leaving": st.sampled_from([frozenset(), frozenset({ME}), frozenset({PEER})]),
    }
)
moves = st.lists(
    st.one_of(
        st.tuples(st.just("open"), messages),
        st.tuples(st.sampled_from(["extend", "let go", "promote"]), indices),
        st.tuples(st.just("fold"), st.integers(0, 7)),
        st.tuples(st.just("late fold"), st.integers(0, 7)),
        st.tuples(st.sampled_from(["take up", "compute", "enter", "decide", "abandon", "obtain"]), st.none()),
        st.tuples(st.just("promise"), st.integers(-1, 2)),
    ),
    max_size=30,
)


def message_of(transaction: Transaction, facts: Mapping[str, Any]) -> Open:
    number = (transaction.generation.number if transaction.generation else 0) + facts["number"]
    step = max(0, transaction.position.step + facts["ahead"])
    return opening(
        number,
        facts["mine"],
        transaction.position if facts["ahead"] == 0 else Position(step),
        work=WORK if facts["known"] else None,
        shadows=facts["shadows"],
        sources=facts["sources"],
        restore=facts["restore"],
        leaving=facts["leaving"],
    )


def moved(transaction: Transaction, move: str, facts: Any) -> Transaction:
    """The next value; ``open`` in all its forms is played to it twice, and the second time must change nothing."""
    position, current = transaction.position, transaction.generation or generation(0)
    following = generation(current.number + 1)
    match move:
        case "open":
            message = message_of(transaction, facts)
        case "extend":
            mine = sorted({*transaction.indices, *facts})
            message = opening(following.number, mine, position, work=transaction.work)
        case "promote" | "let go":
            mine = transaction.indices if move == "promote" else facts
            message = opening(following.number, mine, position, work=transaction.work or WORK)
        case "fold":
            return transaction.fold(position, facts)
        case "late fold":
            return transaction.fold(position, facts, transaction.beginning - 1)
        case "take up":
            return transaction.take_up(position, WORK, transaction.planned(WORK, Versatile()))
        case "compute":
            return folded(transaction, *transaction.owed)
        case "enter":
            return transaction.enter(current)
        case "decide":
            return transaction.decide(current, Position(position.step + 1))
        case "abandon":
            return transaction.abandon(current)
        case "obtain":
            return transaction.obtain()
        case _:
            return transaction.promise(generation(max(0, current.number + facts)))
    after = transaction.open(message)
    assert after.open(message) is after, "a duplicate changes something"
    return after


@given(moves)
def test_whatever_comes_in_whatever_order(life: list[tuple[str, Any]]) -> None:
    transaction = Transaction(ME)
    promised: Generation | None = None
    given_up: set[Generation] = set()
    for move, facts in life:
        before = transaction
        if move == "take up" and before.world is None:
            continue
        try:
            transaction = moved(before, move, facts)
        except ProtocolError:
            continue
        assert transaction.done <= set(transaction.indices)
        assert transaction.beginning >= before.beginning
        if not transaction.done >= before.done:
            assert transaction.beginning > before.beginning, "something is forgotten, and whoever sums is not told"
        if move == "late fold":
            assert transaction is before
        if transaction.entered is not None:
            assert transaction.due == ()
            assert transaction.entered == transaction.generation
        # Promises.
        if transaction.promised is not None:
            assert promised is None or transaction.promised >= promised
            promised = transaction.promised
        if transaction.abandoned:
            assert transaction.generation is not None
            given_up.add(transaction.generation)
        if move == "decide":
            assert before.generation not in given_up
            assert (before.entered, before.due, before.lacks) == (before.generation, (), False)
        # Generations and positions only go up, but for a restore.
        if before.generation is not None:
            assert transaction.generation is not None
            assert transaction.generation >= before.generation
        if transaction.generation != before.generation:
            assert promised is None or transaction.generation is None or transaction.generation >= promised
            assert not transaction.abandoned
        if transaction.position < before.position:
            assert transaction.lacks or transaction.position == Position(before.position.step)
        if transaction.position > before.position and move != "decide":
            assert before.entered is not None or transaction.lacks, "it neither holds the sum nor was told where it is"
