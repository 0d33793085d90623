"""Who audits whom is the same everywhere and fair over time; a third one decides who was wrong."""

from collections import Counter

import pytest
from everstep.monitors.audit import Audit, audit_at
from everstep.policies.workload import Balanced
from hypothesis import given
from hypothesis import strategies as st

AUDIT = Audit(step=40, owner=3, auditor=1, judge=2, index=5)


def shares(world: list[int], microbatches: int = 12) -> dict[int, tuple[int, ...]]:
    return dict(Balanced().plan(world, microbatches).indices)


def test_only_every_so_often() -> None:
    world = shares([0, 1, 2])
    due = [step for step in range(50) if audit_at(step, world, 10) is not None]
    assert due == [0, 10, 20, 30, 40]
    assert audit_at(10, world, 0) is None
    with pytest.raises(ValueError, match="every=-1"):
        audit_at(10, world, -1)


@given(st.sets(st.integers(0, 30), min_size=2, max_size=7), st.integers(0, 1000), st.integers(1, 50))
def test_three_different_replicas_and_a_microbatch_of_the_owner(world: set[int], turn: int, every: int) -> None:
    held = shares(sorted(world))
    found = audit_at(turn * every, held, every)
    assert found is not None
    parties = [found.owner, found.auditor, *([] if found.judge is None else [found.judge])]
    assert len(set(parties)) == len(parties) == min(3, len(world))
    assert set(parties) <= world
    assert found.index in held[found.owner]
    # The order in which a rank happens to hold the shares is no part of it.
    assert found == audit_at(turn * every, dict(reversed(held.items())), every)


@pytest.mark.parametrize("size", [3, 4, 5])
def test_fair_over_time(size: int) -> None:
    held = shares(list(range(size)), 3 * size)
    rounds = size * (size - 1) * 3 * (size - 2)
    found = [audit for step in range(rounds) if (audit := audit_at(step, held, 1)) is not None]
    pairs = Counter((audit.owner, audit.auditor) for audit in found[: size * (size - 1)])
    assert len(pairs) == size * (size - 1)
    for what in ("owner", "auditor", "judge"):
        counts = Counter(getattr(audit, what) for audit in found)
        assert len(counts) == size
        assert len(set(counts.values())) == 1
    assert len({audit.index for audit in found}) == 3 * size
    judges = Counter((audit.owner, audit.auditor, audit.judge) for audit in found)
    assert set(judges.values()) == {3}


def test_nobody_to_audit() -> None:
    assert audit_at(0, {4: (0, 1)}, 1) is None
    assert audit_at(0, {4: (), 5: ()}, 1) is None
    # Who computes nothing audits those who do.
    only = [audit_at(step, {4: (0, 1), 5: (), 6: ()}, 1) for step in range(4)]
    assert [audit.owner for audit in only if audit] == [4] * 4
    assert {audit.auditor for audit in only if audit} == {5, 6}


def test_two_only_detect() -> None:
    found = audit_at(0, shares([0, 1]), 1)
    assert found is not None
    assert found.judge is None
