"""A spare takes the place of a dead rank in the same step, with the state of a living one."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from everstep.conf.chaos import Fault, FaultPoint

from .harness import Outcome, assert_as_if_undisturbed, run

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
