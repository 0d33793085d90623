"""Simulated runs whose times can be worked out by hand."""

from pathlib import Path

import pytest
from everstep.conf.simulation import OnSteps

from .worlds import STEP_S, one_loss, play, traced, world


def test_without_failures_all_time_is_training() -> None:
    outcome = play(world())
    assert outcome.end == "succeeded"
    assert outcome.elapsed == 20 * STEP_S
    assert outcome.goodput == 1.0
    assert outcome.tokens == 20 * 16 * 100
    assert outcome.gpu_hours == pytest.approx(4 * 20 * STEP_S / 3600)


def test_until_a_time_the_last_step_stays_unfinished() -> None:
    outcome = play(world(steps=None, seconds=10.5 * STEP_S))
    assert outcome.steps == 10
    assert outcome.elapsed == 10.5 * STEP_S
    assert outcome.seconds["unfinished step"] == pytest.approx(STEP_S / 2)


def test_until_the_gpu_hours_are_spent() -> None:
    """Four ranks for two and a half steps, then three."""
    hours = (4 * 2.5 * STEP_S + 3 * 100.0) / 3600
    outcome = play(world(steps=None, gpu_hours=hours, failures=one_loss(2.5)))
    assert outcome.elapsed == pytest.approx(2.5 * STEP_S + 100.0)
    assert outcome.gpu_hours == pytest.approx(hours)


def test_a_loss_costs_the_lost_microbatches_and_a_smaller_world() -> None:
    outcome = play(world(failures=one_loss(2.5)))
    # All four of the dead rank's are computed again by three others: one of these takes two more.
    assert outcome.lost_microbatches == 4
    assert outcome.remedies == {"shrink": 1}
    assert outcome.seconds["recovery"] == pytest.approx(2.0)
    # Sixteen over three are six for one of them.
    assert outcome.seconds["smaller world"] == pytest.approx(17 * 2.0)
    assert outcome.elapsed == pytest.approx(20 * STEP_S + 2.0 + 17 * 2.0)
    # Of a rank that is dead no hour is counted.
    assert outcome.gpu_hours == pytest.approx((4 * 2.5 * STEP_S + 3 * (outcome.elapsed - 2.5 * STEP_S)) / 3600)


@pytest.mark.parametrize("place", [5.0, 5.25, 5.5, 5.99, 9.5])
def test_a_loss_costs_a_restart_exactly_what_it_loses(place: float) -> None:
    """Everybody back to the checkpoint of step 5: notice, new group, relaunch, reading, and the steps since."""
    costs = {"state_bytes": 1e9, "storage_per_byte": 3e-9, "relaunch": 7.0, "checkpoint": 2.0}
    policies = {"recovery": "restart", "checkpoint_every": 5}
    outcome = play(world(costs=costs, policies=policies, failures=one_loss(place)))
    assert outcome.remedies == {"restore from storage": 1}
    # The pause for the checkpoint belongs to the step after it, which is done again without one.
    assert outcome.seconds["steps done again"] == pytest.approx((place - 5) * STEP_S + 2.0)
    assert outcome.seconds["recovery"] == pytest.approx(0.25 + 0.125 + 7.0 + 3.0)
    assert outcome.seconds["saving"] == pytest.approx(2 * 2.0)
    assert outcome.seconds["smaller world"] == pytest.approx(15 * 2.0)
    assert outcome.redone_microbatches == int(place - 5) * 16


@pytest.mark.parametrize(("late", "kept"), [(1.0, 5), (2.5, 10)])
def test_a_checkpoint_counts_once_it_is_whole(tmp_path: Path, late: float, kept: int) -> None:
    """A death in the pause after step 9 and one just after it."""
    policies = {"recovery": "restart", "checkpoint_every": 5}
    at = 10 * STEP_S + 2.0 + late
    outcome = play(traced(tmp_path, f"{at},rank,1", costs={"checkpoint": 2.0}, policies=policies))
    assert outcome.redone_microbatches == (10 - kept) * 16


