"""What must be true of every simulated run, whatever happened to it."""

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from everstep.actors.rank.transaction import Verdict
from everstep.orchestrator.machine.state import State
from everstep.policies.world import Generation, Position, Work

from .simulated_loop import Loop

if TYPE_CHECKING:
    from .simulated_rank import Rank


class Violation(AssertionError):
    """Something happened that must never happen."""


class Checks:
    """Looks on, and remembers what was decided."""

    def __init__(self, loop: Loop) -> None:
        self._whole = loop.whole
        self._decided: dict[Position, tuple[Work, Verdict]] = {}

    def sum(self, rank: "Rank", entered: Mapping[str, Any]) -> frozenset[int]:
        """What one member got out of a sum that it saw complete."""
        held = [contribution for _, contribution in entered.values()]
        if any((position, work) != (rank.position, rank.work) for position, work, _ in held):
            raise Violation(f"{rank.name} summed different positions: {entered}")
        counts = Counter(index for _, _, indices in held for index in indices)
        if counts != Counter(range(rank.work.microbatches)):
            raise Violation(f"{rank.name} summed {dict(counts)} at {rank.position}: {entered}")
        return frozenset(counts)

    def decision(self, rank: "Rank", generation: Generation) -> None:
        """A rank has decided by what it saw itself."""
        if generation <= rank.promised:
            raise Violation(f"{rank.name} decides {rank.position} in {generation} after it promised {rank.promised}")
        if rank.total is None or len(rank.total) != rank.work.microbatches:
            raise Violation(f"{rank.name} decides {rank.position} without the whole sum")

    def verdict(self, rank: "Rank", verdict: Verdict) -> None:
        """A rank has decided, or follows one that has."""
        said = (rank.work, verdict)
        if self._decided.setdefault(rank.position, said) != said:
            raise Violation(f"{rank.position} is decided {said} and {self._decided[rank.position]}")

    def end(self, state: State, ranks: Mapping[str, "Rank"]) -> None:
        """Everybody went through the same units in order; only who was hit is missing, and nobody healthy failed."""
        for rank in ranks.values():
            history = [(position.first, work) for position, work in rank.history]
            if history != self._whole[: len(history)]:
                raise Violation(f"{rank.name} went through {history}, not through {self._whole}")
        if state.error is None:
            for member in state.members:
                if len(ranks[member.incarnation].history) != len(self._whole):
                    raise Violation(f"{member.incarnation} finished after {ranks[member.incarnation].history}")
            return
        poisoned = "is poison" in state.error and not state.settings.skip_poison
        if not poisoned and not all(rank.hit for rank in ranks.values()):
            raise Violation(f"healthy ranks are left, but the run ended: {state.error}")
