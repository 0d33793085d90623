"""What a remedy costs: by hand, against a naive clock, and never less when a part of it costs more."""

from dataclasses import fields, replace
from math import inf

import pytest
from everstep.policies.costs import Costs, arrival, delay, reach
from everstep.policies.remedies import LossFacts, Option, Remedy, possible
from hypothesis import given
from hypothesis import strategies as st

from .losses import loss, losses

# Half a second from the loss to the new group, 5 s to start a rank, 1 GB/s but from storage.
COSTS = Costs(microbatch=1.0, detect=0.25, rebuild=0.25, restart=5.0, storage_per_byte=1e-8)
names = st.sampled_from([item.name for item in fields(Costs)])


def priced(facts: LossFacts, remedy: Remedy, costs: Costs = COSTS, horizon: float = 600.0) -> float:
    return delay(facts, possible(facts, 600.0)[remedy], costs, horizon, 600.0)


@pytest.mark.parametrize(
    ("facts", "remedy", "seconds"),
    [
        # Eight microbatches on 4 replicas take 2 s, on 3 replicas 3 s; two are lost, so each of 3 computes one more.
        (loss(), Remedy.SHRINK, 1.5 + 600 / 2),
        (loss(lost_microbatches=0), Remedy.SHRINK, 0.5 + 600 / 2),
        (loss(lost_microbatches=4), Remedy.SHRINK, 2.5 + 600 / 2),
        # A replacement comes after 5 + 100 s: 103.5 s at two thirds of the pace. It is given 2 GB, and all wait for it.
        (loss(replacement_rate=0.01), Remedy.SHRINK, 1.5 + 103.5 / 3 + 2),
        # There is room for it: it comes after 5 s.
        (loss(room=1), Remedy.SHRINK, 1.5 + 3.5 / 3 + 2),
        # Of two that come together each has its source.
        (loss(survivors=2, room=2), Remedy.SHRINK, 1.5 + 3.5 / 2 + 2),
        # A spare that is left over comes in at the next step, which the others begin after one of 3 s.
        (loss(spares=1), Remedy.SHRINK, 1.5 + 1 + 2),
        # The run is over before it comes: 20 steps of 3 s instead of 2.
        (loss(replacement_rate=0.01, remaining_steps=20), Remedy.SHRINK, 1.5 + 20),
        # It comes before the end of 50 steps that would have been over before it at the whole pace.
        (loss(replacement_rate=0.01, remaining_steps=50), Remedy.SHRINK, 1.5 + 103.5 / 3 + 2),
        (loss(remaining_steps=0), Remedy.SHRINK, 1.5),
        # 2 GB come from one of 3 survivors; the world is whole.
        (loss(spares=1), Remedy.SWAP, 0.5 + 2 + 1),
        # Two spares for 3 losses, one survivor to feed them: two rounds; then 3 of 4 train.
        (loss(survivors=1, spares=2), Remedy.SWAP, 0.5 + 4 + 1 + 600 / 2),
        # Orphans that keep their coordinate need no transfer; 2 of 3 replicas compute 4 instead of 3 microbatches.
        (
            loss(3, 1, ranks_per_replica=2, broken=(frozenset({0}), frozenset({1}))),
            Remedy.COMPLETE,
            0.5 + 1 + 600 / 3,
        ),
        (loss(survivors=4, lost_microbatches=0), Remedy.REFORM, 0.5),
        # Three steps and a half again, and 2 GB at 1 GB/s.
        (loss(survivors=0, spares=4, vault_step=97), Remedy.RESTORE_VAULT, 0.5 + 2 + 7),
        (loss(survivors=0, room=4, vault_step=97), Remedy.RESTORE_VAULT, 0.5 + 5 + 2 + 7),
        (loss(survivors=0, room=4, storage_step=98), Remedy.RESTORE_STORAGE, 0.5 + 5 + 20 + 5),
        # Of four only three find room: what is done again is done at their pace too.
        (loss(survivors=0, room=3, vault_step=97), Remedy.RESTORE_VAULT, 0.5 + 5 + 2 + 7 * 1.5 + 300),
        # The first replacement is waited for until 105 s, fed for 2 s, and six lost microbatches are three for each;
        # two train to 205 s at half the pace, three from 207 to 305 s at two thirds.
        (
            loss(survivors=1, minimum=2, replacement_rate=0.01, lost_microbatches=6),
            Remedy.WAIT,
            110.5 + 94.5 / 2 + 2 + 98 / 3 + 2,
        ),
        # None is to be expected: no longer than what is left of the patience.
        (loss(survivors=1, minimum=2, waited=100.0, lost_microbatches=6), Remedy.WAIT, 0.5 + 500 + 2 + 3 + 600),
        # Nothing lives; the first of two finds room at once, the other comes after 100 s more, then 20 s of reading.
        (
            loss(survivors=0, minimum=2, room=1, replacement_rate=0.01, storage_step=100),
            Remedy.WAIT,
            125.5 + 79.5 / 2 + 2 + 98 / 3 + 2 + 1,
        ),
    ],
)
def test_by_hand(facts: LossFacts, remedy: Remedy, seconds: float) -> None:
    assert priced(facts, remedy) == pytest.approx(seconds)


def test_what_a_step_takes() -> None:
    costs = replace(COSTS, microbatch=0.5, step=0.1)
    assert [costs.step_of(loss(), world) for world in (1, 3, 4, 7, 8, 9)] == pytest.approx(
        [4.1, 1.6, 1.1, 1.1, 0.6, 0.6]
    )


