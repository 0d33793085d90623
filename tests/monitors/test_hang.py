"""When nothing moves, whoever holds up the others is named, and nobody who may take that long or waits himself."""

from dataclasses import replace

import pytest
from everstep.monitors.collectives import in_another
from everstep.monitors.consensus import Agree, Attributed, Inconclusive
from everstep.monitors.hang import judge
from everstep.monitors.progress import Activity, Limits, Pending, ProgressRecord
from hypothesis import given
from hypothesis import strategies as st

LIMITS = Limits(hang=30.0, data=120.0, outside=300.0)
STILL = 400.0


def computing(**fields: object) -> ProgressRecord:
    return replace(ProgressRecord(7, activity=Activity.COMPUTING, microbatch=2, unchanged=STILL), **fields)


def waiting(sequence: int = 4, kind: str = "all-reduce", elements: int = 10, **fields: object) -> ProgressRecord:
    pending = Pending("1.3", sequence, kind, elements, "float32")
    return replace(ProgressRecord(7, activity=Activity.REDUCING, pending=pending, unchanged=STILL), **fields)


def judged(*records: ProgressRecord) -> Agree | Attributed | Inconclusive:
    return judge(dict(enumerate(records)), LIMITS)


def named(*records: ProgressRecord) -> Attributed:
    found = judged(*records)
    assert isinstance(found, Attributed), found
    assert found.evidence == dict(enumerate(records))
    return found


@pytest.mark.parametrize(
    ("culprit", "said"),
    [
        (computing(), "rank 1 is dead-locked in forward and backward at microbatch 2 of step 7"),
        (computing(activity=Activity.LOADING), "rank 1 is stuck in its data loader at microbatch 2 of step 7"),
        (computing(activity=Activity.OUTSIDE, microbatch=None), "does not come back from user code between steps"),
        (computing(activity=Activity.SAVING, microbatch=None), "does not get on with the wait for a copy"),
        (computing(step=6), "at microbatch 2 of step 6"),
        (waiting(3), "does not get on with all-reduce number 3 of group 1.3, 10 x float32"),
    ],
)
def test_who_is_left_behind_is_named(culprit: ProgressRecord, said: str) -> None:
    found = named(waiting(), culprit, waiting())
    assert found.ranks == (1,)
    assert said in found.reason
    assert "2 of 3 ranks wait for it" in found.reason


def test_who_waits_for_the_hindmost_is_not_named() -> None:
    """In a ring, whoever gets nothing from a stuck rank falls behind as well."""
    assert named(waiting(4), waiting(3), waiting(2), waiting(4), waiting(4), waiting(4)).ranks == (2,)
    assert named(waiting(4), computing(), waiting(4), waiting(3), waiting(4)).ranks == (1,)


def test_two_at_once() -> None:
    assert named(computing(), waiting(), waiting(), computing(activity=Activity.LOADING), waiting()).ranks == (0, 3)


@pytest.mark.parametrize(
    "records",
    [
        # Nobody has stood still for long.
        (waiting(unchanged=29.0), computing(unchanged=29.0), waiting(unchanged=29.0)),
        # The others wait, but the one whom they wait for moves.
        (waiting(), computing(unchanged=1.0), waiting()),
        # A long wait for data, and what users do between steps, have limits of their own.
        (waiting(), computing(activity=Activity.LOADING, unchanged=100.0), waiting()),
        (waiting(), computing(activity=Activity.OUTSIDE, unchanged=200.0), waiting()),
        # What was announced takes as long as it takes.
        (waiting(), computing(stage="evaluation"), waiting()),
        (waiting(), computing(stage="compilation"), waiting()),
        (),
    ],
)
def test_what_is_no_hang(records: tuple[ProgressRecord, ...]) -> None:
    assert isinstance(judged(*records), Agree)


def test_a_stage_may_have_a_limit() -> None:
    limits = replace(LIMITS, stages={"evaluation": 100.0})
    found = judge({0: waiting(), 1: computing(stage="evaluation"), 2: waiting()}, limits)
    assert isinstance(found, Attributed)
    assert "stage 'evaluation'" in found.reason


