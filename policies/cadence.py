"""How often to take a snapshot and to write a checkpoint, in steps. Pure: costs and failures in, intervals out.

The interval weighs what saving costs against what a failure loses, which is half an interval on average. With cost d
and mean time between failures M, both in seconds, and time t of training between two saves:

- Young (1974), "A first order approximation to the optimum checkpoint interval", doi:10.1145/361147.361115:
  ``t = sqrt(2 d M)``.
- Daly (2006), "A higher order estimate of the optimum checkpoint interval for restart dumps",
  doi:10.1016/j.future.2004.11.016: ``t = sqrt(2 d M) (1 + sqrt(d / 2M) / 3 + (d / 2M) / 9) - d`` for d < 2M,
  else ``t = M``.

Failures are taken for a Poisson process whose rate has a Gamma prior. After n failures in T seconds the mean rate is
``(a + n) / (b + T)`` for a prior of a failures in b seconds, so M = (b + T) / (a + n): no failure so far does not mean
that there is never one.
"""

from dataclasses import dataclass
from enum import StrEnum
from math import sqrt

from ..conf.bounds import refuse_below, refuse_nonpositive


@dataclass(frozen=True)
class Prior:
    """What is expected of the failure rate before anything was observed: so many failures in so many seconds."""

    failures: float = 1.0
    seconds: float = 86400.0

    def __post_init__(self) -> None:
        refuse_nonpositive(**{"prior.failures": self.failures, "prior.seconds": self.seconds})

    def mean_seconds_between(self, failures: int, seconds: float) -> float:
        """Mean time between failures once so many were seen in so many seconds."""
        return (self.seconds + seconds) / (self.failures + failures)


@dataclass(frozen=True)
class Saving:
    """What is known of one way to save.

    Attributes:
        cost: seconds by which one save holds training up.
        step: seconds of one step; positive.
        failures: that this way of saving is there for, as counted so far.
        observed: seconds in which they were counted.
    """

    cost: float
    step: float
    failures: int
    observed: float

    def __post_init__(self) -> None:
        refuse_below(0, cost=self.cost, failures=self.failures, observed=self.observed)
        refuse_nonpositive(step=self.step)


@dataclass(frozen=True)
class Interval:
    """Save every ``steps`` steps.

    Attributes:
        steps: at least 1.
        exact: the same before rounding; what later estimates are compared with.
        reason: one line that says why.
    """

    steps: int
    exact: float
    reason: str


@dataclass(frozen=True)
class CadenceDecision:
    """When to save. A checkpoint is a snapshot that is made durable, so each needs a snapshot of its step."""

    snapshot: Interval
    checkpoint: Interval

    def snapshot_after(self, step: int) -> bool:
        """Whether a snapshot is due once ``step`` steps are applied."""
        return step % self.snapshot.steps == 0 or self.checkpoint_after(step)

    def checkpoint_after(self, step: int) -> bool:
        """Whether a checkpoint is due once ``step`` steps are applied."""
        return step % self.checkpoint.steps == 0


class Formula(StrEnum):
    """Which estimate of the best interval is used."""

    YOUNG = "Young"
    DALY = "Daly"


def best_interval(cost: float, mean_seconds_between: float, formula: Formula = Formula.DALY) -> float:
    """Seconds of training between two saves, see above; both arguments in seconds."""
    young = sqrt(2 * cost * mean_seconds_between)
    if formula is Formula.YOUNG:
        return young
    share = cost / (2 * mean_seconds_between)
    if share >= 1:
        return mean_seconds_between
    return young * (1 + sqrt(share) / 3 + share / 9) - cost


@dataclass(frozen=True)
class YoungDaly:
    """Intervals by Young or Daly, within bounds, and damped: an interval stays until the estimate has really moved.

    Attributes:
        snapshot_bounds: fewest and most steps between snapshots.
        checkpoint_bounds: fewest and most steps between checkpoints.
        prior: of the failure rate.
        formula: which estimate.
        damping: an interval is kept while it and the new estimate differ by less than this factor.
    """

    snapshot_bounds: tuple[int, int] = (1, 1000)
    checkpoint_bounds: tuple[int, int] = (1, 100_000)
    prior: Prior = Prior()
    formula: Formula = Formula.DALY
    damping: float = 1.25

    def __post_init__(self) -> None:
        for name in ("snapshot_bounds", "checkpoint_bounds"):
            low, high = getattr(self, name)
            if not 1 <= low <= high:
                raise ValueError(f"{name}=({low}, {high}) must be at least 1 and ascend")
        refuse_below(1, damping=self.damping)

    def decide(self, snapshot: Saving, checkpoint: Saving, current: CadenceDecision | None = None) -> CadenceDecision:
        """The intervals from here on.

        Args:
            snapshot: what a snapshot costs, and the failures that one helps against.
            checkpoint: the same for a checkpoint.
            current: the intervals so far.
        """
        return CadenceDecision(
            self._interval(snapshot, self.snapshot_bounds, current.snapshot if current else None),
            self._interval(checkpoint, self.checkpoint_bounds, current.checkpoint if current else None),
        )

    def _interval(self, saving: Saving, bounds: tuple[int, int], current: Interval | None) -> Interval:
        low, high = bounds
        between = self.prior.mean_seconds_between(saving.failures, saving.observed)
        best = best_interval(saving.cost, between, self.formula)
        exact = min(max(best / saving.step, low), high)
        why = (
            f"{self.formula} asks for one in {best:.3g} s at {saving.cost:.3g} s each, with a failure in "
            f"{between:.3g} s ({saving.failures} in {saving.observed:.3g} s) and steps of {saving.step:.3g} s"
        )
        if current is not None and low <= current.exact <= high:
            lesser, greater = sorted((current.exact, exact))
            if greater < lesser * self.damping:
                return Interval(current.steps, current.exact, f"every {current.steps} steps as before: {why}")
        steps = round(exact)
        return Interval(steps, exact, f"every {steps} steps: {why}")
