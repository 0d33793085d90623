"""Nodes that fail again and again are kept out, never too many, and not for ever."""

from math import floor

import pytest
from everstep.policies.quarantine import Ledger, NodeEvent, Quarantine
from hypothesis import given
from hypothesis import strategies as st

NAMES = ("a", "b", "c", "d", "e", "f", "g", "h")
nodes = st.sampled_from(NAMES)
histories = st.lists(st.tuples(nodes, st.floats(0.0, 20_000.0)), max_size=25)
POLICY = Quarantine(half_life=1000.0, threshold=2.5, release=1.25, share=0.5)


def ledger_of(events: list[tuple[str, float]], policy: Quarantine = POLICY) -> Ledger:
    ledger = Ledger()
    for node, at in events:
        ledger = policy.record(ledger, NodeEvent(node, f"died at {at:g}"), at)
    return ledger


def test_the_third_failure_in_a_short_time_is_too_much() -> None:
    twice = ledger_of([("a", 0.0), ("a", 10.0)])
    assert POLICY.query(twice, NAMES, 10.0).excluded == {}
    assert POLICY.query(twice, NAMES, 10.0).reason == "0 of 8 nodes are kept out"
    thrice = POLICY.record(twice, NodeEvent("a", "rank 3.0 died"), 20.0)
    decision = POLICY.query(thrice, NAMES, 30.0)
    assert list(decision.excluded) == ["a"]
    assert decision.excluded["a"] == (
        "3 failures, the last 10 s ago (rank 3.0 died); they weigh 2.96, 2.5 is too much and below 1.25 is forgiven"
    )
    assert decision.spared == {}
    assert decision.reason == "1 of 8 nodes are kept out"


def test_three_failures_over_a_long_time_are_not() -> None:
    ledger = ledger_of([("a", 0.0), ("a", 1000.0), ("a", 2000.0)])
    assert POLICY.weight(ledger.records["a"], 2000.0) == pytest.approx(1.75)
    assert POLICY.query(ledger, NAMES, 2000.0).excluded == {}


def test_a_weight_halves_in_every_half_life() -> None:
    ledger = ledger_of([("a", 0.0)])
    assert [POLICY.weight(ledger.records["a"], at) for at in (0.0, 1000.0, 2000.0)] == [1.0, 0.5, 0.25]
    assert POLICY.weight(ledger.records["a"], 1e9) == 0.0


def test_a_node_is_let_in_again_when_its_failures_have_decayed() -> None:
    ledger = ledger_of([("a", 0.0)] * 5)
    decision = POLICY.query(ledger, NAMES, 100.0)
    assert decision.until["a"] == pytest.approx(2000.0), "five weigh a quarter of it after two half-lives"
    assert "a" in POLICY.query(ledger, NAMES, 1999.9).excluded
    assert POLICY.query(ledger, NAMES, 2000.1).excluded == {}


def test_what_is_between_release_and_threshold_stays_as_it_was() -> None:
    out = ledger_of([("a", 0.0)] * 3)
    assert "a" in POLICY.query(out, NAMES, 700.0).excluded
    still = POLICY.record(out, NodeEvent("a", "died"), 1100.0)
    assert POLICY.weight(still.records["a"], 1100.0) < POLICY.threshold
    assert "a" in POLICY.query(still, NAMES, 1100.0).excluded
    forgiven = POLICY.record(out, NodeEvent("a", "died"), 1300.0)
    assert POLICY.release < POLICY.weight(forgiven.records["a"], 1300.0) < POLICY.threshold
    assert POLICY.query(forgiven, NAMES, 1300.0).excluded == {}, "it was let in before, and one more is not too much"


def test_threshold_and_release_themselves_are_still_out() -> None:
    policy = Quarantine(half_life=1000.0, threshold=4.0, release=1.0, share=1.0)
    ledger = ledger_of([("a", 0.0)] * 4, policy)
    assert "a" in policy.query(ledger, NAMES, 0.0).excluded
    assert "a" in policy.query(ledger, NAMES, 2000.0).excluded
    again = policy.record(ledger, NodeEvent("a", "died"), 2000.0)
    assert policy.weight(again.records["a"], 2000.0) == 2.0
    assert "a" in policy.query(again, NAMES, 2000.0).excluded


