"""The census: every microbatch once, and figures with the same bits for every split."""

import math
import random

import pytest
import torch
from everstep.actors.rank.census import Census, Contribution, Part, Statement, Wish
from everstep.actors.rank.transaction import ProtocolError
from hypothesis import given
from hypothesis import strategies as st

from .exchange import ThreadCommunicator, together


def contribution(weight: float = 1.0, loss: float = 0.5, peak: float = 2.0) -> Contribution:
    return Contribution(weight, torch.tensor(loss), torch.tensor(peak, dtype=torch.float64))


def taken(
    shares: list[dict[int, Contribution]],
    microbatches: int,
    touched: list[list[bool]] | None = None,
    maxima: list[list[float]] | None = None,
) -> Census:
    """What the ranks with these shares find, all the same."""

    def work(communicator: ThreadCommunicator) -> Census:
        bits = touched[communicator.rank] if touched else [True]
        peaks = torch.tensor(maxima[communicator.rank] if maxima else [1.0], dtype=torch.float64)
        statement = Statement(shares[communicator.rank], microbatches, bits, peaks)
        return statement.begin(communicator).finish(communicator)

    first, *others = together(len(shares), work)
    assert all(repr(other) == repr(first) for other in others)
    return first


def split(contributions: dict[int, Contribution], ranks: int, chance: random.Random) -> list[dict[int, Contribution]]:
    shares: list[dict[int, Contribution]] = [{} for _ in range(ranks)]
    for index, held in contributions.items():
        chance.choice(shares)[index] = held
    return shares


numbers = st.tuples(
    st.one_of(st.just(0.0), st.floats(1e-6, 1e9), st.integers(1, 5000).map(float)),
    st.floats(-(2.0**100), 2.0**100, width=32),
)


