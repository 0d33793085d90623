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

Intervals are powers of two. The cost is so flat around its least that a factor of at most sqrt(2) changes it by 6 % of
itself, and for that a step at which one way of saving is due is one for all that save more often, an interval that
changes misses nothing, and estimates that waver rarely change it.
"""

from dataclasses import dataclass
from enum import StrEnum
from math import log2, sqrt

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
    """Save after every step whose number ``steps`` divides: a power of two; ``reason`` says why, in one line."""

    steps: int
    reason: str


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
    """Intervals by Young or Daly.

    Attributes:
        most: steps between two saves, however little is lost; at least 1.
        prior: of the failure rate.
        formula: which estimate.
    """

    most: int = 1 << 16
    prior: Prior = Prior()
    formula: Formula = Formula.DALY

    def __post_init__(self) -> None:
        refuse_below(1, most=self.most)

    def decide(self, saving: Saving) -> Interval:
        """The interval from here on."""
        between = self.prior.mean_seconds_between(saving.failures, saving.observed)
        best = best_interval(saving.cost, between, self.formula)
        steps = 1 << round(log2(min(max(best / saving.step, 1.0), self.most)))
        if steps > self.most:
            steps >>= 1
        seen = f"a failure in {between:.3g} s ({saving.failures} in {saving.observed:.3g} s)"
        why = f"{self.formula} asks for one in {best:.3g} s at {saving.cost:.3g} s each"
        return Interval(steps, f"every {steps} steps: {why}, with {seen} and steps of {saving.step:.3g} s")