def test_a_spare_that_needs_time_to_take_a_coordinate() -> None:
    assert priced(loss(spares=1), Remedy.SWAP, replace(COSTS, adopt=3.0)) == pytest.approx(6.5)
    assert priced(loss(), Remedy.SHRINK, replace(COSTS, adopt=3.0)) == pytest.approx(301.5)


def test_when_replacements_arrive() -> None:
    facts = loss(room=2, replacement_rate=0.1)
    assert [arrival(facts, COSTS, count) for count in (0, 1, 2, 3, 4)] == [5.0, 5.0, 5.0, 15.0, 25.0]
    never = loss(room=2)
    assert [arrival(never, COSTS, count) for count in (2, 3)] == [5.0, inf]


def test_no_further_than_the_end_of_the_run() -> None:
    assert reach(loss(), COSTS, 600.0) == 600.0
    assert reach(loss(remaining_steps=10), COSTS, 600.0) == 20.0
    assert reach(loss(remaining_steps=1000), COSTS, 600.0) == 600.0


def naive(facts: LossFacts, option: Option, costs: Costs, horizon: float, patience: float) -> float:
    """The same delay: count what is trained by a time, and look for the time by which it is enough."""

    def step(world: int) -> float:
        return float(-(facts.microbatches // -world)) * costs.microbatch + costs.step

    def comes(count: int) -> float:
        if count <= facts.room:
            return costs.restart
        return costs.restart + (count - facts.room) / facts.replacement_rate if facts.replacement_rate else inf

    reading = {None: 0.0, Remedy.RESTORE_VAULT: costs.vault_per_byte, Remedy.RESTORE_STORAGE: costs.storage_per_byte}
    hold = costs.detect + costs.rebuild + reading[option.source] * facts.state_bytes
    if option.completed:
        hold += costs.adopt
    if option.fresh:
        hold += min(comes(option.fresh), patience - facts.waited)
    if option.source is None:
        hold += float(-(facts.lost_microbatches // -option.world)) * costs.microbatch
        feeders = max(1, facts.survivors)
        hold += float(-(option.transfers // -feeders)) * facts.state_bytes * costs.transfer_per_byte
    whole = step(facts.members)
    ahead = horizon if facts.remaining_steps is None else min(horizon, facts.remaining_steps * whole)
    wanted = ahead + ((option.back or 0) + 0.5) * whole * (option.source is not None)
    world = min(option.world, facts.members)
    left_over = max(0, (facts.orphans + facts.spares) // facts.ranks_per_replica - option.completed)
    joins = [hold + step(world)] * left_over + [comes(option.fresh + place) for place in range(1, facts.members + 1)]
    # (from when on, at which pace)
    paces, clock, let_in = [(hold, whole / step(world))], hold, -inf
    for place, join in enumerate(joins[: facts.members - world]):
        if join == inf:
            break
        clock = max(clock, join)
        paces.append((clock, 0.0))
        if join > let_in:
            clock, let_in = clock + costs.adopt + facts.state_bytes * costs.transfer_per_byte, clock
        paces.append((clock, whole / step(world + place + 1)))

    def trained(until: float) -> float:
        ends = [start for start, _ in paces[1:]] + [inf]
        return sum(max(0.0, min(end, until) - start) * pace for (start, pace), end in zip(paces, ends, strict=True))

    low, high = 0.0, clock + hold + wanted * facts.microbatches + 1.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if trained(middle) < wanted - 1e-6 else (low, middle)
    return max(high, hold) - ahead


@given(losses(), st.sampled_from([0.0, 60.0, 3600.0]))
def test_against_a_naive_clock(facts: LossFacts, horizon: float) -> None:
    costs = Costs(0.7, 0.2, 0.1, 0.3, 0.4, 6.0, 1e-9, 2e-9, 1e-8)
    for option in possible(facts, 1000.0).values():
        expected = naive(facts, option, costs, horizon, 1000.0)
        assert delay(facts, option, costs, horizon, 1000.0) == pytest.approx(expected, rel=1e-6, abs=1e-4)


@given(losses(), names, st.floats(1.0, 10.0))
def test_what_costs_more_does_not_delay_less(facts: LossFacts, name: str, factor: float) -> None:
    """The horizon is left out: a longer microbatch makes fewer steps of it."""
    dearer = replace(COSTS, step=0.1, adopt=0.1)
    dearer = replace(dearer, **{name: getattr(dearer, name) * factor})
    for option in possible(facts, 1000.0).values():
        assert delay(facts, option, COSTS, 0.0, 1000.0) <= delay(facts, option, dearer, 0.0, 1000.0) + 1e-9


@given(losses(), st.floats(0.0, 3600.0), st.floats(0.0, 3600.0))
def test_a_longer_view_does_not_show_less(facts: LossFacts, near: float, far: float) -> None:
    near, far = sorted((near, far))
    for option in possible(facts, 1000.0).values():
        assert delay(facts, option, COSTS, near, 1000.0) <= delay(facts, option, COSTS, far, 1000.0) + 1e-6


@given(losses())
def test_a_delay_is_a_number_of_seconds(facts: LossFacts) -> None:
    for option in possible(facts, 1000.0).values():
        seconds = delay(facts, option, COSTS, 600.0, 1000.0)
        assert 0.5 <= seconds < inf


@pytest.mark.parametrize("name", [item.name for item in fields(Costs)])
@pytest.mark.parametrize("value", [-0.1, float("inf"), float("nan")])
def test_what_is_no_time_is_refused_in_one_line(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"^costs\.{name}=.* must be a finite number of at least 0$"):
        replace(COSTS, **{name: value})


def test_a_microbatch_takes_time() -> None:
    with pytest.raises(ValueError, match=r"^costs\.microbatch=0 must be a finite, positive number$"):
        Costs(microbatch=0)
