"""Shadows compute what another rank does, add nothing to any sum, and lose nothing that they may need later."""

import math
from collections.abc import Mapping, Sequence

import pytest
import torch
from everstep.actors.rank.census import Census, Contribution, Part, Statement
from everstep.actors.rank.transaction import ProtocolError
from everstep.conf.elastic import Reduction
from torch import Tensor

from .exchange import Exchange, FailingCommunicator, ThreadCommunicator, ThreadPending, together
from .small_model import UNEVEN, B, assert_same_bits, build, compute, finish, gradient_sum, grads_of, trained

both = pytest.mark.parametrize("reduction", list(Reduction))
SHADOW = Part(shadow=True)


def contribution(weight: float = 1.0, loss: float = 0.5, **numbers: float) -> Contribution:
    recorded = {name: (value, 1.0) for name, value in numbers.items()}
    return Contribution(weight, torch.tensor(loss), torch.tensor(2.0, dtype=torch.float64), recorded)


def taken(parts: Sequence[tuple[Mapping[int, Contribution], Part]], microbatches: int) -> Census:
    """The census of ranks that take these parts, each with one touched parameter whose largest gradient is 2."""

    def work(communicator: ThreadCommunicator) -> Census:
        contributions, part = parts[communicator.rank]
        maxima = torch.tensor([float(1 + communicator.rank), 0.0], dtype=torch.float64)
        statement = Statement(contributions, microbatches, [communicator.rank > 0, False], maxima, part=part)
        return statement.begin(communicator).finish(communicator)

    first, *others = together(len(parts), work)
    assert all(repr(other) == repr(first) for other in others)
    return first


# --- the census


def test_a_shadow_leaves_no_trace_in_the_census() -> None:
    own, repeated = {0: contribution(3.0, 0.25, seen=1.0)}, {0: contribution(3.0, math.nan, seen=5.0, more=7.0)}
    with_shadow = taken([(own, Part()), (repeated, SHADOW)], 1)
    assert (with_shadow.weights, with_shadow.losses, with_shadow.nonfinite) == ((3.0,), (0.25,), ())
    assert (with_shadow.touched, with_shadow.maxima) == ([False, False], [1.0, 0.0])
    assert with_shadow.numbers == {"seen": 1.0}


def test_whoever_was_a_shadow_counts_when_it_is_none_any_more() -> None:
    assert taken([({}, Part()), ({0: contribution()}, Part())], 1).touched == [True, False]


def test_only_what_is_dropped_may_be_missing() -> None:
    part = Part(dropped=frozenset({1}))
    census = taken([({0: contribution(2.0, 0.5)}, part), ({2: contribution(6.0, 1.5)}, part)], 3)
    assert (census.microbatches, census.weights, census.loss) == (2, (2.0, 0.0, 6.0), (1.0 + 9.0) / 8)
    for held, wrong in (({0: contribution()}, "{2: 0}"), ({1: contribution(), 0: contribution()}, "{1: 1, 2: 0}")):
        with pytest.raises(ProtocolError, match=f"not summed exactly once: {wrong}"):
            taken([(held, part)], 3)
    assert taken([({0: contribution()}, Part())], 1).microbatches == 1


def test_the_pace_is_that_of_the_slowest_who_contributes() -> None:
    parts = [({0: contribution()}, Part(pace=0.5)), ({1: contribution()}, Part(pace=2.0)), ({}, Part(True, pace=9.0))]
    assert taken(parts, 2).pace == 2.0
    assert taken([({0: contribution()}, Part())], 1).pace == 0.0


# --- sums


@pytest.fixture(scope="module")
def alone() -> dict[Reduction, dict[str, Tensor | None]]:
    return {reduction: trained((B,), reduction, UNEVEN)[0] for reduction in Reduction}


@both
@pytest.mark.parametrize("early", [False, True])
def test_a_shadow_adds_nothing_and_can_take_over_at_once(
    early: bool, reduction: Reduction, alone: dict[Reduction, dict[str, Tensor | None]]
) -> None:
    """Both have all gradients; once the shadow is silent, and then it is left alone and has the whole sum."""

    def work(communicator: ThreadCommunicator) -> dict[str, Tensor | None]:
        shadow = communicator.rank == 1
        model = build()
        gradients = gradient_sum(model, reduction)
        for step in range(2):
            gradients.reset()
            contributions = compute(model, gradients, range(B - 1), UNEVEN)
            with gradients.backward(communicator if early else None, silent=shadow):
                loss = model(B - 1)
                loss.backward(torch.tensor(UNEVEN[B - 1]))
            contributions[B - 1] = Contribution(UNEVEN[B - 1], loss.detach(), gradients.fold())
            held = [slot.sum.clone() for slot in gradients._slots if not slot.fresh]
            gradients.exchange(communicator, silent=shadow)
            statement = Statement(contributions, B, gradients.touched(), gradients.maxima(), part=Part(shadow))
            census = statement.begin(communicator).finish(communicator)
            gradients.gather(communicator, census.weight)
            after = [slot.sum for slot in gradients._slots if not slot.fresh]
            assert all(torch.equal(one, other) for one, other in zip(held, after, strict=True))
            if step == 0:
                gradients.publish(census.touched)
                gradients.advance(census.maxima, committed=True)
            elif shadow:
                # The vote broke, since the other one died in it.
                finish(gradients, contributions, ThreadCommunicator(Exchange(1), 0))
            else:
                gradients.publish(census.touched)
        return grads_of(model)

    for grads in together(2, work):
        assert_same_bits(grads, alone[reduction])


def test_a_silent_rank_sends_before_its_last_backward_has_made_anything() -> None:
    class Counting(ThreadCommunicator):
        sent = 0

        def all_to_all(self, output: Tensor, source: Tensor) -> ThreadPending:
            assert not source.any()
            self.sent += 1
            return super().all_to_all(output, source)

    communicator = Counting(Exchange(2), 1)
    model = build()
    gradients = gradient_sum(model)
    compute(model, gradients, [0], UNEVEN)
    with gradients.backward():
        model(1).backward()
    gradients.fold()
    with gradients.backward(communicator, silent=True):
        assert communicator.sent == gradients.buckets
        model(2).backward()
        # Another gradient after its bucket was sent would be missed from a rank that adds something.
        model(2).backward()
    gradients.fold()
    gradients.exchange(communicator, silent=True)
    assert communicator.sent == gradients.buckets


def test_a_role_changes_only_with_the_group() -> None:
    model = build()
    gradients = gradient_sum(model)
    compute(model, gradients, [0], UNEVEN)
    first, second = (FailingCommunicator(2, 1, fails=99) for _ in range(2))
    gradients.exchange(first, silent=True)
    with pytest.raises(AssertionError, match="a rank changes its role only with its group"):
        gradients.exchange(first)
    gradients.exchange(second)
