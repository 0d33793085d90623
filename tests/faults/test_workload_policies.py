"""Every workload policy on real ranks: who computes what changes no bit, and a shadow makes a loss cost nothing."""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from everstep.conf.chaos import Fault, FaultPoint
from everstep.orchestrator.local_cluster import LocalCluster
from everstep.orchestrator.view import Phase
from ray import cloudpickle

from . import harness
from .harness import STEPS, Outcome, drive, plan_of

# Ranks are other processes and cannot import the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

B = 8
STEP = 3


def train(ctx: Any) -> None:
    """The harness's training; a microbatch takes as long as is said for its replica."""
    import time

    from torch import nn

    plain, delay = nn.functional.cross_entropy, ctx.config["delays"].get(ctx.replica, 0.0)

    def slow(*arguments: Any) -> Any:
        time.sleep(delay)
        return plain(*arguments)

    nn.functional.cross_entropy = slow  # type: ignore[assignment]
    harness.train(ctx)


def run(
    folder: Path,
    ranks: int,
    workload: str,
    chaos: Sequence[Fault] = (),
    delays: Mapping[int, float] | None = None,
    **elastic: Any,
) -> Outcome:
    """Train to the end with B = 8.

    Args:
        delays: seconds that a microbatch takes longer, by replica.
        elastic: or ``hold=(replica, step)``: it begins that step when all others have finished a microbatch of it.
    """
    settings = {"microbatches_per_step": B, "workload": workload, **elastic}
    plan = plan_of(folder, ranks, chaos, **settings)
    plan = replace(
        plan, train=cloudpickle.dumps(train), config={**plan.config, "delays": delays or {}, "microbatches": ranks}
    )
    outcome = drive(plan, LocalCluster(plan.program()), folder)
    assert outcome.state.phase is Phase.SUCCEEDED, (outcome.state.error, outcome.state.traceback)
    assert outcome.leftovers == []
    assert len(outcome.state.faults_fired) == len(chaos), outcome.state.faults_fired
    assert outcome.state.metrics["world"] == ranks - len(chaos)
    return outcome


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """One rank that computes everything, undisturbed."""
    return run(tmp_path_factory.mktemp("plain"), 1, "balanced")


def assert_as_plain(outcome: Outcome, plain: Outcome) -> None:
    """The same bits, and every index summed once, by somebody who computed it once."""
    assert outcome.weights == plain.weights
    assert outcome.rates == plain.rates
    for computed in outcome.computed.values():
        assert len(computed) == len(set(computed))
    for step in range(STEPS):
        summed = Counter(index for steps in outcome.decided.values() for index in steps.get(step, ()))
        assert set(summed.values()) == {1}, (step, summed)


def computed_in(outcome: Outcome, step: int) -> dict[int, list[int]]:
    """By replica, the indices that it computed in a step."""
    return {
        int(name[:4]): [index for number, index in computed if number == step]
        for name, computed in outcome.computed.items()
    }


def decided_by(outcome: Outcome, replica: int) -> dict[int, list[int]]:
    """By step, the indices that a replica contributed."""
    return next(steps for name, steps in outcome.decided.items() if int(name[:4]) == replica)


# --- versatile: with B = 8 on six ranks there are four majors of two microbatches, 4 repeats 0, and 5 repeats 1


def test_shadows_change_nothing(plain: Outcome, tmp_path: Path) -> None:
    outcome = run(tmp_path, 6, "versatile")
    assert_as_plain(outcome, plain)
    computed = computed_in(outcome, STEP)
    assert [computed[replica] for replica in range(4)] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    # A shadow that is late leaves out what the others would wait for.
    assert [computed[replica][:1] for replica in (4, 5)] == [[0], [2]]
    assert all(share == [] for replica in (4, 5) for share in decided_by(outcome, replica).values())


@pytest.mark.parametrize("point", [FaultPoint.IN_BACKWARD, FaultPoint.LAST_BUCKET, FaultPoint.BEFORE_VOTE])
def test_the_shadow_of_a_dead_major_takes_its_place_and_nothing_is_lost(
    point: FaultPoint, plain: Outcome, tmp_path: Path
) -> None:
    outcome = run(tmp_path, 6, "versatile", [Fault(STEP, 0, point=point)], hold=(0, STEP))
    assert_as_plain(outcome, plain)
    (recovery,) = outcome.state.recoveries
    assert recovery.lost_microbatches == ()
    computed = computed_in(outcome, STEP)
    assert [computed[replica] for replica in range(1, 5)] == [[2, 3], [4, 5], [6, 7], [0, 1]]
    assert decided_by(outcome, 4)[STEP] == [0, 1]
    # In later steps there are four majors and one shadow.
    assert decided_by(outcome, 4)[STEP + 1] == [6, 7]
    assert decided_by(outcome, 5)[STEP + 1] == []


def test_a_dead_shadow_costs_nothing(plain: Outcome, tmp_path: Path) -> None:
    outcome = run(tmp_path, 6, "versatile", [Fault(STEP, 4, point=FaultPoint.IN_BACKWARD)])
    assert_as_plain(outcome, plain)
    assert outcome.state.recoveries[0].lost_microbatches == ()


