"""What a remedy costs: the seconds by which training will be later than without the loss. Pure arithmetic.

A step of w replicas takes ``ceil(B / w) * microbatch + step`` seconds. A remedy first holds everybody up (notice, new
group, transfers, starting processes, reading), then the world may be smaller than before until replacements come, and
lost steps are done again. All of that together, up to the same amount of training, is the delay.
"""

from dataclasses import dataclass, fields
from math import inf

from ..conf.bounds import refuse_below, refuse_nonpositive
from .remedies import LossFacts, Option, Remedy

# Who would join just as the last step ends does not join.
_ROUNDING_S = 1e-6


@dataclass(frozen=True)
class Costs:
    """Measured times in seconds. The defaults are orders of magnitude between processes of one machine.

    Attributes:
        microbatch: one forward and backward of one replica; positive.
        step: what a step takes beside its microbatches (reduction, vote, update).
        detect: from a loss to its first sign.
        rebuild: from the first sign to the new group.
        adopt: until a spare or an orphan computes at the coordinate that it is given.
        restart: from the decision to start a rank until it can join, imports and model included.
        transfer_per_byte: of a living rank's state to another one.
        vault_per_byte: of a snapshot from a vault.
        storage_per_byte: of a checkpoint from storage.

    Raises:
        ValueError: a value that is no time, in one line.
    """

    microbatch: float
    step: float = 0.0
    detect: float = 0.1
    rebuild: float = 0.03
    adopt: float = 0.0
    restart: float = 5.0
    transfer_per_byte: float = 1e-9
    vault_per_byte: float = 1e-9
    storage_per_byte: float = 1e-8

    def __post_init__(self) -> None:
        refuse_below(0, **{f"costs.{item.name}": getattr(self, item.name) for item in fields(self)})
        refuse_nonpositive(**{"costs.microbatch": self.microbatch})

    def step_of(self, facts: LossFacts, world: int) -> float:
        """Seconds of one step with ``world`` replicas."""
        return -(-facts.microbatches // world) * self.microbatch + self.step


def reach(facts: LossFacts, costs: Costs, horizon: float) -> float:
    """How much training a comparison looks at, in seconds of the world before the loss: at most what is left."""
    if facts.remaining_steps is None:
        return horizon
    return min(horizon, facts.remaining_steps * costs.step_of(facts, facts.members))


def arrival(facts: LossFacts, costs: Costs, replicas: int) -> float:
    """Seconds until so many replicas more can have been started; infinite if they are not to be expected."""
    awaited = max(0, replicas - facts.room)
    if not awaited:
        return costs.restart
    return costs.restart + awaited / facts.replacement_rate if facts.replacement_rate else inf


def delay(facts: LossFacts, option: Option, costs: Costs, horizon: float, patience: float) -> float:
    """By how many seconds training is later at the horizon, if ``option`` is taken.

    Args:
        facts: of the loss.
        option: what the remedy comes to.
        costs: measured times.
        horizon: how much training to look at, in seconds of the world before the loss.
        patience: seconds that training may wait for capacity in all; no wait is longer.
    """
    ahead = reach(facts, costs, horizon)
    full = costs.step_of(facts, facts.members)
    clock = _stall(facts, option, costs, patience)
    work = ahead
    if option.back is not None:
        # A loss comes half-way through a step on average, and a restore begins that step anew.
        work += (option.back + 0.5) * full
    world, started, let_in = min(option.world, facts.members), option.fresh, -inf
    # Living ranks that are left over join at the next step; others have to be started.
    idle = (facts.orphans + facts.spares) // facts.ranks_per_replica - option.completed
    next_step = clock + costs.step_of(facts, world)
    joining = costs.adopt + facts.state_bytes * costs.transfer_per_byte
    while True:
        comes = next_step if idle > 0 else arrival(facts, costs, started + 1)
        until = max(clock, comes) if world < facts.members else inf
        pace = full / costs.step_of(facts, world)
        if clock + work / pace <= until + _ROUNDING_S:
            return clock + work / pace - ahead
        work -= (until - clock) * pace
        # Who joins has built while the others trained, but these wait until it has their state; all who come, at once.
        clock, world = until, world + 1
        if comes > let_in:
            clock, let_in = until + joining, until
        idle, started = (idle - 1, started) if idle > 0 else (0, started + 1)


def _stall(facts: LossFacts, option: Option, costs: Costs, patience: float) -> float:
    """Seconds in which nobody trains, or trains only what was lost."""
    seconds = costs.detect + costs.rebuild
    if option.completed:
        seconds += costs.adopt
    if option.fresh:
        seconds += min(arrival(facts, costs, option.fresh), patience - facts.waited)
    if option.source is not None:
        reading = costs.vault_per_byte if option.source is Remedy.RESTORE_VAULT else costs.storage_per_byte
        return seconds + facts.state_bytes * reading
    # A whole replica feeds one newcomer at a time; lost microbatches are computed by all.
    rounds = -(-option.transfers // max(1, facts.survivors))
    again = -(-facts.lost_microbatches // option.world)
    return seconds + rounds * facts.state_bytes * costs.transfer_per_byte + again * costs.microbatch
