"""The order of samples: a permutation, different every epoch, at any position in constant time."""

import time
from collections import Counter
from itertools import pairwise

import pytest
from everstep.actors.rank.order import Permutation, SampleOrder, mix
from hypothesis import given, settings
from hypothesis import strategies as st


@given(st.integers(1, 600), st.integers(0, 2**64 - 1))
def test_every_element_stands_at_one_place(n: int, key: int) -> None:
    permutation = Permutation(n, key)
    assert sorted(map(permutation, range(n))) == list(range(n))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 255, 256, 257, 1023, 1024, 1025, 4097])
def test_around_powers_of_two(n: int) -> None:
    assert sorted(map(Permutation(n, 7), range(n))) == list(range(n))


@pytest.mark.parametrize("place", [-1, 5, 10**9])
def test_a_place_outside_is_refused(place: int) -> None:
    with pytest.raises(IndexError, match=f"place {place} is not in 0..4"):
        Permutation(5, 0)(place)


def test_nothing_has_no_order() -> None:
    with pytest.raises(ValueError, match="at least one element"):
        Permutation(0, 0)


def test_keys_give_unrelated_orders() -> None:
    n = 1000
    orders = [list(map(Permutation(n, key), range(n))) for key in range(4)]
    for place, first in enumerate(orders):
        for second in orders[:place]:
            same = sum(a == b for a, b in zip(first, second, strict=True))
            assert same < 12, "two random orders of 1000 agree at about one place"


def test_an_order_looks_random() -> None:
    """First differences of a random order of n: each successor follows its predecessor about once."""
    n = 4000
    order = list(map(Permutation(n, 5), range(n)))
    assert sum(b - a == 1 for a, b in pairwise(order)) < 12
    # Where the first half of the elements lands, by quarter of the places.
    quarters = Counter(place * 4 // n for place, element in enumerate(order) if element < n // 2)
    assert all(abs(count - n // 8) < 5 * (n // 8) ** 0.5 for count in quarters.values())


@settings(max_examples=60)
@given(st.integers(1, 40), st.integers(1, 7), st.integers(1, 6), st.integers(0, 2**63 - 1), st.booleans())
def test_whole_epochs_hold_every_sample_equally_often(
    length: int, size: int, microbatches: int, seed: int, shuffle: bool
) -> None:
    """Tails cross epochs, so only after lcm(length, samples of a step) samples do both end together."""
    order = SampleOrder(length, size, microbatches, seed, shuffle)
    per_step = size * microbatches
    steps = length  # length steps of per_step samples are per_step whole epochs
    drawn: list[int] = []
    for step in range(steps):
        for index in range(microbatches):
            samples = order.samples(step, index)
            assert len(samples) == size
            drawn += samples
    assert Counter(drawn) == dict.fromkeys(range(length), per_step)
    for epoch in range(per_step):
        assert sorted(drawn[epoch * length : (epoch + 1) * length]) == list(range(length))


def test_a_microbatch_that_crosses_epochs() -> None:
    order = SampleOrder(5, 4, 1, 3, shuffle=False)
    assert [order.samples(step, 0) for step in range(3)] == [(0, 1, 2, 3), (4, 0, 1, 2), (3, 4, 0, 1)]


def test_a_microbatch_larger_than_the_data_set() -> None:
    assert Counter(SampleOrder(3, 9, 1, 3, shuffle=True).samples(4, 0)) == {0: 3, 1: 3, 2: 3}


def test_epochs_and_seeds_differ() -> None:
    n = 50
    epochs = [SampleOrder(n, n, 1, 11, shuffle=True).samples(epoch, 0) for epoch in range(4)]
    assert len(set(epochs)) == 4
    assert SampleOrder(n, n, 1, 12, shuffle=True).samples(0, 0) not in epochs


def test_the_order_does_not_depend_on_what_was_asked_before() -> None:
    forth, back = (SampleOrder(17, 3, 4, 9, shuffle=True) for _ in range(2))
    places = [(step, index) for step in range(12) for index in range(4)]
    there = {place: forth.samples(*place) for place in places}
    assert {place: back.samples(*place) for place in reversed(places)} == there


def test_a_late_step_costs_no_more_than_an_early_one() -> None:
    def seconds(step: int) -> float:
        best = float("inf")
        for _ in range(5):
            order = SampleOrder(10**9, 16, 64, 1, shuffle=True)
            started = time.perf_counter()
            for index in range(8):
                order.samples(step, index)
            best = min(best, time.perf_counter() - started)
        return best

    assert seconds(10**6) < 10 * seconds(0) + 0.01


def test_derived_seeds_do_not_collide_by_concatenation() -> None:
    assert mix(1, 23) != mix(12, 3)
    assert mix(1) != mix(1, 0)
    assert 0 <= mix(2**63 - 1, 5) < 2**64
    assert len({mix(step, index) for step in range(100) for index in range(100)}) == 10_000
