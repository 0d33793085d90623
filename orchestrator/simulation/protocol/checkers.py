"""What must be true of every simulated run, whatever happens to it. Each check runs when what it is about changes."""

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ....actors.messages import Open, Report
from ....actors.rank.transaction import Transaction, Verdict
from ....policies.world import Generation, Position, Work, World
from .loop import Loop

if TYPE_CHECKING:
    from ...machine.state import State
    from .ranks import Rank


class Violation(AssertionError):
    """Something happened that must never happen.

    Args:
        check: the rule that it breaks.
        text: what happened.
    """

    def __init__(self, check: str, text: str) -> None:
        super().__init__(text)
        self.check = check


class Checks:
    """Looks on from outside, knows everything, and remembers what was decided."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._decided: dict[Position, tuple[Work, Verdict]] = {}
        self._worlds: dict[Generation, World] = {}

    # --- ranks

    def sum(self, rank: "Rank", entered: Mapping[str, Any]) -> frozenset[int]:
        """What one member got out of a sum that it saw complete: each index once, all of one position."""
        training = rank.training
        held = [contribution for _, contribution in entered.values()]
        if any((position, work) != (training.position, training.work) for position, work, _ in held):
            raise Violation("one position in a sum", f"{rank.name} summed different positions: {entered}")
        counts = Counter(index for _, _, indices in held for index in indices)
        if counts != Counter(range(training.work.microbatches)):
            raise Violation("each index once", f"{rank.name} summed {dict(counts)} at {training.position}: {entered}")
        return frozenset(counts)

    def report(self, rank: "Rank", message: Report) -> None:
        """A rank reports what it holds, no more and no less."""
        training = rank.training
        if rank.ledger.transaction.position == training.position and message.done != training.sums:
            raise Violation(
                "reports are true", f"{rank.name} reports {sorted(message.done)} but holds {sorted(training.sums)}"
            )

    def opened(self, rank: "Rank", message: Open, before: Transaction, after: Transaction) -> None:
        """A rank went into a generation: never back, and never into one that it had promised to stay out of."""
        generation = message.world.generation
        if before.generation is not None and generation <= before.generation:
            raise Violation("never back", f"{rank.name} went from generation {before.generation} back to {generation}")
        if generation <= rank.promised:
            raise Violation("promises bind", f"{rank.name} went into {generation} after it promised {rank.promised}")
        if after.position < before.position:
            raise Violation("never back", f"{rank.name} went from {before.position} back to {after.position}")

    def poison(self, rank: "Rank", transaction: Transaction, index: int) -> None:
        """What nobody may compute is what the controller said, at every attempt at this position and at no other."""
        told = rank.told.get(transaction.position.first, frozenset())
        if (index in told) != (index in transaction.poison):
            raise Violation(
                "poison of a position",
                f"poison at {transaction.position} is {told}, not {transaction.poison}, for {rank.name}",
            )

    def decision(self, rank: "Rank", generation: Generation) -> None:
        """A rank has decided by what it saw itself."""
        training = rank.training
        if generation <= rank.promised:
            raise Violation(
                "promises bind",
                f"{rank.name} decides {training.position} in {generation} after it promised {rank.promised}",
            )
        if training.total is None or len(training.total) != training.work.microbatches:
            raise Violation("only with the whole sum", f"{rank.name} decides {training.position} without the whole sum")

    def verdict(self, rank: "Rank", verdict: Verdict) -> None:
        """A rank has decided, or follows one that has: one verdict for a position."""
        position, said = rank.training.position, (rank.training.work, verdict)
        if self._decided.setdefault(position, said) != said:
            raise Violation("one verdict", f"{position} is decided {said} and {self._decided[position]}")

    # --- controllers

    def sent(self, message: Open, newest: Generation | None, ranks: Mapping[str, "Rank"]) -> None:
        """A generation is opened: a new one, with every index of its position given out exactly once."""
        world = message.world
        known = self._worlds.setdefault(world.generation, world)
        if known != world:
            raise Violation(
                "a generation once", f"generation {world.generation} is used twice: for {known} and for {world}"
            )
        if newest is not None and world.generation < newest:
            raise Violation("generations grow", f"generation {world.generation} after {newest}")
        if message.work is None:
            return
        given = Counter(index for name in world.incarnations for index in message.indices.get(name, ()))
        if given != Counter(range(message.work.microbatches)):
            raise Violation(
                "no index lost", f"of {message.work} at {message.position}, {world.generation} gives out {dict(given)}"
            )

    def planned(self, reports: Mapping[str, Report], ranks: Mapping[str, "Rank"]) -> None:
        """What a plan is made from is still true: whoever has reported has begun and decided nothing since."""
        for name, message in reports.items():
            rank = ranks[name]
            if not rank.alive:
                continue
            transaction = rank.ledger.transaction
            if (transaction.position, transaction.work) != (message.position, message.work) or (
                transaction.done | set(transaction.owed) != message.done | message.owed
            ):
                raise Violation(
                    "plans are made from what is", f"planned from {message}, but {name} stands at {transaction}"
                )

    # --- the end

    def end(self, state: "State", ranks: Mapping[str, "Rank"]) -> None:
        """Everybody went through the same units in order; only who was hit is missing, and nobody healthy failed."""
        whole = self._loop.whole
        for rank in ranks.values():
            history = [(position.first, work) for position, work in rank.training.history]
            if history != whole[: len(history)]:
                raise Violation("the same units for all", f"{rank.name} went through {history}, not {whole}")
        if state.error is None:
            for member in state.members:
                history = ranks[member.incarnation].training.history
                if len(history) != len(whole):
                    raise Violation("every step by all", f"{member.incarnation} finished after {history}")
            return
        poisoned = "is poison" in state.error and not state.settings.skip_poison
        if not poisoned and not all(rank.hit for rank in ranks.values()):
            raise Violation("an end with a cause", f"healthy ranks are left, but the run ended: {state.error}")