@given(st.lists(numbers, min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_the_same_bits_for_every_split(rows: list[tuple[float, float]], chance: random.Random) -> None:
    contributions = {index: contribution(weight, loss) for index, (weight, loss) in enumerate(rows)}
    alone = taken([contributions], len(rows))
    for ranks in (2, 3, 5):
        shared = taken(split(contributions, ranks, chance), len(rows))
        assert (shared.weights, shared.nonfinite) == (alone.weights, alone.nonfinite)
        assert shared.losses == alone.losses
        assert shared.weight.hex() == alone.weight.hex()
        assert shared.loss.hex() == alone.loss.hex()


def test_the_loss_is_the_weighted_mean() -> None:
    census = taken([{0: contribution(1, 0.5)}, {1: contribution(3, 1.5)}], 2)
    assert census.weight == 4.0
    assert census.loss == (0.5 + 4.5) / 4
    assert census.weights == (1.0, 3.0)


@pytest.mark.parametrize(
    ("shares", "wrong"),
    [
        ([{0: contribution()}, {}], "{1: 0}"),
        ([{0: contribution(), 1: contribution()}, {1: contribution()}], "{1: 2}"),
        ([{}, {}], "{0: 0, 1: 0}"),
        # Weight 0 counts as one microbatch all the same.
        ([{0: contribution(0), 1: contribution()}, {0: contribution(0)}], "{0: 2}"),
    ],
)
def test_a_microbatch_that_is_not_summed_exactly_once_is_an_error(
    shares: list[dict[int, Contribution]], wrong: str
) -> None:
    with pytest.raises(ProtocolError, match="microbatches were not summed exactly once: " + wrong):
        taken(shares, 2)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_weight_0_contributes_nothing_not_0_times_nan(loss: float) -> None:
    shares = [{0: contribution(0, loss, math.inf)}, {1: contribution(2, 1.5)}]
    census = taken(shares, 2)
    assert census.nonfinite == ()
    assert census.loss == 1.5
    assert census.weight == 2.0


@pytest.mark.parametrize(
    ("loss", "peak"), [(math.nan, 1.0), (math.inf, 1.0), (1.0, math.inf), (1.0, math.nan), (math.nan, math.nan)]
)
def test_what_is_not_finite_is_named_and_spoils_nothing_else(loss: float, peak: float) -> None:
    shares = [{0: contribution(1, 1.5), 2: contribution(1, loss, peak)}, {1: contribution(1, 2.5)}]
    census = taken(shares, 3)
    assert census.nonfinite == (2,)
    assert census.losses[:2] == (1.5, 2.5)
    assert math.isfinite(census.loss)


def test_a_step_of_weight_0_has_no_loss() -> None:
    census = taken([{0: contribution(0)}, {1: contribution(0)}], 2)
    assert census.weight == 0
    assert math.isnan(census.loss)


def test_a_parameter_is_touched_if_any_rank_touched_it() -> None:
    touched = [[True, False, False, True], [True, True, False, False]]
    maxima = [[4.0, 0.0, 0.0, 1.0], [2.0, 3.0, 0.0, 0.0]]
    census = taken([{0: contribution()}, {1: contribution()}], 2, touched, maxima)
    assert census.touched == [True, True, False, True]
    assert census.maxima == [4.0, 3.0, 0.0, 1.0]


def test_a_rank_without_a_microbatch_adds_nothing() -> None:
    census = taken([{}, {0: contribution(2, 1.5)}, {}], 1)
    assert (census.weights, census.losses) == ((2.0,), (1.5,))


def test_a_loss_that_nobody_told_makes_the_mean_unknown_but_is_no_trouble() -> None:
    untold = Contribution(1.0, None, torch.tensor(1.0))
    census = taken([{0: untold}, {1: contribution(1, 2.0)}], 2)
    assert census.nonfinite == ()
    assert math.isnan(census.loss)
    assert census.weight == 2.0


@pytest.mark.parametrize("who", [0, 1, None])
def test_one_rank_that_wants_to_stop_is_heard_by_all(who: int | None) -> None:
    def work(communicator: ThreadCommunicator) -> Census:
        held = {communicator.rank: contribution()}
        statement = Statement(held, 2, [True], torch.ones(1, dtype=torch.float64), stop=communicator.rank == who)
        return statement.begin(communicator).finish(communicator)

    assert [census.stop for census in together(2, work)] == [who is not None] * 2


def test_signatures_are_read_by_place_and_to_the_bit() -> None:
    signatures = (0, 2**64 - 1, 0x0123456789ABCDEF)

    def work(communicator: ThreadCommunicator) -> Census:
        held = {communicator.rank: contribution()}
        maxima = torch.ones(1, dtype=torch.float64)
        statement = Statement(held, 3, [True, False], maxima, signature=signatures[communicator.rank], probed=True)
        return statement.begin(communicator).finish(communicator)

    for census in together(3, work):
        assert census.signatures == signatures
        assert census.touched == [True, False]


def test_a_loss_in_lower_precision_is_read_as_it_is() -> None:
    held = Contribution(1.0, torch.tensor(0.1, dtype=torch.bfloat16), torch.tensor(1.0))
    assert held.row(b"")[2] == float(torch.tensor(0.1, dtype=torch.bfloat16))


def test_figures_of_an_empty_census() -> None:
    census = Census((), (), ())
    assert census.weight == 0
    assert math.isnan(census.loss)


def test_wishes_of_where_states_are_saved_are_full_for_any_and_as_often_as_anybody_has() -> None:
    said = (
        (Wish(False, 64), Wish(True, 0)),
        (Wish(False, 32), Wish(False, 0)),
        (Wish(False, 0), Wish(False, 0)),
    )

    def work(communicator: ThreadCommunicator) -> Census:
        part = Part(wishes=said[communicator.rank])
        held = {communicator.rank: contribution()}
        maxima = torch.ones(2, dtype=torch.float64)
        return Statement(held, 3, [True, False], maxima, part=part).begin(communicator).finish(communicator)

    for census in together(3, work):
        assert census.wishes == (Wish(False, 32), Wish(True, 0))
        assert (census.maxima, census.touched) == ([1.0, 1.0], [True, False])
