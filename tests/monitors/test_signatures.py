"""A signature changes with every bit, its place, the shape and the dtype, and with nothing else."""

from collections import OrderedDict

import pytest
import torch
from everstep.monitors.signatures import (
    WORDS,
    _fold,
    combined,
    condensed,
    folded,
    signature,
    signatures_of,
    tensor_signature,
)
from hypothesis import given, settings
from hypothesis import strategies as st

KNOWN = 7062395083205471895
SIZES = st.integers(1, 3 * 8 * WORDS)


def noise(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 256, (count,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=60, deadline=None)
@given(SIZES, st.data())
def test_every_bit_counts(size: int, data: st.DataObject) -> None:
    held = noise(size)
    before = tensor_signature(held)
    held[data.draw(st.integers(0, size - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert tensor_signature(held) != before


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 4 * WORDS), st.data())
def test_places_count(words: int, data: st.DataObject) -> None:
    first, second = data.draw(st.lists(st.integers(0, words - 1), min_size=2, max_size=2, unique=True))
    held = torch.arange(words, dtype=torch.int64)
    before = tensor_signature(held)
    held[first], held[second] = second, first
    assert tensor_signature(held) != before


@pytest.mark.parametrize("words", [WORDS, 4 * WORDS + 1])
def test_the_sign_of_one_number_counts_at_its_place(words: int) -> None:
    """The highest bit of a word, which a product with an odd number does not move."""
    seen = set()
    for place in range(words):
        held = torch.zeros(words, dtype=torch.float64)
        held[place] = -0.0
        seen.add(tensor_signature(held))
    assert len(seen) == words


@pytest.mark.parametrize("size", [0, 1, 7, 8, 8 * WORDS, 8 * WORDS + 3])
def test_zeros_at_the_end_count(size: int) -> None:
    held = noise(size)
    longer = torch.cat([held, torch.zeros(1, dtype=torch.uint8)])
    assert tensor_signature(held) != tensor_signature(longer)


def test_shape_and_dtype_count() -> None:
    held = torch.zeros(24, dtype=torch.int32)
    alike = [held, held.view(4, 6), held.view(6, 4), held.view(24, 1), held.view(torch.float32), held.view(torch.int64)]
    assert len({tensor_signature(one) for one in alike}) == len(alike)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.bool, torch.complex64, torch.float32])
def test_how_it_lies_in_memory_does_not_count(dtype: torch.dtype) -> None:
    whole = noise(7 * 9).view(7, 9).to(dtype)
    assert tensor_signature(whole.t()) == tensor_signature(whole.t().contiguous())
    assert tensor_signature(whole[1:, 3:]) == tensor_signature(whole[1:, 3:].clone())
    assert tensor_signature(whole.view(-1)[1:]) == tensor_signature(whole.view(-1)[1:].clone())


def test_it_is_the_same_everywhere_and_always() -> None:
    assert tensor_signature(torch.arange(5000)) == KNOWN
    assert tensor_signature(torch.ones(3, requires_grad=True)) == tensor_signature(torch.ones(3))


def test_few_words_leave_the_device() -> None:
    assert _fold(torch.arange(100_000)).numel() <= WORDS
    assert _fold(torch.arange(3 * (1 << 20))).numel() <= WORDS


def test_what_is_not_dense_is_refused() -> None:
    with pytest.raises(TypeError, match="make it dense"):
        tensor_signature(torch.eye(3).to_sparse())


def test_nested_values() -> None:
    state = {"step": 3, "betas": (0.9, 0.95), "moments": [torch.ones(3), torch.zeros(3)]}
    swapped = {"step": 3, "betas": (0.9, 0.95), "moments": [torch.zeros(3), torch.ones(3)]}
    assert signature(state) == signature(OrderedDict(reversed(state.items())))
    assert signature(state) != signature(swapped)
    alike = [1, 1.0, True, "1", b"1", None, [1], (1,), [[1]], [], {}, {1: 1}, torch.tensor(1)]
    assert len({signature(one) for one in alike}) == len(alike)
    with pytest.raises(TypeError, match="a set has no signature"):
        signature({1, 2})


def test_signatures_in_their_order() -> None:
    assert combined([1, 2]) != combined([2, 1])
    assert combined([]) != combined([0])


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 3 * WORDS), max_size=40))
def test_many_at_once_are_as_one_by_one(sizes: list[int]) -> None:
    held = [noise(8 * size + size % 8, seed=size) for size in sizes]
    assert signatures_of([folded(one) for one in held]) == [tensor_signature(one) for one in held]


def test_what_is_folded_may_change_afterwards() -> None:
    for size in (3, WORDS, 5 * WORDS):
        held = torch.ones(size)
        fold, expected = folded(held), tensor_signature(held)
        held.zero_()
        assert signatures_of([fold]) == [expected]


@given(st.dictionaries(st.text("ab.", max_size=8), st.integers(-9, 9), max_size=30), st.integers(1, 10))
def test_no_more_than_so_many_names(signatures: dict[str, int], most: int) -> None:
    held = condensed(signatures, most)
    assert len(held) <= most
    assert condensed(dict(signatures), most) == held
    if len(signatures) <= most:
        assert held == signatures
