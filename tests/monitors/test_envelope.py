"""Alarms come for what leaves its envelope, on the sick side, and stays outside; and never without an envelope."""

import json
import math

import pytest
from everstep.monitors.envelope import Alarm, Band, Rule, Watch, band_of, calibrate, judge, loaded, rolled_back, saved
from everstep.monitors.reading import Reading
from hypothesis import given
from hypothesis import strategies as st

RULE = Rule(persistence=3, enough=4, window=8, floor=0.01, distance=5, bin=10)
KEY = ("attention", "blocks.0", 2, "delta2.entropy")


def entropy(step: int, value: float) -> Reading:
    return Reading("attention", step, "blocks.0", 2, {"delta2.entropy": value})


def play(
    values: list[float], watch: Watch | None = None, first: int = 0, rule: Rule = RULE
) -> tuple[Watch, list[Alarm]]:
    watch = Watch() if watch is None else watch
    alarms: list[Alarm] = []
    for step, value in enumerate(values, first):
        judged = judge(watch, [entropy(step, value)], rule)
        watch, alarms = judged.watch, [*alarms, *judged.alarms]
    return watch, alarms


def test_a_collapse_that_lasts_is_one_alarm() -> None:
    _, alarms = play([3.0, 3.01, 2.99, 3.0] + [1.0] * 20)
    (alarm,) = alarms
    assert (alarm.step, alarm.since, alarm.layer, alarm.head, alarm.value) == (6, 4, "blocks.0", 2, 1.0)
    assert alarm.healthy.low > 2.5
    assert alarm.sentence.startswith("blocks.0 head 2: attention delta2.entropy is 1, below 2.")
    assert alarm.sentence.endswith("few directions; it fits biased low-precision attention")


@pytest.mark.parametrize(
    "values",
    [
        [3.0] * 4 + [1.0, 1.0, 3.0, 1.0, 1.0, 3.0],  # does not last
        [3.0] * 4 + [9.0] * 9,  # the healthy side
        [3.0] * 2 + [1.0] * 9,  # not calibrated when it came
    ],
)
def test_no_alarm(values: list[float]) -> None:
    assert play(values)[1] == []


def test_what_is_no_number_is_outside() -> None:
    (alarm,) = play([3.0] * 4 + [math.nan] * 3)[1]
    assert "is not a number" in alarm.sentence


def test_what_is_infinite_is_healthy_on_that_side_and_makes_no_envelope() -> None:
    _, alarms = play([math.inf] * 4 + [3.0] * 4 + [1.0] * 3)
    assert [alarm.healthy.low for alarm in alarms] == [pytest.approx(3 * math.exp(-0.05))]


def test_what_departs_by_factors_is_as_far_down_as_up_and_can_leave_on_the_low_side() -> None:
    values, rule = [1.0, 2.0, 4.0, 8.0, 16.0], Rule(distance=2, enough=2, floor=0)
    scale = 2 * 1.4826 * math.log(2)
    assert band_of(values, rule, True) == Band(pytest.approx(4 * math.exp(-scale)), pytest.approx(4 * math.exp(scale)))
    assert band_of(values, rule).low < 0
    assert band_of([1e300, 1e300, 1e-300], rule, True) == Band(pytest.approx(1e300), pytest.approx(1e300))
    assert band_of([1e300, 1e-300], Rule(distance=9, enough=2), True).high == math.inf


def test_a_zero_is_outside_of_what_departs_by_factors() -> None:
    assert [alarm.value for alarm in play([3.0] * 4 + [0.0] * 9)[1]] == [0.0]
    assert play([0.0] * 9)[0].inside == {}


def test_without_an_envelope_it_abstains_and_says_so() -> None:
    assert judge(Watch(), [entropy(0, 3.0)], RULE).abstained == (KEY,)
    watch, _ = play([3.0] * 4)
    assert judge(watch, [entropy(4, 3.0)], RULE).abstained == ()
    assert judge(watch, [entropy(4, 3.0)], RULE, {}).abstained == (KEY,)


def test_an_envelope_of_other_seeds_holds_in_its_bin() -> None:
    runs = [[entropy(step, 3.0 if step < 10 else 2.0) for step in range(0, 20, 5)] for _ in range(2)]
    envelope = calibrate(runs, RULE)
    band = envelope[("attention", "blocks.0", "delta2.entropy"), 0]
    assert (band.low, band.high) == (pytest.approx(3 * math.exp(-0.05)), pytest.approx(3 * math.exp(0.05)))
    watch, alarms = Watch(), []
    for step in range(7, 14):
        judged = judge(watch, [entropy(step, 2.0)], RULE, envelope)
        watch, alarms = judged.watch, [*alarms, *judged.alarms]
    # 2 is sick in the first bin, for three steps, and healthy in the second.
    assert [alarm.step for alarm in alarms] == [9]
    assert judge(watch, [entropy(25, 2.0)], RULE, envelope).abstained == (KEY,)


@given(st.lists(st.sampled_from([3.0, 3.02, 1.0, math.inf]), max_size=30), st.integers(0, 30))
def test_saved_and_loaded_it_goes_on_alike(values: list[float], cut: int) -> None:
    watch, _ = play(values[:cut])
    assert loaded(json.loads(json.dumps(saved(watch)))) == watch
    again = play(values[cut:], loaded(saved(watch)), cut)
    assert again == play(values[cut:], watch, cut)


@given(st.lists(st.sampled_from([3.0, 3.02, 1.0]), min_size=1, max_size=8), st.integers(0, 7))
def test_a_rollback_leaves_what_had_happened_by_then(values: list[float], step: int) -> None:
    """As long as nothing has fallen out of the windows."""
    wide = Rule(persistence=9, enough=4, window=32, distance=5)
    watch, _ = play(values, rule=wide)
    at = min(step, len(values) - 1)
    then = play(values[: at + 1], rule=wide)[0]
    back = rolled_back(watch, at)
    assert back.inside == then.inside
    # Readings outside that a healthy one ended later are not known any more: fewer in a row, never more.
    assert all(seen == then.outside.get(key) for key, seen in back.outside.items())


def test_a_step_twice_needs_a_rollback_first() -> None:
    watch, _ = play([3.0] * 6)
    with pytest.raises(ValueError, match="step 3 after step 5; say first that it went back"):
        judge(watch, [entropy(3, 3.0)], RULE)
    judge(rolled_back(watch, 2), [entropy(3, 3.0)], RULE)


def test_what_has_no_sign_is_not_judged() -> None:
    assert judge(Watch(), [Reading("attention", 0, "a", 0, {"delta3.norm": 1.0})], RULE).watch == Watch()


def test_bad_rules_and_states_are_refused() -> None:
    with pytest.raises(ValueError, match="can never hold"):
        Rule(window=3, enough=4)
    with pytest.raises(ValueError, match="above 0"):
        Rule(distance=0)
    with pytest.raises(ValueError, match="no saved watch"):
        loaded({"inside": [1]})