def test_a_major_that_dies_with_its_shadow_is_computed_again(plain: Outcome, tmp_path: Path) -> None:
    faults = [Fault(STEP, replica, point=FaultPoint.BEFORE_VOTE) for replica in (0, 4)]
    outcome = run(tmp_path, 6, "versatile", faults)
    assert_as_plain(outcome, plain)
    assert {index for recovery in outcome.state.recoveries for index in recovery.lost_microbatches} == {0, 1}


@pytest.mark.parametrize("ranks", [5, 6, 7])
def test_majors_that_die_at_once_are_all_replaced(ranks: int, plain: Outcome, tmp_path: Path) -> None:
    faults = [Fault(STEP, replica, point=FaultPoint.BEFORE_VOTE) for replica in range(ranks - 4)]
    outcome = run(tmp_path, ranks, "versatile", faults)
    assert_as_plain(outcome, plain)
    assert all(recovery.lost_microbatches == () for recovery in outcome.state.recoveries)
    shares = [decided_by(outcome, replica)[STEP] for replica in range(4, ranks)]
    assert shares == [[0, 1], [2, 3], [4, 5]][: ranks - 4]


def test_a_shadow_that_is_let_go_begins_anew_and_helps(plain: Outcome, tmp_path: Path) -> None:
    """The others have much to do when replica 3 dies, so both shadows work like everybody."""
    delays = dict.fromkeys(range(6), 0.2)
    fault = [Fault(STEP, 3, point=FaultPoint.BEFORE_FORWARD)]
    outcome = run(tmp_path, 6, "versatile", fault, delays, hold=(3, STEP))
    assert_as_plain(outcome, plain)
    assert outcome.state.recoveries[0].lost_microbatches == (6, 7)
    assert sorted(decided_by(outcome, 4)[STEP] + decided_by(outcome, 5)[STEP]) == [6, 7]


def test_a_slow_shadow_holds_nobody_up(plain: Outcome, tmp_path: Path) -> None:
    outcome = run(tmp_path, 6, "versatile", delays={4: 0.3})
    assert_as_plain(outcome, plain)
    steps = [computed_in(outcome, step)[4] for step in range(STEPS)]
    assert steps[0] == [0, 1], "in the first step nobody knows how long the others take"
    # On a busy machine the others may be as slow once in a while.
    assert steps.count([0]) >= STEPS // 2, "it begins no second microbatch once the others are through"


def test_a_shadow_that_had_not_finished_computes_the_rest_when_it_is_promoted(plain: Outcome, tmp_path: Path) -> None:
    outcome = run(tmp_path, 6, "versatile", [Fault(STEP, 0, point=FaultPoint.BEFORE_VOTE)], {4: 0.2})
    assert_as_plain(outcome, plain)
    assert decided_by(outcome, 4)[STEP] == [0, 1]
    assert outcome.state.recoveries[0].lost_microbatches == ()


def test_shadows_in_an_attempt_that_is_void(tmp_path: Path) -> None:
    alone = run(tmp_path / "alone", 1, "balanced", burst=STEP)
    killed = run(tmp_path / "killed", 6, "versatile", [Fault(STEP, 0, point=FaultPoint.LAST_BUCKET)], burst=STEP)
    assert killed.weights == alone.weights
    assert killed.rates == alone.rates
    assert killed.voids == alone.voids == {STEP}


def test_shadows_add_nothing_to_sums_in_float_either(plain: Outcome, tmp_path: Path) -> None:
    fault = [Fault(STEP, 0, point=FaultPoint.LAST_BUCKET)]
    outcome = run(tmp_path, 6, "versatile", fault, reduction="float")
    for step, seen in plain.rates.items():
        ((_, loss),) = seen
        assert [other for _, other in outcome.rates[step]] == pytest.approx([loss], rel=1e-4)


# --- weighted


def test_a_slow_rank_owes_less_after_the_world_has_changed(plain: Outcome, tmp_path: Path) -> None:
    outcome = run(tmp_path, 3, "weighted", [Fault(STEP, 2, point=FaultPoint.IN_BACKWARD)], {0: 0.1})
    assert_as_plain(outcome, plain)
    before, after = computed_in(outcome, STEP - 1), computed_in(outcome, STEP + 1)
    assert {replica: len(indices) for replica, indices in before.items()} == {0: 3, 1: 3, 2: 2}
    assert len(after[0]) < 3 < len(after[1])
    assert len(after[0]) + len(after[1]) == B


# --- adaptive world


def test_an_adaptive_world_drops_what_the_dead_had_and_says_so(tmp_path: Path) -> None:
    fault = [Fault(STEP, 1, point=FaultPoint.BEFORE_FORWARD)]
    outcome = run(tmp_path, 4, "adaptive_world", fault, reduction="float", hold=(1, STEP))
    for step in range(STEPS):
        summed = sorted(index for steps in outcome.decided.values() for index in steps.get(step, ()))
        whole = list(range(B))
        assert summed == (whole if step < STEP else [0, 1, 4, 5, 6, 7] if step == STEP else whole[:6])
    assert outcome.state.recoveries[0].lost_microbatches == (2, 3)
    assert outcome.state.record is not None
    assert outcome.state.record.microbatches == 6
