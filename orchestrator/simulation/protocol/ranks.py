"""One simulated rank: the real ledger, a control thread that hears messages, and a training thread that is resumed."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from ....actors.messages import (
    Fenced,
    Finished,
    FromRank,
    Heartbeat,
    Hello,
    Hold,
    Joined,
    Open,
    Prepare,
    Raised,
    Ready,
    Release,
    Report,
    Resumed,
    ToRank,
)
from ....actors.rank.ledger import Ledger
from ....conf.errors import CommunicatorError
from ....policies.world import Generation, Seat
from .network import Connection
from .training import Moves, Training

if TYPE_CHECKING:
    from .simulation import Simulation

# A controller that takes over must hear these as well.
_LASTING = (Ready, Joined, Resumed, Raised, Finished)


class Rank:
    """One life of a rank.

    Attributes:
        seat: that it was started for.
        occupies: whether it takes a place on its node, because it lives or is about to.
        frozen: stopped by a signal: no thread of it runs, and its connections stay open.
        hit: whether a fault has hit it, so that it may be lost.
        raising: whether its next microbatch raises.
        promised: newest generation in which it decides nothing any more.
        lacked: whether it had no state to go on from when it reported last.
    """

    def __init__(self, simulation: "Simulation", name: str, node: str, seat: Seat | None) -> None:
        self._simulation = simulation
        self.name = name
        self.node = node
        self.seat = seat
        self.occupies = True
        self.alive = False
        self.frozen = False
        self.hit = False
        self.raising = False
        self.promised = Generation(0, 0)
        self.lacked = False
        self.connection: Connection | None = None
        self.told: Mapping[int, frozenset[int]] = {}
        self.training = Training(simulation, self)
        self.ledger = Ledger(
            name, self.say, _Groups(simulation, self), simulation.scenario.workload_policy(),  # type: ignore[arg-type]
            before_report=lambda: simulation.faults.strike("report", self),
        )  # fmt: skip
        self._heard = 0.0
        self._held_until = 0.0
        self._term = 0
        self._said: dict[type[FromRank], FromRank] = {}
        self._life = 0
        self._deferred: list[ToRank] = []
        self._thread: Moves[None] | None = None
        self._waiting: Callable[[], bool] | None = None

    # --- the process

    def start(self) -> None:
        simulation = self._simulation
        if self.node not in simulation.cluster.nodes:
            # Its machine was lost before it was up.
            self.occupies = False
            simulation.cluster.ended(self, unseen=True)
            return
        self.alive = True
        self._heard = simulation.clock.now
        simulation.faults.strike("start", self)
        self._run(self.training.run())
        self._look_up()
        self._beat()

    def vanish(self, unseen: bool = False) -> None:
        """The process is gone; what it has sent still arrives, then the end of its connection.

        Args:
            unseen: its machine is gone with it, and nothing arrives any more.
        """
        if not self.alive:
            return
        simulation = self._simulation
        simulation.note("{} is gone", self.name)
        self.alive = self.occupies = False
        simulation.fabric.leave_all(self.name, unseen)
        if self.connection is not None:
            if unseen:
                self.connection.vanish()
            else:
                self.connection.close()
        simulation.cluster.ended(self, unseen)

    def freeze(self, seconds: float) -> None:
        """Stop every thread; it may be woken before, just as, or long after it is given up."""
        self.frozen = True
        self._simulation.clock.after(seconds, self._thaw)

    def _thaw(self) -> None:
        if not self.alive:
            return
        simulation = self._simulation
        simulation.note("{} wakes", self.name)
        simulation.saw("woke")
        self.frozen = False
        # Which of its threads runs first is chance: what it was told may be read late.
        simulation.clock.after(simulation.chance.short(), self._catch_up)
        simulation.fabric.thawed(self.name)
        simulation.stir(self.name)

    # --- the control thread

    @property
    def begins_anew(self) -> bool:
        """Whether its training thread has still to notice that nothing of this position is done."""
        return self.training.beginning != self.ledger.transaction.beginning

    @property
    def connected(self) -> bool:
        return self.connection is not None and self.connection.open

    def say(self, message: FromRank) -> None:
        if isinstance(message, Report):
            self.promised = max(self.promised, message.abandons)
            self.lacked = message.lacks
            self._simulation.checks.report(self, message)
        if isinstance(message, _LASTING):
            self._said[type(message)] = message
        if self.alive and self.connection is not None:
            self.connection.say_up(message)

    def built(self, generation: Generation) -> None:
        """The group of this generation is there."""
        self._simulation.faults.strike("built", self)
        self.say(Joined(self.name, generation, 0.0))

    def _look_up(self) -> None:
        """Connect to whoever holds the newest term, once there is somebody, and say what must be known there."""
        if not self.alive:
            return
        simulation = self._simulation
        newest = simulation.lives.newest
        there = newest.alive and newest.term >= self._term
        # What the last one has sent is read to its end first, as one thread does both.
        unread = self.frozen or self._deferred
        if unread or not there or simulation.network.heals(self.name, newest.name) > simulation.clock.now:
            # Training goes on without a controller, but not for ever.
            simulation.clock.after(0.02 + simulation.chance.share(), self._look_up)
            return
        self._term = newest.term
        self.connection = newest.accept(self, partial(self._receive, newest.term), self._look_up)
        for message in self._introduction():
            self.connection.say_up(message)

    def _introduction(self) -> Iterator[FromRank]:
        """What a controller must know, whatever an earlier one was told."""
        yield Hello(self.name, 1, self.node, seat=self.seat)
        told = (self.ledger.serving(), self._said.get(Ready), self.ledger.again(), self._said.get(Joined))
        yield from (message for message in told if message is not None)
        yield from (self._said[kind] for kind in (Resumed, Raised, Finished) if kind in self._said)

    def _leave_stopped_controller(self) -> None:
        """A controller that is stopped keeps its connections; only its silence tells."""
        simulation = self._simulation
        quiet = simulation.clock.now - self._heard > simulation.scenario.timeouts.heartbeat
        if quiet and self.connected and simulation.lives.newest.term > self._term:
            assert self.connection is not None
            self.connection.close()
            self.connection = None
            self._look_up()

    def _receive(self, term: int, message: ToRank) -> None:
        # Nobody reads any more what comes over a connection that this end has left, or of an earlier controller.
        if not self.alive or self.connection is None or term != self._term:
            return
        if self._deferred or self.frozen:
            self._deferred.append(message)
        else:
            self._hear(message)

    def _catch_up(self) -> None:
        while self._deferred and self.alive and not self.frozen:
            self._hear(self._deferred.pop(0))

    def _hear(self, message: ToRank) -> None:
        self._heard = self._simulation.clock.now
        match message:
            case Prepare():
                self.ledger.prepare(message)
            case Open():
                self._open(message)
            case Hold(seconds):
                self._held_until = self._simulation.clock.now + seconds
            case Release():
                if not self._simulation.controller.over and Raised not in self._said:
                    self._simulation.checks.released(self)
                self.vanish()
            case Fenced():
                self.vanish()
        self._simulation.stir(self.name)

    def _open(self, message: Open) -> None:
        simulation = self._simulation
        simulation.faults.strike("open", self)
        if not self.alive:
            return
        before = self.ledger.transaction
        self.ledger.open(message)
        after = self.ledger.transaction
        if after is not before:
            self.told = message.poison
            simulation.checks.opened(self, message, before, after)
            taking = after.lacks
            if taking or (message.work is None and self.name in message.sources):
                behind = before.position < after.position or self.training.applying
                if behind and not taking:
                    # First it applies what was decided.
                    self.training.recalled = True
                else:
                    self.recall()

    def _beat(self) -> None:
        if not self.alive:
            return
        simulation, timeouts = self._simulation, self._simulation.scenario.timeouts
        if not self.frozen:
            if self._tired():
                return
            if simulation.clock.now - self._heard > timeouts.orphan:
                simulation.saw("orphaned")
                # There was no controller for too long.
                self.hit = True
                self.vanish()
                return
            self._leave_stopped_controller()
            transaction, training = self.ledger.transaction, self.training
            said = (transaction.position, training.stage, training.computed)
            self.say(
                Heartbeat(
                    self.name, *said, work=transaction.work, busy=training.busy, generation=transaction.generation
                )
            )
        simulation.clock.after(timeouts.heartbeat_interval, self._beat)

    def _tired(self) -> bool:
        """Whether it waited for a generation longer than it was told to; then it is gone."""
        simulation, since = self._simulation, self.training.awaits
        if since is None:
            return False
        timeouts = simulation.scenario.timeouts
        patience = timeouts.start if self.ledger.transaction.world is None else timeouts.recovery
        if simulation.clock.now <= max(since + patience, self._held_until):
            return False
        simulation.saw("recovery timeout")
        position = self.ledger.transaction.position
        self.training.awaits = None
        self.say(Raised(self.name, position, None, (), f"recovery timeout at {self.name}", "no generation", ""))
        return False

    # --- the training thread

    def _run(self, thread: Moves[None]) -> None:
        self._life += 1
        self._thread = thread
        self._waiting = _at_once
        self._simulation.stir(self.name)

    def recall(self) -> None:
        """The training function begins anew, at another place and perhaps with another state."""
        self._run(self.training.again())

    def resume(self) -> None:
        """Move it on for as long as nothing holds it."""
        while self.alive and not self.frozen and self._waiting is not None and self._waiting():
            self._waiting = None
            assert self._thread is not None
            life = self._life
            wait = next(self._thread, None)
            if life != self._life:
                # It was recalled by what it did.
                continue
            if callable(wait):
                self._waiting = wait
            elif wait is not None:
                self._simulation.clock.after(wait, self._wake, self._life)

    def _wake(self, life: int) -> None:
        if life == self._life:
            self._waiting = _at_once
            self._simulation.stir(self.name)


class _Groups:
    """What the ledger sees of a rank's groups."""

    def __init__(self, simulation: "Simulation", rank: Rank) -> None:
        self._simulation = simulation
        self._rank = rank

    def open(self, message: Open) -> None:
        self._simulation.fabric.arrive(self._rank, message.world)

    def interrupt(self, generation: Generation) -> None:
        self._simulation.fabric.leave(self._rank.name, generation)

    def accused(self, generation: Generation, error: CommunicatorError) -> int | None:
        """Errors point at somebody half of the time; then mostly at the right one."""
        meeting = self._simulation.fabric.meetings.get(generation)
        if meeting is None or not self._simulation.chance.of(0.5):
            return None
        members = enumerate(meeting.world.incarnations)
        return next((place for place, name in members if self._simulation.ranks[name].hit), None)


def _at_once() -> bool:
    return True