def test_a_planned_end_is_no_failure() -> None:
    ledger = ledger_of([("a", 0.0), ("a", 1.0)])
    assert POLICY.record(ledger, NodeEvent("a", "drained", planned=True), 2.0) is ledger
    assert POLICY.record(Ledger(), NodeEvent("a", "preempted", planned=True), 2.0) == Ledger()


def test_the_heaviest_are_kept_out_first_and_the_rest_is_named() -> None:
    ledger = ledger_of([("a", 0.0)] * 3 + [("b", 0.0)] * 5 + [("c", 0.0)] * 4)
    decision = POLICY.query(ledger, ("a", "b", "c", "d"), 0.0)
    assert list(decision.excluded) == ["b", "c"]
    assert list(decision.spared) == ["a"]
    assert decision.spared["a"].startswith("3 failures, ")
    assert decision.reason == (
        "2 of 4 nodes are kept out, 1 more would be, but at most 2 may (0.5 of all, 1 must stay)"
    )
    assert list(POLICY.query(ledger, ("a", "b", "c", "d"), 0.0, minimum=3).excluded) == ["b"]
    assert POLICY.query(ledger, ("a", "b", "c", "d"), 0.0, minimum=9).excluded == {}


def test_equals_are_told_apart_by_name() -> None:
    ledger = ledger_of([("b", 0.0)] * 3 + [("a", 0.0)] * 3)
    assert list(POLICY.query(ledger, ("b", "a"), 0.0).excluded) == ["a"]


def test_only_nodes_that_are_there_count() -> None:
    ledger = ledger_of([("a", 0.0)] * 3 + [("b", 0.0)] * 3)
    decision = POLICY.query(ledger, ("b", "c"), 0.0)
    assert list(decision.excluded) == ["b"]
    assert decision.spared == {}


@pytest.mark.parametrize(
    ("share", "count", "most"), [(0.29, 100, 29), (0.25, 3, 0), (0.25, 4, 1), (1.0, 3, 2), (0.0, 9, 0)]
)
def test_the_share_is_rounded_down(share: float, count: int, most: int) -> None:
    policy = Quarantine(share=share)
    names = [f"node-{place:03}" for place in range(count)]
    ledger = ledger_of([(name, 0.0) for name in names for _ in range(3)], policy)
    assert len(policy.query(ledger, names, 0.0).excluded) == most


def test_what_weighs_nothing_any_more_is_forgotten() -> None:
    ledger = ledger_of([("a", 0.0), ("b", 9000.0)])
    assert set(ledger.records) == {"a", "b"}
    assert set(POLICY.record(ledger, NodeEvent("c", "died"), 10_000.0).records) == {"a", "b", "c"}
    later = POLICY.record(ledger, NodeEvent("c", "died"), 10_001.0)
    assert set(later.records) == {"b", "c"}
    anew = POLICY.record(ledger, NodeEvent("a", "died"), 10_001.0)
    assert anew.records["a"].failures == 1


def test_an_event_that_comes_late_counts_from_when_it_happened() -> None:
    ledger = ledger_of([("a", 1000.0), ("a", 0.0)])
    record = ledger.records["a"]
    assert (record.weight, record.at, record.failures, record.last) == (1.5, 1000.0, 2, "died at 1000")
    ahead = ledger_of([("a", 1000.0)] * 3)
    assert "the last 0 s ago" in POLICY.query(ahead, NAMES, 900.0).excluded["a"]