@pytest.mark.parametrize(
    "records",
    [
        (waiting(), computing()),
        (waiting(), computing(), waiting(), computing()),
        (computing(), waiting(), computing()),
        (waiting(), waiting(), waiting()),
        (computing(), computing(), computing()),
        # One has seen the vote, the others have not: nobody says who of them holds up the other.
        (waiting(), waiting(), computing(step=8)),
    ],
)
def test_without_a_majority_ahead_nobody_is_named(records: tuple[ProgressRecord, ...]) -> None:
    found = judged(*records)
    assert isinstance(found, Inconclusive)
    assert "equally far behind" in found.reason


def test_what_the_kernel_says_needs_no_peers() -> None:
    found = named(waiting(), waiting(process="stopped"))
    assert found.ranks == (1,)
    assert "rank 1 is stopped by a signal, in all-reduce number 4" in found.reason
    assert named(waiting(), computing(process="traced"), waiting(), computing()).ranks == (1,)
    # For as long as it may take anyway, a debugger is nobody's business.
    assert isinstance(judged(waiting(unchanged=9.0), computing(process="stopped", unchanged=9.0)), Agree)


def test_another_collective_than_the_peers() -> None:
    found = named(waiting(), waiting(kind="all-gather"), waiting())
    assert found.ranks == (1,)
    assert "rank 1 entered all-gather number 4" in found.reason
    assert "its peers entered all-reduce number 4" in found.reason
    assert named(waiting(), waiting(), waiting(elements=11)).ranks == (2,)


def test_unlike_collectives_without_a_majority() -> None:
    found = judged(waiting(kind="all-gather"), waiting())
    assert isinstance(found, Inconclusive)
    assert "unlike collectives" in found.reason


@pytest.mark.parametrize("change", [{"group": "1.2"}, {"kind": "all-gather"}, {"elements": 9}, {"dtype": "int64"}])
def test_everything_but_the_count_is_compared(change: dict[str, object]) -> None:
    usual = Pending("1.3", 4, "all-reduce", 10, "float32")
    found = in_another({0: usual, 1: usual, 2: replace(usual, **change)})
    assert isinstance(found, Attributed)
    assert found.ranks == (2,)
    assert isinstance(in_another({0: usual, 1: replace(usual, sequence=5)}), Agree)


PENDING = st.builds(
    Pending, st.just("1.1"), st.integers(1, 3), st.sampled_from(["a", "b"]), st.just(4), st.just("int8")
)
RECORDS = st.builds(
    ProgressRecord,
    st.integers(6, 8),
    activity=st.sampled_from(Activity),
    stage=st.sampled_from(["training", "evaluation"]),
    pending=st.none() | PENDING,
    unchanged=st.sampled_from([1.0, STILL]),
    process=st.sampled_from(["", "sleeping", "stopped"]),
)


@given(st.lists(RECORDS, max_size=8))
def test_nobody_is_named_without_cause(held: list[ProgressRecord]) -> None:
    found = judged(*held)
    if not isinstance(found, Attributed):
        return
    for rank in found.ranks:
        assert LIMITS.exceeded(held[rank])
    stopped = {rank for rank, record in enumerate(held) if record.process == "stopped" and LIMITS.exceeded(record)}
    if stopped:
        assert set(found.ranks) == stopped
        return
    assert 2 * len(found.ranks) < len(held)
    for rank in found.ranks:
        # Nobody is further behind, and most are further, or like each other and unlike this one.
        assert all(record.reached >= held[rank].reached for record in held)
        peers = [record for record in held if record.reached > held[rank].reached]
        unlike = [record for record in held if record.pending != held[rank].pending]
        assert 2 * max(len(peers), len(unlike)) > len(held)


def test_an_unlike_collective_need_not_be_the_newest() -> None:
    waits = ProgressRecord(3, activity=Activity.REDUCING, unchanged=40.0)
    usual = Pending("1.1", 4, "all-reduce", 12, "float64", trail=7)
    records = {rank: replace(waits, pending=replace(usual, trail=9 if rank == 2 else 7)) for rank in range(4)}
    found = judge(records, Limits(hang=30.0))
    assert isinstance(found, Attributed)
    assert found.ranks == (2,)
    assert "rank 2 entered other collectives before all-reduce number 4 of group 1.1" in found.reason
