"""A state is verified by the clean check after its own, and by nothing less."""

import pytest
from everstep.monitors.certification import Trust, certified, rolled_back
from everstep.monitors.consensus import Verdict, exact
from hypothesis import given
from hypothesis import strategies as st

CLEAN = exact({0: 1, 1: 1, 2: 1})
NAMED = exact({0: 1, 1: 2, 2: 1})
UNKNOWN = exact({0: 1, 1: 2})


def after(*checks: tuple[int, Verdict]) -> Trust:
    trust = Trust()
    for step, verdict in checks:
        trust = certified(trust, step, [verdict])
    return trust


def test_candidate_then_verified() -> None:
    assert after((10, CLEAN)) == Trust(candidate=10, checked=10)
    assert after((10, CLEAN), (20, CLEAN)) == Trust(verified=10, candidate=20, checked=20)


@pytest.mark.parametrize("wrong", [NAMED, UNKNOWN])
def test_a_check_that_is_not_clean_blocks(wrong: Verdict) -> None:
    trust = after((10, CLEAN), (20, CLEAN), (30, wrong))
    assert (trust.verified, trust.candidate) == (10, None)
    assert "step 30" in str(trust.blocked)
    trust = certified(trust, 40, [CLEAN])
    assert trust == Trust(verified=10, candidate=40, checked=40)
    assert certified(trust, 50, [CLEAN, wrong, CLEAN]).candidate is None


def test_a_check_of_nothing_is_not_clean() -> None:
    trust = certified(after((10, CLEAN)), 20, [])
    assert (trust.verified, trust.candidate) == (None, None)
    assert "nothing was compared" in str(trust.blocked)


def test_going_back() -> None:
    trust = after((10, CLEAN), (20, CLEAN), (30, NAMED))
    assert rolled_back(trust, 10) == Trust(verified=10, checked=10)
    assert rolled_back(trust, 5) == Trust(verified=5, checked=5)
    assert rolled_back(after((10, CLEAN)), 5) == Trust(candidate=5, checked=5)
    assert rolled_back(after((10, NAMED)), 5) == Trust()
    assert rolled_back(after((10, CLEAN), (20, CLEAN)), 20) == Trust(verified=10, candidate=20, checked=20)
    with pytest.raises(ValueError, match="went back"):
        certified(trust, 30, [CLEAN])


@given(st.lists(st.sampled_from([CLEAN, NAMED, UNKNOWN]), max_size=12))
def test_verified_are_two_clean_checks_in_a_row(verdicts: list[Verdict]) -> None:
    clean = [verdict is CLEAN for verdict in verdicts]
    pairs = [step for step in range(len(clean) - 1) if clean[step] and clean[step + 1]]
    assert after(*enumerate(verdicts)).verified == (pairs[-1] if pairs else None)
