"""How to go on after a loss: policies that choose among the possible remedies. Pure: facts in, a decision out."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol

from ..conf.bounds import refuse_below
from .costs import Costs, delay, reach
from .remedies import LossFacts, Option, Remedy, describe, possible, sources, too_few


@dataclass(frozen=True)
class RecoveryDecision:
    """The remedy, and one line that says why.

    Attributes:
        option: what the remedy comes to; None for the end.
        predictions: by remedy, the delay that it would have meant in seconds; empty if nobody predicted.
        deadline: how many seconds to wait for capacity before asking again; None unless the remedy is to wait.
    """

    remedy: Remedy
    reason: str
    option: Option | None = None
    predictions: Mapping[str, float] = field(default_factory=dict)
    deadline: float | None = None


class RecoveryPolicy(Protocol):
    """Answers a loss."""

    def given(self, costs: Costs) -> "RecoveryPolicy":
        """The same policy with these measured times, if it goes by any and was given none."""
        ...

    def decide(self, facts: LossFacts) -> RecoveryDecision:
        """The remedy for these facts."""
        ...


@dataclass(frozen=True)
class Auto:
    """Takes the remedy that delays training least up to a horizon.

    What a spare would be worth at a later loss is not counted.

    Attributes:
        costs: times to predict with; None: those that are measured while the run goes on (``given``).
        horizon: how much training to look at, in seconds of the world before the loss.
        patience: seconds that training may wait for capacity in all.
    """

    costs: Costs | None = None
    horizon: float = 600.0
    patience: float = 600.0

    def __post_init__(self) -> None:
        refuse_below(0, horizon=self.horizon, patience=self.patience)

    def given(self, costs: Costs) -> "Auto":
        return self if self.costs is not None else replace(self, costs=costs)

    def decide(self, facts: LossFacts) -> RecoveryDecision:
        options = possible(facts, self.patience)
        if not options:
            return _end(facts)
        if self.costs is None:
            raise ValueError("auto cannot decide without costs; see given()")
        delays = {
            remedy: delay(facts, option, self.costs, self.horizon, self.patience) for remedy, option in options.items()
        }
        best, *others = sorted(delays, key=lambda remedy: delays[remedy])
        against = f" against {_seconds(delays[others[0]])} for {others[0]}" if others else ""
        reason = (
            f"{best}: {_seconds(delays[best])}{against} over the next "
            f"{_seconds(reach(facts, self.costs, self.horizon))} ({describe(facts, best, options[best])})"
        )
        return _take(facts, best, options[best], reason, self.patience, delays)


@dataclass(frozen=True)
class _Preferring:
    """Takes the first possible remedy of a fixed order; of two restores, the newer state.

    Attributes:
        patience: seconds that training may wait for capacity in all.
    """

    ORDER: ClassVar[tuple[Remedy, ...]]
    patience: float = 0.0

    def __post_init__(self) -> None:
        refuse_below(0, patience=self.patience)

    def given(self, costs: Costs) -> "_Preferring":
        return self

    def decide(self, facts: LossFacts) -> RecoveryDecision:
        options = possible(facts, self.patience)
        if not options:
            return _end(facts)
        remedy = min(options, key=self._place)
        return _take(facts, remedy, options[remedy], describe(facts, remedy, options[remedy]), self.patience, {})

    def _place(self, remedy: Remedy) -> int:
        return self.ORDER.index(Remedy.RESTORE_VAULT if remedy is Remedy.RESTORE_STORAGE else remedy)


class Swap(_Preferring):
    """Spares first, then orphans; without them, shrink."""

    ORDER = (Remedy.REFORM, Remedy.SWAP, Remedy.COMPLETE, Remedy.SHRINK, Remedy.RESTORE_VAULT, Remedy.WAIT)


class Shrink(_Preferring):
    """The survivors go on alone while they are enough."""

    ORDER = (Remedy.REFORM, Remedy.SHRINK, Remedy.SWAP, Remedy.COMPLETE, Remedy.RESTORE_VAULT, Remedy.WAIT)


class Restart(_Preferring):
    """Everybody goes back to the newest snapshot or checkpoint, as without elasticity; while there is none, shrink."""

    ORDER = (Remedy.REFORM, Remedy.RESTORE_VAULT, Remedy.SHRINK, Remedy.SWAP, Remedy.COMPLETE, Remedy.WAIT)


def recovery_policy(
    name: str, costs: Costs | None = None, horizon: float = 600.0, patience: float = 600.0
) -> RecoveryPolicy:
    """The policy of this name; without costs ``auto`` goes by those that it is given while the run goes on.

    Raises:
        ValueError: no policy has this name.
    """
    if name == "auto":
        return Auto(costs, horizon, patience)
    fixed = {"swap": Swap, "shrink": Shrink, "restart": Restart}
    if name not in fixed:
        raise ValueError(f"unknown recovery policy {name!r}; use one of: auto, {', '.join(fixed)}")
    return fixed[name](patience)


def _take(
    facts: LossFacts, remedy: Remedy, option: Option, reason: str, patience: float, delays: Mapping[Remedy, float]
) -> RecoveryDecision:
    predictions = {str(name): seconds for name, seconds in delays.items()}
    deadline = patience - facts.waited if remedy is Remedy.WAIT else None
    return RecoveryDecision(remedy, reason, option, predictions, deadline)


def _end(facts: LossFacts) -> RecoveryDecision:
    """Nothing is possible, and why."""
    known = facts.state_lives or sources(facts)
    if not known and facts.broken:
        gone = sorted(frozenset.intersection(*facts.broken))
        reason = f"no rank at coordinates {gone} lives, and there is neither a snapshot nor a checkpoint"
    elif not known or facts.hands == 0:
        reason = f"all {facts.members} replicas are lost"
    else:
        reason = too_few(facts)
    if known and facts.waited:
        reason += f"; waited {facts.waited:g} s for {facts.minimum - facts.hands} more"
    return RecoveryDecision(Remedy.END, reason)


def _seconds(value: float) -> str:
    return f"{value:.0f} s" if value >= 10 else f"{value:.2g} s"
