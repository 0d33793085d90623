"""Mixtures: exact proportions at every position, and whole epochs of every source."""

import time
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from everstep import Microbatches, Mixture
from everstep.actors.rank.data import Loader
from everstep.actors.rank.mixture import Interleaving
from everstep.actors.rank.order import Ordered
from everstep.conf.errors import DataError
from hypothesis import example, given, settings
from hypothesis import strategies as st

SEED = 3
weights_of_sources = st.lists(st.one_of(st.integers(1, 12), st.integers(1, 10**6)), min_size=1, max_size=9)


@settings(max_examples=80, deadline=None)
@given(weights_of_sources, st.integers(1, 400))
@example([1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89], 2000)
def test_every_source_has_its_share_at_every_position(weights: list[int], positions: int) -> None:
    interleaving = Interleaving(weights)
    turns = [0] * len(weights)
    for position in range(positions):
        source, turn = interleaving(position)
        assert turn == turns[source]
        turns[source] += 1
        for other, weight in enumerate(weights):
            off = abs(turns[other] - Fraction(weight * (position + 1), sum(weights)))
            assert off < 2
            assert off <= Fraction(1, 2) or len(weights) > 2


@given(weights_of_sources, st.integers(0, 10**15))
def test_no_history_is_needed(weights: list[int], start: int) -> None:
    """Any window far away is as even as the first."""
    interleaving = Interleaving(weights)
    window = [interleaving(position) for position in range(start, start + 100)]
    for source, weight in enumerate(weights):
        turns = [turn for other, turn in window if other == source]
        assert turns == list(range(turns[0], turns[0] + len(turns))) if turns else True
        assert abs(len(turns) - Fraction(100 * weight, sum(weights))) < 4
        if turns:
            assert abs(turns[0] - Fraction(start * weight, sum(weights))) < 4


def test_a_period_holds_each_source_as_often_as_its_weight_says() -> None:
    interleaving = Interleaving([7, 3])
    assert Counter(interleaving(position)[0] for position in range(10)) == {0: 7, 1: 3}
    assert [interleaving(position)[0] for position in range(10, 20)] == [interleaving(place)[0] for place in range(10)]


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    weights=st.lists(st.integers(1, 5), min_size=4, max_size=4),
    seed=st.integers(0, 2**40),
    shuffle=st.booleans(),
)
def test_every_epoch_of_every_source_is_exact(lengths: list[int], weights: list[int], seed: int, shuffle: bool) -> None:
    sources = [[(number, sample) for sample in range(length)] for number, length in enumerate(lengths)]
    mixture = Mixture(sources, weights[: len(sources)])
    at = mixture.sample_order(seed, shuffle)
    drawn: list[list[int]] = [[] for _ in sources]
    for position in range(150):
        sample = at(position)
        source, own = mixture.locate(sample)
        assert mixture[sample] == (source, own)
        drawn[source].append(own)
    for length, samples in zip(lengths, drawn, strict=True):
        for start in range(0, len(samples) // length * length, length):
            epoch = samples[start : start + length]
            assert sorted(epoch) == list(range(length))
            assert shuffle or epoch == sorted(epoch)


def test_sources_and_epochs_are_shuffled_each_in_its_own_way() -> None:
    mixture = Mixture([list(range(50)), list(range(50))], [1, 1])
    at = mixture.sample_order(SEED, shuffle=True)
    own = [[sample % 50 for sample in map(at, range(200)) if sample // 50 == source] for source in (0, 1)]
    epochs = [tuple(samples[start : start + 50]) for samples in own for start in (0, 50)]
    assert len(set(epochs)) == 4
    assert tuple(map(mixture.sample_order(SEED + 1, shuffle=True), range(100))) != tuple(map(at, range(100)))


def test_weights_are_taken_as_written() -> None:
    """0.1 in binary is no tenth; numbers of numpy are written alike."""
    written: list[Any] = [[0.7, 0.3], [7, 3], [np.float64(0.7), np.float64(0.3)], [Fraction(7, 3), 1], [7e-9, 3e-9]]
    orders = []
    for weights in written:
        at = Mixture([range(100), range(100)], weights).sample_order(SEED, shuffle=True)
        orders.append([at(position) for position in range(10**6, 10**6 + 200)])
    assert all(order == orders[0] for order in orders)


def test_a_mixture_of_mixtures_is_one() -> None:
    inner = Mixture([["a"] * 3, ["b"] * 3], [1, 1])
    outer = Mixture([inner, ["c"] * 5], [2, 1])
    at = outer.sample_order(SEED, shuffle=True)
    assert Counter(outer[at(position)] for position in range(300)) == {"a": 100, "b": 100, "c": 100}


def test_microbatches_ask_a_data_set_for_its_order() -> None:
    mixture = Mixture([["web"] * 70, ["code"] * 5], [3, 1])
    assert isinstance(mixture, Ordered)
    loader = Loader(Microbatches(mixture, size=4, collate_fn=list), 2, SEED)
    assert [Counter(loader.load(step, index)) for step in (0, 10**6) for index in (0, 1)] == [{"web": 3, "code": 1}] * 4
    at = mixture.sample_order(SEED, shuffle=True)
    assert loader.order.samples(2, 1) == tuple(at((2 * 2 + 1) * 4 + place) for place in range(4))


def test_a_late_position_takes_microseconds() -> None:
    mixture = Mixture([range(10**9), range(10**7), range(10**8)], [0.613, 0.0031, 0.2])
    at = mixture.sample_order(SEED, shuffle=True)
    best = float("inf")
    for attempt in range(5):
        started = time.perf_counter()
        for position in range(10**15 + attempt, 10**15 + attempt + 100):
            at(position)
        best = min(best, (time.perf_counter() - started) / 100)
    assert best < 500e-6


@pytest.mark.parametrize(
    ("datasets", "weights", "text"),
    [
        ([], [], "a mixture of 0 data sets with 0 weights"),
        ([[1]], [1, 1], "a mixture of 1 data sets with 2 weights"),
        ([[1], [2]], [1, 0], "weight 0 of source 1 of the mixture must be a positive number"),
        ([[1], [2]], [-0.5, 1], r"weight -0\.5 of source 0"),
        ([[1], [2]], [1, float("nan")], "weight nan of source 1"),
        ([[1], [2]], [1, float("inf")], "weight inf of source 1"),
        ([[1], [2]], ["1", 1], "weight '1' of source 0"),
        ([[1], [2]], [True, 1], "weight True of source 0"),
        ([[1], []], [1, 1], "source 1 of the mixture: the data set is empty"),
        ([iter([1]), [1]], [1, 1], "source 0 of the mixture: list_iterator is not a map-style data set"),
    ],
)
def test_what_is_no_mixture_is_refused_in_one_line(datasets: list[Any], weights: list[Any], text: str) -> None:
    with pytest.raises(DataError, match=text) as refusal:
        Mixture(datasets, weights)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("sample", [-1, 5])
def test_an_id_outside_is_refused(sample: int) -> None:
    with pytest.raises(IndexError, match=f"sample {sample} of 5"):
        Mixture([[1, 2], [3, 4, 5]], [1, 1])[sample]
