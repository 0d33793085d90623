"""A spare takes the place of a dead rank in the same step, with the state of a living one."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from everstep.conf.chaos import Fault, FaultKind, FaultPoint, FaultTarget
from everstep.orchestrator.view import Phase

from .harness import WIDE, Outcome, assert_as_if_undisturbed, run

STEP = 3
# The first rank that is started without a place.
SPARE = 4
POINTS = (
    FaultPoint.IN_BACKWARD,
    FaultPoint.BEFORE_VOTE,
    FaultPoint.IN_VOTE,
    FaultPoint.AFTER_VOTE,
    FaultPoint.IN_OPTIMIZER,
    FaultPoint.IN_REPORT,
)


def assert_only_the_lost_is_computed_again(outcome: Outcome, step: int = STEP) -> None:
    """Whatever was computed twice was a dead rank's, of the step in which it died; the probe aside."""
    alive = {member.incarnation for member in outcome.state.members}
    computed = Counter(place for places in outcome.computed.values() for place in places)
    again = {place for place, count in computed.items() if count > 1}
    of_the_dead = {place for name, places in outcome.computed.items() if name not in alive for place in places}
    assert again <= {place for place in of_the_dead if place[0] in (step, step + 1)}


def swapped(
    folder: Path, undisturbed: Outcome, faults: Sequence[Fault], spares: int = 1, lost: int = 0, **options: object
) -> Outcome:
    """Train on four ranks and spares through the faults, as if undisturbed but for ``lost`` ranks at the end."""
    outcome = run(folder, ranks=4, chaos=faults, spares=spares, recovery="swap", **options)
    assert_as_if_undisturbed(outcome, undisturbed, faults, lost=lost)
    assert_only_the_lost_is_computed_again(outcome)
    return outcome


@pytest.mark.parametrize("point", POINTS)
def test_a_spare_takes_the_place_of_the_dead(point: FaultPoint, undisturbed: Outcome, tmp_path: Path) -> None:
    faults = [Fault(STEP, 2, point=point)]
    if point is FaultPoint.IN_REPORT:
        # It reports when another one dies.
        faults.append(Fault(STEP, 1, point=FaultPoint.IN_BACKWARD))
    outcome = swapped(tmp_path, undisturbed, faults, spares=len(faults))
    (recovery,) = outcome.state.recoveries
    assert (recovery.world_before, recovery.world_after) == (4, 4)
    assert "completed by spares" in recovery.decision
    newcomer = next(name for name in outcome.decided if name.startswith(f"{SPARE:04d}"))
    # It takes part from the step on in which the other one died, or from the next one if that was decided already.
    assert min(outcome.decided[newcomer]) in (STEP, STEP + 1)
    assert max(outcome.decided[newcomer]) == 6
    assert next(member.replica for member in outcome.state.members if member.incarnation == newcomer) in (1, 2)


@pytest.mark.parametrize("point", [FaultPoint.IN_BACKWARD, FaultPoint.IN_VOTE])
def test_a_spare_takes_a_place_in_the_first_step(point: FaultPoint, undisturbed: Outcome, tmp_path: Path) -> None:
    """It computes the probe as the others did."""
    outcome = run(tmp_path, ranks=4, chaos=[Fault(0, 2, point=point)], spares=1, recovery="swap")
    assert_as_if_undisturbed(outcome, undisturbed, [Fault(0, 2, point=point)], lost=0)


def in_restore(spare: int, kind: FaultKind = FaultKind.SIGKILL) -> Fault:
    """A spare is hit when it has taken half of the state."""
    return Fault(STEP, spare, point=FaultPoint.IN_RESTORE, kind=kind, target=FaultTarget.SPARE)


def test_one_dies_in_a_transfer(undisturbed_wide: Outcome, tmp_path: Path) -> None:
    swapped(tmp_path, undisturbed_wide, [Fault(STEP, 2, point=FaultPoint.IN_TRANSFER)], width=WIDE)


def test_two_die_and_the_first_rank_is_one_of_them(undisturbed: Outcome, tmp_path: Path) -> None:
    faults = [Fault(STEP, place, point=FaultPoint.IN_VOTE) for place in (0, 3)]
    outcome = swapped(tmp_path, undisturbed, faults, spares=3)
    assert outcome.state.parked == 1


@pytest.mark.parametrize("kind", [FaultKind.SIGKILL, FaultKind.SIGSTOP])
def test_the_next_spare_comes_if_one_dies_while_it_takes_the_state(
    kind: FaultKind, undisturbed: Outcome, tmp_path: Path
) -> None:
    outcome = swapped(tmp_path, undisturbed, [Fault(STEP, 2), in_restore(SPARE, kind)], spares=2)
    assert "bytes have come" in outcome.state.faults_fired[1]
    assert not any(name.startswith(f"{SPARE:04d}") for name in outcome.decided)


def test_the_survivors_go_on_alone_if_every_spare_dies(undisturbed: Outcome, tmp_path: Path) -> None:
    faults = [Fault(STEP, 2), in_restore(SPARE), in_restore(SPARE + 1)]
    outcome = swapped(tmp_path, undisturbed, faults, spares=2, lost=1)
    assert outcome.state.recoveries[-1].decision.startswith("3 of 4 replicas go on")


def test_another_rank_serves_if_one_dies_while_it_does(undisturbed: Outcome, tmp_path: Path) -> None:
    faults = [Fault(STEP, 2), Fault(STEP, 0, point=FaultPoint.IN_RESTORE)]
    outcome = swapped(tmp_path, undisturbed, faults, spares=2)
    assert "bytes have passed" in outcome.state.faults_fired[1]


def test_the_cheaper_way_is_taken_by_default(undisturbed: Outcome, tmp_path: Path) -> None:
    outcome = run(tmp_path, ranks=4, chaos=[Fault(STEP, 2)], spares=1)
    decision = outcome.state.recoveries[0].decision
    assert decision.startswith(("swap: ", "shrink: "))
    assert "against" in decision
    world = outcome.state.recoveries[0].world_after
    assert_as_if_undisturbed(outcome, undisturbed, [Fault(STEP, 2)], lost=4 - world)


def test_float_sums_are_close(undisturbed: Outcome, tmp_path: Path) -> None:
    outcome = run(tmp_path, ranks=4, chaos=[Fault(STEP, 2)], spares=1, recovery="swap", reduction="float")
    assert outcome.state.phase is Phase.SUCCEEDED
    assert outcome.state.metrics["world"] == 4
    for step, seen in undisturbed.rates.items():
        ((rate, loss),) = seen
        for other_rate, other_loss in outcome.rates[step]:
            assert other_rate == rate
            assert other_loss == pytest.approx(loss, rel=1e-4)
