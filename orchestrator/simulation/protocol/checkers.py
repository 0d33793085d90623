"""What must be true of every simulated run, whatever happens to it. Each check runs when what it is about changes."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ....actors.messages import Open, Report
from ....actors.rank.transaction import Transaction, Verdict
from ....policies.world import Generation, Position, Work, WorkKind, World
from .loop import Loop

if TYPE_CHECKING:
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


class Contribution(NamedTuple):
    """What one member brings to a sum.

    Attributes:
        given: indices whose gradients are in it; none if it is a shadow.
        dropped: indices that it believes nobody brings.
        spoiled: what is wrong in the weights that it was computed with.
    """

    position: Position
    work: Work
    given: frozenset[int]
    dropped: frozenset[int]
    spoiled: frozenset[str] = frozenset()


class Checks:
    """Looks on from outside, knows everything, and remembers what was decided.

    Args:
        loop: what everybody is to go through.
        exact: whether every microbatch counts.
    """

    def __init__(self, loop: Loop, exact: bool) -> None:
        self._loop = loop
        self._exact = exact
        self._decided: dict[tuple[int, Position], tuple[Work, Verdict]] = {}
        # Which course of the run a generation belongs to: one that goes back to what was saved begins another.
        self._courses: dict[Generation, int] = {}
        self._worlds: dict[Generation, World] = {}

    # --- ranks

    def sum(self, rank: "Rank", entered: Mapping[str, Any]) -> frozenset[int]:
        """What one member got out of a sum that it saw complete: each index once, all of one position."""
        training = rank.training
        held: list[Contribution] = [contribution for _, contribution in entered.values()]
        if any((one.position, one.work) != (training.position, training.work) for one in held):
            raise Violation("one position in a sum", f"{rank.name} summed different positions: {entered}")
        dropped = held[0].dropped
        if any(one.dropped != dropped for one in held) or (dropped and self._exact):
            raise Violation("each index once", f"{rank.name} drops microbatches: {entered}")
        counts = Counter(index for one in held for index in one.given)
        if counts != Counter(set(range(training.work.microbatches)) - dropped):
            raise Violation("each index once", f"{rank.name} summed {dict(counts)} at {training.position}: {entered}")
        return frozenset(counts) | dropped

    def report(self, rank: "Rank", message: Report) -> None:
        """A rank reports what it holds, no more and no less."""
        training, transaction = rank.training, rank.ledger.transaction
        here = transaction.position == training.position and not rank.begins_anew
        if here and message.done != training.sums:
            held = sorted(training.sums)
            raise Violation("reports are true", f"{rank.name} reports {sorted(message.done)} but holds {held}")

    def opened(self, rank: "Rank", message: Open, before: Transaction, after: Transaction) -> None:
        """A rank went into a generation: never back, never without what it has, never where it promised not to go."""
        generation = message.world.generation
        if before.generation is not None and generation <= before.generation:
            raise Violation("never back", f"{rank.name} went from generation {before.generation} back to {generation}")
        if generation <= rank.promised:
            raise Violation("promises bind", f"{rank.name} went into {generation} after it promised {rank.promised}")
        anew = rank.name in message.sources
        if after.lacks or (anew and message.work is None):
            return
        if after.position < before.position:
            raise Violation("never back", f"{rank.name} went from {before.position} back to {after.position}")
        kept = not anew and before.repeats is None
        if after.position == before.position and kept and not before.done <= after.done:
            raise Violation("nothing finished is thrown away", f"{rank.name} had {before}, and now {after}")

    def begun(self, rank: "Rank", transaction: Transaction) -> None:
        """Whoever begins anew holds exactly the state that belongs before its position."""
        whole = self._loop.training[: transaction.position.step]
        if rank.training.history != whole:
            told = f"{rank.name} begins at {transaction.position} after {rank.training.history}, not after {whole}"
            raise Violation("the state of that very step", told)

    def superseded(self, rank: "Rank", generation: Generation) -> None:
        """A generation may only be given up before it has begun if there is another one."""
        if self.newest is not None and self.newest.generation <= generation:
            raise Violation("what is gone on from is there", f"{rank.name} finds nothing to begin {generation} with")

    def released(self, rank: "Rank") -> None:
        """Whoever is let go before the end leaves nothing undone that counts on it.

        What it has done of a course that the others have left, which it may not have heard, counts no more.
        """
        transaction = rank.ledger.transaction
        counts = transaction.entered is None and transaction.repeats is None
        generation = transaction.generation
        if generation is not None and self._worlds:
            counts &= self._courses.get(generation, 0) == self._courses.get(max(self._worlds), 0)
        if counts and (transaction.done or transaction.owed):
            raise Violation("a leaver's work is not lost", f"{rank.name} is released with {transaction}")

    def poison(self, rank: "Rank", transaction: Transaction, index: int) -> None:
        """What nobody may compute is what the controller said, at every attempt at this step and at no other."""
        training = rank.training.work.kind is WorkKind.TRAINING
        told = rank.told.get(transaction.position.step, frozenset()) if training else frozenset()
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
        generation = rank.ledger.transaction.generation
        course = 0 if generation is None else self._courses.get(generation, 0)
        if self._decided.setdefault((course, position), said) != said:
            raise Violation("one verdict", f"{position} is decided {said} and {self._decided[course, position]}")

    # --- controllers

    def sent(self, message: Open, newest: Generation | None) -> None:
        """A generation is opened: a new one, with every index of its position given out exactly once."""
        world = message.world
        known = self._worlds.setdefault(world.generation, world)
        if known != world:
            raise Violation(
                "a generation once", f"generation {world.generation} is used twice: for {known} and for {world}"
            )
        if newest is not None and world.generation < newest:
            raise Violation("generations grow", f"generation {world.generation} after {newest}")
        if message.work is None and (message.sources or newest is None):
            # Who begins a step anew decides once more what was decided, and may come to other things.
            self._courses.setdefault(world.generation, len(self._courses) + 1)
        elif newest is not None:
            # Not always that of the newest one of all: with everybody else dead, a rank goes on that was left behind.
            self._courses.setdefault(world.generation, self._courses.get(newest, 0))
        if message.work is None:
            return
        wanted = Counter(set(range(message.work.microbatches)) - message.dropped)
        if message.dropped and self._exact:
            raise Violation("no index lost", f"{world.generation} drops {sorted(message.dropped)} of {message.work}")
        for place in range(world.ranks_per_replica):
            giving = (one.incarnation for one in world.peers(place) if one.incarnation not in message.shadows)
            given = Counter(index for name in giving for index in message.indices.get(name, ()))
            if given != wanted:
                told = f"of {message.work} at {message.position}, {world.generation} gives out {dict(given)}"
                raise Violation("no index lost", told)

    def planned(self, reports: Iterable[Report], ranks: Mapping[str, "Rank"]) -> None:
        """What a plan is made from is still true: whoever has reported has begun and decided nothing since."""
        for message in reports:
            rank = ranks[message.incarnation]
            transaction = rank.ledger.transaction
            if not rank.alive or message.lacks or rank.promised > message.abandons:
                continue
            held = frozenset() if transaction.repeats != message.repeats else transaction.done | set(transaction.owed)
            if (transaction.position, transaction.work, held) != (
                message.position, message.work, message.done | message.owed
            ):  # fmt: skip
                raise Violation(
                    "plans are made from what is", f"planned from {message}, but it stands at {transaction}"
                )

    def acts(self, term: int, newest: int) -> None:
        """Only the newest controller starts and kills ranks, or ends the run."""
        if term != newest:
            raise Violation("only the newest term acts", f"the controller of term {term} acts, {newest} is taken")

    def adopted(self, world: World, heard: Iterable[Generation]) -> None:
        """A later controller goes on with the newest world of which it has heard."""
        newer = max(heard, default=world.generation)
        if world.generation < newer:
            raise Violation("the newest world counts", f"{world} is adopted after {newer} was heard of")

    @property
    def newest(self) -> World | None:
        """The world that was opened last."""
        return self._worlds[max(self._worlds)] if self._worlds else None

    # --- the end

    def histories(self, ranks: Iterable["Rank"]) -> None:
        """Everybody went through the same units in order."""
        whole = self._loop.training
        for rank in ranks:
            history = rank.training.history
            if history != whole[: len(history)]:
                raise Violation("the same units for all", f"{rank.name} went through {history}, not {whole}")

    def succeeded(self, members: Iterable["Rank"]) -> None:
        """Whoever is there at the end has gone through everything."""
        for rank in members:
            if len(rank.training.history) != self._loop.steps:
                raise Violation("every step by all", f"{rank.name} finished after {rank.training.history}")