def test_a_spare_takes_the_place_of_the_dead() -> None:
    costs = {"adopt": 0.5, "state_bytes": 1e9, "transfer_per_byte": 1e-9}
    outcome = play(world(costs=costs, policies={"recovery": "swap", "spares": 1}, failures=one_loss(2.5)))
    assert outcome.remedies == {"swap": 1}
    assert outcome.fewest == 4
    assert outcome.seconds["smaller world"] == 0
    # It has its state 1.75 s after the death, in the middle of the step. Two of the lost microbatches are the least
    # that it is given, and three the most, since the others have two left as well.
    assert any(outcome.seconds["recovery"] == pytest.approx(-2.25 + 1.75 + given + 0.5) for given in (2, 3))


def test_after_as_many_losses_as_spares_the_world_shrinks() -> None:
    failures = {"on_steps": OnSteps(first=2.5, every=3, count=3)}
    outcome = play(world(policies={"recovery": "swap", "spares": 2}, failures=failures))
    assert outcome.remedies == {"shrink": 1, "swap": 2}
    assert outcome.fewest == 3


def test_a_replacement_joins_when_it_is_there() -> None:
    outcome = play(world(costs={"restart": 9.0}, policies={"replace": True}, repair=0.0, failures=one_loss(2.5)))
    assert outcome.remedies == {"shrink": 1}
    assert outcome.fewest == 3
    # The loss was in step 2, which ends at 15.5. One step of three ranks follows, in whose middle the fourth one comes.
    assert outcome.seconds["smaller world"] == pytest.approx(2.0)
    assert outcome.elapsed == pytest.approx(20 * STEP_S + 2.0 + 2.0)


def test_below_the_minimum_it_waits_and_goes_on() -> None:
    costs = {"restart": 10.0}
    policies = {"replace": True, "patience": 60.0}
    outcome = play(world(costs=costs, policies=policies, repair=0.0, minimum=4, failures=one_loss(2.5)))
    assert outcome.end == "succeeded"
    assert outcome.seconds["waiting for capacity"] == pytest.approx(10.0)
    assert outcome.seconds["smaller world"] == 0


def test_below_the_minimum_it_ends_when_nobody_comes() -> None:
    outcome = play(world(policies={"patience": 60.0}, minimum=4, ranks_per_node=4, failures=one_loss(2.5)))
    assert "waited" in outcome.end
    assert outcome.elapsed == pytest.approx(2.5 * STEP_S + 0.25 + 60.0)
    assert outcome.seconds["waiting for capacity"] == pytest.approx(60.0)


def test_a_straggler_holds_everybody_up(tmp_path: Path) -> None:
    """Three times as slow for the length of one undisturbed step, from the beginning of one."""
    simulation = traced(tmp_path, f"{5 * STEP_S},slow,2,3,{STEP_S}", columns="time,what,target,factor,seconds")
    outcome = play(simulation)
    # 4.5 s at a third of the speed are one and a half microbatches; two and a half are left after that.
    assert outcome.seconds["slow ranks"] == pytest.approx(4.5 + 2.5 - 4.0)
    assert outcome.elapsed == pytest.approx(20 * STEP_S + 3.0)


def test_with_adaptive_world_the_batch_shrinks() -> None:
    outcome = play(world(policies={"workload": "adaptive_world"}, failures=one_loss(2.5)))
    assert outcome.steps == 20
    assert outcome.tokens == (2 * 16 + 18 * 12) * 100
    # The others go on as if nothing had happened.
    assert outcome.elapsed == pytest.approx(20 * STEP_S)


def test_versatile_promotes_a_shadow_for_nothing() -> None:
    """Sixteen over five replicas are four majors and a shadow of one of them; whether that one dies is drawn."""
    remedies = []
    for seed in range(6):
        outcome = play(world(policies={"workload": "versatile"}, replicas=5, failures=one_loss(2.5), seed=seed))
        assert outcome.steps == 20
        remedies.append(outcome.lost_microbatches)
    assert 0 in remedies


def test_the_same_seed_gives_the_same_run() -> None:
    failures = {"rank_mtbf": 300.0, "node_mtbf": 900.0}
    runs = [
        play(world(policies={"recovery": "swap", "spares": 1, "replace": True}, repair=5.0, ranks_per_node=1,
                   failures=failures, steps=200, seed=seed))
        for seed in (1, 1, 2)
    ]  # fmt: skip
    assert sum(runs[0].failures.values()) > 5
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]