@given(histories, st.randoms())
def test_a_weight_does_not_depend_on_the_order_of_events(history: list[tuple[str, float]], chance: object) -> None:
    # Nothing is forgotten in so short a time.
    history = [(node, at / 4) for node, at in history]
    shuffled = list(history)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    one, other = ledger_of(history), ledger_of(shuffled)
    assert set(one.records) == set(other.records)
    for node, record in one.records.items():
        expected = sum(0.5 ** ((6000.0 - at) / 1000.0) for name, at in history if name == node)
        assert POLICY.weight(record, 6000.0) == pytest.approx(expected)
        assert POLICY.weight(other.records[node], 6000.0) == pytest.approx(expected)
        assert record.failures == sum(name == node for name, _ in history)


@given(histories, st.floats(0.0, 30_000.0), st.floats(0.0, 1.0), st.integers(0, 9), st.sets(nodes))
def test_never_too_many_never_the_lighter_and_each_for_a_reason(
    history: list[tuple[str, float]], now: float, share: float, minimum: int, there: set[str]
) -> None:
    policy = Quarantine(half_life=1000.0, threshold=2.0, release=1.0, share=share)
    ledger = ledger_of(sorted(history, key=lambda event: event[1]), policy)
    decision = policy.query(ledger, there, now, minimum)
    out, spared = set(decision.excluded), set(decision.spared)
    assert out | spared <= there
    assert not out & spared
    assert len(out) <= floor(share * len(there) + 1e-9)
    assert len(there) - len(out) >= min(minimum, len(there))
    weights = {node: policy.weight(ledger.records[node], now) for node in out | spared}
    assert min([weights[node] for node in out], default=9e9) >= max([weights[node] for node in spared], default=0.0)
    assert all(weight >= policy.release for weight in weights.values())
    if spared:
        assert len(out) == max(0, min(floor(share * len(there) + 1e-9), len(there) - minimum))
    for node in out:
        assert decision.excluded[node].startswith(f"{ledger.records[node].failures} failures")
        assert policy.weight(ledger.records[node], decision.until[node]) == pytest.approx(policy.release)


@given(histories)
def test_it_is_out_exactly_from_the_threshold_to_the_release(history: list[tuple[str, float]]) -> None:
    """Against a naive watch that looks at one node after every event and remembers whether it is out."""
    policy = Quarantine(half_life=1000.0, threshold=2.0, release=1.0, share=1.0)
    ordered = sorted(history, key=lambda event: event[1])
    times = [at for node, at in ordered if node == "a"]
    ledger, out, past = Ledger(), False, []
    for node, at in ordered:
        ledger = policy.record(ledger, NodeEvent(node, "died"), at)
        if node != "a":
            continue
        before = sum(0.5 ** ((at - then) / 1000.0) for then in past)
        past.append(at)
        if any(abs(edge - limit) < 1e-3 for edge in (before, before + 1) for limit in (1.0, 2.0)):
            return
        out = (out and before >= policy.release) or before + 1 >= policy.threshold
        assert ("a" in policy.query(ledger, NAMES, at).excluded) == out
    assert len(past) == len(times)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"half_life": 0.0}, "half_life=0.0 must be a finite, positive number"),
        ({"threshold": -1.0}, "threshold=-1.0 must be a finite, positive number"),
        ({"release": 0.0}, "release=0.0 must be a finite, positive number"),
        ({"release": 3.0}, "release=3 must not be above threshold=2.5"),
        ({"share": 1.1}, "share=1.1 must be between 0 and 1"),
        ({"share": -0.1}, "share=-0.1 must be between 0 and 1"),
        ({"share": float("nan")}, "share=nan must be between 0 and 1"),
    ],
)
def test_what_cannot_work_is_refused(settings: dict[str, float], text: str) -> None:
    with pytest.raises(ValueError, match="must") as refused:
        Quarantine(**settings)
    assert str(refused.value) == text


def test_release_may_equal_the_threshold() -> None:
    assert Quarantine(threshold=2.0, release=2.0).release == 2.0
    with pytest.raises(ValueError, match="minimum=-1"):
        POLICY.query(Ledger(), NAMES, 0.0, minimum=-1)
