"""The rank's half of the step protocol: what is done, entered, decided, and what a message may change.

A step is decided by a vote: an all-reduce that every member enters only after it holds the full sum. Whoever sees
the vote complete knows that everybody holds the sum, and has decided. Three rules make this safe under failures:

1. Nothing is decided in a generation that was abandoned: a report is a promise (``abandon``).
2. If any survivor has decided a position, it is decided for all; the others hold the sum and follow (``open``).
3. Gradients that are done belong to (step, index), not to a generation: they stay valid when the group changes.

The values here are immutable; each method returns the next value. No torch, no Ray, no clock, no I/O.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from ...conf.errors import LoopError
from ...policies.world import Generation, Position, Work, World
from ..messages import Open, Report


class ProtocolError(Exception):
    """The protocol was violated: to go on would be to train on wrong gradients."""


class Verdict(StrEnum):
    """How a position was decided. Every member that entered the vote can tell it from what it holds."""

    COMMIT = "commit"
    SKIP = "skip"
    VOID = "void"
    STOP = "stop"


@dataclass(frozen=True)
class Transaction:
    """Where one rank stands in the protocol.

    Attributes:
        incarnation: whose.
        world: newest world that was opened to it; None before the first.
        abandoned: True once it promised to decide nothing in ``world.generation``.
        position: first undecided position.
        work: what is decided there; None until this rank has come to it or a peer's report has told.
        indices: what it contributes to ``position``, ascending.
        poison: indices that contribute nothing and must not be computed.
        done: those of them whose gradients it holds.
        entered: generation in which it entered the vote of ``position``, None if it did not.
    """

    incarnation: str
    world: World | None = None
    abandoned: bool = False
    position: Position = Position(0)
    work: Work | None = None
    indices: tuple[int, ...] = ()
    poison: frozenset[int] = frozenset()
    done: frozenset[int] = frozenset()
    entered: Generation | None = None

    @property
    def generation(self) -> Generation | None:
        return None if self.world is None else self.world.generation

    @property
    def owed(self) -> tuple[int, ...]:
        """Indices still to compute, in order."""
        return tuple(index for index in self.indices if index not in self.done)

    def current(self, generation: Generation) -> bool:
        """Whether something may still be decided in this generation."""
        return self.generation == generation and not self.abandoned

    def take_up(self, position: Position, work: Work, indices: tuple[int, ...]) -> "Transaction":
        """The user's loop has come to ``position``; ``indices`` are this rank's share if nobody was there before.

        Raises:
            LoopError: a peer does something else there.
        """
        if position != self.position:
            raise ProtocolError(f"{work} at step {position} begins while at step {self.position}")
        if self.work is not None and self.work != work:
            raise LoopError(
                f"before or in step {position.step} this rank does {work}, another one {self.work}: every rank must "
                "call run.evaluate alike"
            )
        return self if self.work is not None else replace(self, work=work, indices=indices)

    def fold(self, position: Position, index: int) -> "Transaction":
        """The gradient of ``index`` is in the accumulators."""
        if position != self.position:
            raise ProtocolError(f"microbatch {index} of step {position} is folded while at step {self.position}")
        if index not in self.indices or index in self.done:
            raise ProtocolError(f"microbatch {index} of step {position} is not owed")
        return replace(self, done=self.done | {index})

    def enter(self, generation: Generation) -> "Transaction":
        """About to enter the vote of this position: all of its buckets hold the full sum."""
        if not self.current(generation):
            return self
        if self.owed:
            raise ProtocolError(f"the vote of step {self.position} is entered while {self.owed} are owed")
        return replace(self, entered=generation)

    def decide(self, generation: Generation, following: Position) -> "Transaction":
        """The vote was seen whole: go to the ``following`` position."""
        if not self.current(generation) or self.entered != generation:
            raise ProtocolError(f"step {self.position} cannot be decided in generation {generation}")
        return self._at(following)

    def abandon(self, generation: Generation) -> "Transaction":
        """Promise to decide nothing in ``generation`` or an older one."""
        if self.generation is None or self.generation > generation:
            return self
        return replace(self, abandoned=True)

    def report(self, cause: str | None = None, accused: str | None = None) -> Report:
        """The fact sheet that goes with the promise."""
        if self.generation is None or not self.abandoned:
            raise ProtocolError("a report needs a generation that was abandoned")
        return Report(
            self.incarnation,
            self.generation,
            self.position,
            self.done,
            frozenset(self.owed),
            cause,
            accused,
            self.work,
        )

    def open(self, message: Open) -> "Transaction":
        """A new generation. Stale ones change nothing; a position ahead of ours was decided by a peer."""
        world = message.world
        if self.generation is not None and world.generation <= self.generation:
            return self
        if world.member(self.incarnation) is None:
            raise ProtocolError(f"generation {world.generation} was opened to {self.incarnation}, not a member")
        indices = message.indices.get(self.incarnation, ())
        opened = replace(self, world=world, abandoned=False, entered=None)
        if message.position == self.position or self.generation is None:
            if message.work is None and self.work is not None:
                raise ProtocolError(f"{self.work} at step {self.position} was reported, but the controller forgot it")
            if not self.done <= set(indices):
                lost = sorted(self.done - set(indices))
                raise ProtocolError(f"finished microbatches {lost} of step {self.position} were given to others")
            return replace(opened, position=message.position, work=message.work, indices=indices, poison=message.poison)
        if message.position < self.position:
            raise ProtocolError(f"step {self.position} follows a decided one, {message.position} was opened")
        if self.entered is None:
            raise ProtocolError(f"step {self.position} is called decided, but its vote was never entered here")
        return replace(opened._at(message.position), work=message.work, indices=indices, poison=message.poison)

    def _at(self, position: Position) -> "Transaction":
        """At the beginning of another position; a void attempt is made again without the same poison."""
        poison = self.poison if position.first == self.position.first else frozenset()
        return replace(self, position=position, work=None, indices=(), poison=poison, done=frozenset(), entered=None)
