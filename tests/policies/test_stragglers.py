"""A slow replica is left alone, owes less or is shut out, whatever makes training earliest."""

from dataclasses import replace

import pytest
from everstep.policies.stragglers import Remedy, SlowFacts, StragglerPolicy
from hypothesis import given
from hypothesis import strategies as st


def facts(slow: float, world: int = 4, **fields: object) -> SlowFacts:
    seconds = {**dict.fromkeys(range(1, world), 1.0), 0: slow}
    return replace(SlowFacts(16, seconds, frozenset({0})), **fields)


POLICY = StragglerPolicy()
EVEN = StragglerPolicy(weighs=False)


def test_a_little_slow_is_observed() -> None:
    found = POLICY.decide(facts(1.1))
    assert (found.remedy, found.gain) == (Remedy.OBSERVE, 0.0)
    assert "no remedy gains" in found.reason


def test_what_gains_too_little_is_not_done() -> None:
    slightly = facts(1.04, microbatches=160)
    assert POLICY.decide(slightly).remedy is Remedy.OBSERVE
    assert StragglerPolicy(worth=0.0).decide(slightly).remedy is Remedy.WEIGH


def test_slow_owes_less() -> None:
    found = POLICY.decide(facts(1.6))
    assert found.remedy is Remedy.WEIGH
    # Four microbatches of 1.6 s become three, and nobody else has more than five of 1 s.
    assert found.step == pytest.approx(5.0)
    assert "take 5 s instead of 6.4 s" in found.reason


def test_very_slow_is_shut_out_where_another_one_is_ready() -> None:
    found = POLICY.decide(facts(9.0, spares=1))
    assert (found.remedy, found.replicas) == (Remedy.EVICT, (0,))
    assert found.step == pytest.approx(4.0)


def test_quotas_that_must_be_even() -> None:
    # Without it there are six microbatches a rank: that is less than four of 1.6 s, and more than four of 1.4 s.
    assert EVEN.decide(facts(1.6)).remedy is Remedy.EVICT
    assert EVEN.decide(facts(1.4)).remedy is Remedy.OBSERVE


def test_what_it_costs_must_come_in() -> None:
    assert POLICY.decide(facts(9.0, spares=1, remaining_steps=1000)).remedy is Remedy.EVICT
    assert StragglerPolicy(reopen=40.0, replacing=90.0).decide(facts(9.0, spares=1, remaining_steps=1)).remedy is (
        Remedy.OBSERVE
    )


def test_the_minimum_is_kept() -> None:
    assert EVEN.decide(facts(9.0, minimum=4)).remedy is Remedy.OBSERVE
    assert EVEN.decide(facts(9.0, minimum=3)).remedy is Remedy.EVICT
    assert EVEN.decide(facts(9.0, minimum=4, spares=1)).remedy is Remedy.EVICT


def test_nobody_is_left() -> None:
    alone = SlowFacts(4, {0: 2.0}, frozenset({0}))
    assert EVEN.decide(alone).remedy is Remedy.OBSERVE


@given(st.floats(1.0, 20.0), st.integers(2, 8), st.integers(0, 2), st.integers(1, 8), st.booleans())
def test_what_is_done_pays(slow: float, world: int, spares: int, minimum: int, weighs: bool) -> None:
    policy = StragglerPolicy(weighs=weighs)
    given_facts = facts(slow, world, spares=spares, minimum=minimum)
    found = policy.decide(given_facts)
    unhindered = policy.decide(replace(given_facts, minimum=1))
    assert unhindered.gain >= found.gain
    if found.remedy is Remedy.OBSERVE:
        assert found.gain == 0.0
        return
    now = -(-16 // world) * slow
    assert found.gain >= policy.worth * min(policy.horizon, policy.horizon / now * now)
    assert found.step < now
    if found.remedy is Remedy.EVICT:
        assert world - 1 + min(spares, 1) >= minimum


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"slow": frozenset({9})}, r"slow replicas \[9\] must be members"),
        ({"slow": frozenset()}, r"slow replicas \[\] must be members"),
        ({"seconds": {0: 0.0}}, "replica 0 takes 0.0 s"),
        ({"microbatches": 0}, "microbatches=0"),
    ],
)
def test_facts_that_are_none(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        replace(facts(2.0), **wrong)


@pytest.mark.parametrize("wrong", [{"worth": 1.0}, {"worth": -0.1}, {"horizon": 0.0}, {"reopen": float("nan")}])
def test_a_policy_that_cannot_work(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        StragglerPolicy(**wrong)  # type: ignore[arg-type]
