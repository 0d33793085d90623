"""The rank's half of the step protocol: what is done, entered, decided, and what a message may change.

A step is decided by a vote: an all-reduce that every member enters only after it holds the full sum. Whoever sees
the vote complete knows that everybody holds the sum, and has decided. Three rules make this safe under failures:

1. Nothing is decided in a generation that was abandoned: a report is a promise (``abandon``).
2. If any survivor has decided a position, it is decided for all; the others hold the sum and follow (``open``).
3. Gradients that are done belong to (step, index), not to a generation: they stay valid when the group changes.

The values here are immutable; each method returns the next value. No torch, no Ray, no clock, no I/O.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ...conf.errors import LoopError
from ...policies.values import changed
from ...policies.workload import Assignment, WorkloadPolicy, suited
from ...policies.world import Generation, Position, Work, WorkKind, World
from ..messages import Open, Report, Restore, Serving


class ProtocolError(Exception):
    """The protocol was violated: to go on would be to train on wrong gradients."""


class Verdict(StrEnum):
    """How a position was decided. Every member that entered the vote can tell it from what it holds."""

    COMMIT = "commit"
    SKIP = "skip"
    VOID = "void"
    STOP = "stop"


@dataclass(frozen=True)
class Share:
    """What one rank has to do with one unit of work.

    Attributes:
        indices: that it computes, ascending.
        repeats: the replica that contributes them, if this rank is its shadow: then what it adds to a sum is nothing,
            and it need not have finished when the others have.
        dropped: indices that nobody contributes.
    """

    indices: tuple[int, ...] = ()
    repeats: int | None = None
    dropped: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Transaction:
    """Where one rank stands in the protocol.

    Attributes:
        incarnation: whose.
        world: newest world that was opened to it; None before the first.
        abandoned: True once it promised to decide nothing in ``world.generation``.
        promised: it will be told of no older generation than this one; None if nobody has asked for that.
        position: first undecided position.
        work: what is decided there; None until this rank has come to it or a peer's report has told.
        share: what it has to do with that.
        poisonous: by step, indices that contribute nothing and must not be computed.
        done: those of its indices whose gradients it holds.
        beginning: counts how often it began with nothing done; what was computed in an earlier one is void.
        entered: generation in which it entered the vote of ``position``, None if it did not.
        speeds: of the replicas of this world, for plans that go by them.
        leaving: replicas of this world that begin no work any more.
        anew: members that began with nothing done when this world was opened.
        source: from whom it must take the state before ``position``; None if it holds that.
        restore: set if that state is older than what was decided.
    """

    incarnation: str
    world: World | None = None
    abandoned: bool = False
    promised: Generation | None = None
    position: Position = Position(0)
    work: Work | None = None
    share: Share = Share()
    poisonous: Mapping[int, frozenset[int]] = field(default_factory=dict)
    done: frozenset[int] = frozenset()
    beginning: int = 0
    entered: Generation | None = None
    speeds: Mapping[int, float] = field(default_factory=dict)
    leaving: frozenset[int] = frozenset()
    anew: frozenset[str] = frozenset()
    source: str | None = None
    restore: Restore | None = None

    @property
    def generation(self) -> Generation | None:
        return None if self.world is None else self.world.generation

    @property
    def indices(self) -> tuple[int, ...]:
        """That it computes, ascending."""
        return self.share.indices

    @property
    def poison(self) -> frozenset[int]:
        """Indices of this position that contribute nothing and must not be computed; evaluations have none."""
        training = self.work is not None and self.work.kind is WorkKind.TRAINING
        return self.poisonous.get(self.position.step, frozenset()) if training else frozenset()

    @property
    def repeats(self) -> int | None:
        """The replica of which it is the shadow."""
        return self.share.repeats

    @property
    def owed(self) -> tuple[int, ...]:
        """Indices still to compute, in order."""
        return tuple(index for index in self.indices if index not in self.done)

    @property
    def due(self) -> tuple[int, ...]:
        """Those of them without which it may not vote: of a shadow none, since what it adds is nothing."""
        return self.owed if self.repeats is None else ()

    @property
    def lacks(self) -> bool:
        """Whether it still has not got the state that it was to take or to go back to."""
        return self.source is not None or self.restore is not None

    def current(self, generation: Generation) -> bool:
        """Whether something may still be decided in this generation."""
        return self.generation == generation and not self.abandoned

    @property
    def replica(self) -> int:
        """Of which model copy it is a part, in its world."""
        assert self.world is not None
        member = self.world.member(self.incarnation)
        assert member is not None
        return member.seat.replica

    def planned(self, work: Work, policy: WorkloadPolicy) -> Share:
        """Its share of work that nobody has begun: a pure function of the world and of what was said with it."""
        plan, replica = self._plan(work, policy), self.replica
        dropped = frozenset(plan.dropped)
        if replica in self.leaving:
            return Share(dropped=dropped)
        return Share(plan.computed_by(replica), plan.shadows.get(replica), dropped)

    def shares(self, work: Work, policy: WorkloadPolicy) -> dict[int, tuple[int, ...]]:
        """By replica, what it contributes to such work; of a shadow, and of one that leaves, nothing."""
        assert self.world is not None
        plan = self._plan(work, policy)
        contributed = {replica: plan.indices.get(replica, ()) for replica in self.world.replicas}
        return {replica: tuple(sorted(set(held) - self.poison)) for replica, held in contributed.items()}

    def _plan(self, work: Work, policy: WorkloadPolicy) -> Assignment:
        assert self.world is not None
        staying = [replica for replica in self.world.replicas if replica not in self.leaving]
        return suited(policy, work.kind).given(self.speeds).plan(staying, work.microbatches)

    def take_up(self, position: Position, work: Work, share: Share) -> "Transaction":
        """The user's loop has come to ``position``; ``share`` is this rank's if nobody was there before.

        Raises:
            LoopError: a peer does something else there.
        """
        if position != self.position:
            raise ProtocolError(f"{work} at step {position} begins while at step {self.position}")
        if self.lacks:
            raise ProtocolError(f"{work} at step {position} begins without the state before it")
        if self.work is not None and self.work != work:
            raise LoopError(
                f"before or in step {position.step} this rank does {work}, another one {self.work}: every rank must "
                "call run.evaluate alike"
            )
        return self if self.work is not None else changed(self, work=work, share=share)

    def obtain(self) -> "Transaction":
        """The state before ``position`` is there."""
        return changed(self, source=None, restore=None)

    def fold(self, position: Position, index: int, beginning: int | None = None) -> "Transaction":
        """The gradient of ``index`` is in the accumulators.

        Args:
            beginning: in which it was computed; if this rank has begun anew meanwhile, nothing changes.
        """
        if beginning not in (None, self.beginning):
            return self
        if position != self.position:
            raise ProtocolError(f"microbatch {index} of step {position} is folded while at step {self.position}")
        if self.work is None or index not in self.indices or index in self.done:
            raise ProtocolError(f"microbatch {index} of step {position} is not owed")
        return changed(self, done=self.done | {index})

    def enter(self, generation: Generation) -> "Transaction":
        """About to enter the vote of this position: all of its buckets hold the full sum."""
        if not self.current(generation):
            return self
        if self.work is None:
            raise ProtocolError(f"the vote of step {self.position} is entered before this rank has come to it")
        if self.due:
            raise ProtocolError(f"the vote of step {self.position} is entered while {self.due} are owed")
        return changed(self, entered=generation)

    def decide(self, generation: Generation, following: Position) -> "Transaction":
        """The vote was seen whole: go to the ``following`` position."""
        if not self.current(generation) or self.entered != generation:
            raise ProtocolError(f"step {self.position} cannot be decided in generation {generation}")
        return self._at(following)

    def promise(self, generation: Generation) -> "Transaction":
        """Be told of no generation older than this one, and decide nothing in one; an older promise changes nothing."""
        if self.promised is not None and generation < self.promised:
            return self
        older = self.generation is not None and self.generation < generation
        return changed(self, promised=generation, abandoned=self.abandoned or older)

    def abandon(self, generation: Generation) -> "Transaction":
        """Promise to decide nothing in ``generation`` or an older one."""
        if self.generation is None or self.generation > generation:
            return self
        return changed(self, abandoned=True)

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
            self.repeats,
            self.promised,
            self.lacks,
        )

    def serving(self) -> Serving | None:
        """Where it stands, for a controller that does not know; None if it was never in a world."""
        if self.world is None:
            return None
        place = (self.position, self.work)
        return Serving(self.incarnation, self.world, self.abandoned, *place, self.poisonous, self.anew)

    def open(self, message: Open) -> "Transaction":
        """A new generation. Stale ones change nothing; a position ahead of ours was decided by a peer."""
        world = message.world
        if self.promised is not None and world.generation < self.promised:
            return self
        if self.generation is not None and world.generation <= self.generation:
            return self
        if world.member(self.incarnation) is None:
            raise ProtocolError(f"generation {world.generation} was opened to {self.incarnation}, not a member")
        leaving = {member.seat.replica for name in message.leaving if (member := world.member(name)) is not None}
        if len(leaving) == len(world.replicas):
            raise ProtocolError(f"generation {world.generation} was opened to ranks that all leave")
        share = _told(message, self.incarnation)
        return changed(
            self._brought(message, share),
            world=world,
            abandoned=False,
            entered=None,
            work=message.work,
            share=share,
            poisonous=message.poison,
            speeds=message.speeds,
            leaving=frozenset(leaving),
            anew=frozenset(message.sources),
        )

    def _brought(self, message: Open, share: Share) -> "Transaction":
        """At the position of the message, with what is kept of what was done."""
        position, afresh = message.position, self.incarnation in message.sources
        source = message.sources[self.incarnation] if afresh else None
        other = None if source == self.incarnation else source
        if message.restore is not None:
            return changed(self._at(position), source=other, restore=message.restore)
        if other is not None:
            return changed(self._at(position), source=other)
        if afresh and message.work is None and position == Position(self.position.step):
            # Everybody begins this step once more; nothing but evaluations was decided since it was begun.
            return self._at(position)
        if position < self.position:
            raise ProtocolError(f"step {self.position} follows a decided one, {position} was opened")
        if position > self.position:
            if self.entered is None:
                raise ProtocolError(f"step {self.position} is called decided, but its vote was never entered here")
            return self._at(position)
        if self.work is not None and self.work != message.work:
            raise ProtocolError(
                f"{self.work} at step {position} was reported, but the controller forgot it"
                + (f" for {message.work}" if message.work else "")
            )
        if afresh:
            # A rank of its replica is lost, and with it a part of what the replica has done.
            return self._at(position)
        # What a shadow has under way need not be wanted any more either.
        kept = set(self.done if self.repeats is None else self.indices)
        if kept <= set(share.indices):
            return self
        if self.repeats is None:
            lost = sorted(kept - set(share.indices))
            raise ProtocolError(f"finished microbatches {lost} of step {position} were given to others")
        return self._at(position)

    def _at(self, position: Position) -> "Transaction":
        """At the beginning of another position."""
        return changed(
            self,
            position=position,
            work=None,
            share=Share(),
            done=frozenset(),
            beginning=self.beginning + 1,
            entered=None,
            source=None,
            restore=None,
        )


def _told(message: Open, incarnation: str) -> Share:
    """The share that a message gives to one of its members."""
    original = message.shadows.get(incarnation)
    member = None if original is None else message.world.member(original)
    if original is not None and (member is None or original in message.shadows):
        raise ProtocolError(f"{incarnation} is to repeat {original}, which contributes nothing")
    repeats = None if member is None else member.seat.replica
    return Share(message.indices.get(incarnation, ()), repeats, message.dropped)
