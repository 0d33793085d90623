"""Who differs from whom, and when nobody can be blamed."""

import pytest
from everstep.monitors.agreement import first_difference


def test_peers_that_agree() -> None:
    assert first_difference({}) is None
    assert first_difference({"a": {}}) is None
    assert first_difference({"a": {"x": "1"}, "b": {"x": "1"}, "c": {"x": "1"}}) is None


def test_a_majority_names_the_others() -> None:
    found = first_difference({"a": {"x": "1"}, "b": {"x": "2"}, "c": {"x": "1"}, "d": {"x": "3"}, "e": {"x": "1"}})
    assert found is not None
    assert found.key == "x"
    assert found.minority == ("b", "d")
    assert found.values == {"a": "1", "b": "2", "c": "1", "d": "3", "e": "1"}


@pytest.mark.parametrize(
    "values",
    [
        ["1", "2"],
        ["1", "1", "2", "2"],
        ["1", "1", "2", "3"],
        ["1", "2", "3"],
    ],
)
def test_without_a_majority_nobody_is_blamed(values: list[str]) -> None:
    """Two peers never blame each other, nor do equal halves, nor is the largest group of three enough."""
    found = first_difference({f"p{place}": {"x": value} for place, value in enumerate(values)})
    assert found is not None
    assert found.minority == ()


def test_the_first_key_that_differs_in_the_order_of_the_first_peer() -> None:
    found = first_difference(
        {"a": {"x": "1", "z": "1", "y": "1"}, "b": {"y": "2", "z": "2", "x": "1"}, "c": {"y": "2", "z": "1", "x": "1"}}
    )
    assert found is not None
    assert (found.key, found.minority) == ("z", ("b",))


def test_a_missing_key_is_a_value_of_its_own() -> None:
    found = first_difference({"a": {"x": "1"}, "b": {"x": "1"}, "c": {}})
    assert found is not None
    assert (found.key, found.minority) == ("x", ("c",))
    assert found.values["c"] == "missing"
    extra = first_difference({"a": {"x": "1"}, "b": {"x": "1", "more": "2"}, "c": {"x": "1"}})
    assert extra is not None
    assert (extra.key, extra.minority) == ("more", ("b",))
