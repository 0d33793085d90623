"""What this run has measured of itself, for the recovery policy's predictions."""

from itertools import islice
from math import fsum
from statistics import median

from ...policies.costs import Costs
from .state import State

_DEFAULT_MICROBATCH_S = 1.0
# Enough to smooth over a slow recovery, few enough to follow a change.
_NEWEST = 8
# So many ranks say as much as all of a large world.
_ENOUGH = 1000


def costs(state: State) -> Costs:
    """Measured times where there are any, orders of magnitude elsewhere."""
    some = tuple(islice(state.ranks.values(), _ENOUGH))
    computed = sum(rank.computed for rank in some if rank.busy > 0)
    # The map's order is another one in every process; this sum does not depend on it.
    busy = fsum(rank.busy for rank in some)
    microbatch = busy / computed if computed and busy else _DEFAULT_MICROBATCH_S
    step = 0.0
    if state.record is not None and computed:
        step = max(0.0, state.record.seconds - microbatch * -(-state.record.microbatches // max(1, state.record.world)))
    phases = [record.phases for record in state.recoveries[-_NEWEST:]]
    starts = [rank.start_s for rank in some if rank.start_s > 0]
    usual = Costs(microbatch)
    return Costs(
        microbatch,
        step,
        detect=_median([held["notice and report"] for held in phases if "notice and report" in held], usual.detect),
        rebuild=_median([held["rebuild"] for held in phases if "rebuild" in held], usual.rebuild),
        restart=_median(starts, usual.restart),
    )


def _median(values: list[float], usual: float) -> float:
    return max(0.0, median(values)) if values else usual
