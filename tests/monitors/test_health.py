"""What monitors say of a run is a value: it comes to the same however it is saved and gone back to."""

import pytest
from everstep.monitors.calibration import Calibrated, load, save
from everstep.monitors.certification import Trust
from everstep.monitors.envelope import Rule, calibrate
from everstep.monitors.health import MOST, Health, looked
from everstep.monitors.reading import Reading
from hypothesis import given
from hypothesis import strategies as st

RULE = Rule(persistence=2, enough=2, window=4, floor=0.01, distance=5, bin=1000)


def entropies(step: int, *values: float) -> tuple[Reading, ...]:
    return tuple(Reading("attention", step, "a", head, {"delta2.entropy": value}) for head, value in enumerate(values))


ENVELOPE = calibrate([entropies(0, 3.0, 3.01), entropies(0, 2.99, 3.0)], RULE)


def played(looks: list[tuple[float, ...]], health: Health | None = None, first: int = 1) -> Health:
    health = health or Health()
    for step, values in enumerate(looks, first):
        health = looked(health, 10 * step, entropies(10 * step, *values), RULE, ENVELOPE)
    return health


def test_two_clean_looks_make_a_state_healthy_and_none_after_that_is_while_something_is_outside() -> None:
    assert played([(3.0, 3.0)]).trust == Trust(None, 11, 11)
    assert played([(3.0, 3.0)] * 3).trust == Trust(21, 31, 31)
    ill = played([(3.0, 3.0), (3.0, 3.0), (3.0, 1.0), (3.0, 1.0), (3.0, 1.0)])
    assert (ill.trust.verified, ill.trust.candidate) == (11, None)
    assert ill.trust.blocked == "step 51: attention delta2.entropy of a head 1 is outside of what is healthy"
    (alarm,) = ill.alarms
    assert (alarm.step, alarm.since, alarm.head) == (40, 30, 1)


def test_a_look_that_nothing_came_of_says_nothing() -> None:
    health = looked(played([(3.0, 3.0)] * 2), 30, (), RULE, ENVELOPE)
    assert (health.trust.verified, health.trust.candidate) == (11, None)
    # Without an envelope nothing is judged.
    blind = looked(Health(), 10, entropies(10, 3.0), RULE, None)
    assert blind.trust.candidate is None
    assert blind.silent == 1


@given(st.lists(st.tuples(*[st.sampled_from([3.0, 1.0])] * 2), max_size=9), st.integers(0, 9))
def test_going_back_is_as_if_what_came_later_had_not_been(looks: list[tuple[float, ...]], at: int) -> None:
    kept = played(looks[:at])
    undone = played(looks[at:], kept, first=1 + len(looks[:at]))
    assert undone == played(looks)
    assert played(looks[at:], kept, first=1 + len(looks[:at])) == undone
    assert len(undone.alarms) <= MOST


def test_an_envelope_survives_its_file(tmp_path) -> None:
    held = Calibrated(RULE, ENVELOPE)
    save(tmp_path / "envelope.json", held)
    assert load(tmp_path / "envelope.json") == held
    for text in ("{}", "[", '{"rule": {}, "bands": [1]}'):
        (tmp_path / "bad").write_text(text)
        with pytest.raises(ValueError, match="it is no envelope"):
            load(tmp_path / "bad")
    with pytest.raises(ValueError, match="it cannot be read: No such file or directory"):
        load(tmp_path / "none")
