"""The rank's transaction, shared by two threads: training moves it on, control changes it when the world changes.

Reports are made here, under the lock that also guards decisions: once a report is out, nothing of the abandoned
generation can be decided any more, whatever the training thread is about to see.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from ...conf.errors import CommunicatorError, EverstepError
from ...policies.workload import WorkloadPolicy
from ...policies.world import Generation, Position, Work, WorkKind
from ..messages import FromRank, Hold, Open, Prepare, Report, Serving
from .transaction import Share, Transaction, Verdict

if TYPE_CHECKING:
    # Groups load torch; without them a ledger is as pure as its transaction.
    from .groups import Groups


class RecoveryTimeout(EverstepError):
    """No new generation was opened in time; the controller is gone or stuck."""


class Released(BaseException):
    """Nothing more is wanted of this rank: it leaves, out of whatever it is in. No error, so nobody should catch it."""


class Rewound(BaseException):
    """Training goes on from another state: the training function begins anew. No error, so nobody should catch it."""


class Ledger:
    """A ``Transaction`` under a lock.

    Args:
        incarnation: of this rank.
        send: to the controller; must not block on the training thread.
        groups: of this rank.
        workload: gives microbatches to replicas.
        before_report: called before a report goes out, for planned faults.
    """

    def __init__(
        self,
        incarnation: str,
        send: Callable[[FromRank], None],
        groups: "Groups",
        workload: WorkloadPolicy,
        before_report: Callable[[], None] = lambda: None,
    ) -> None:
        self._transaction = Transaction(incarnation)
        self._changed = threading.Condition()
        self._send = send
        self._groups = groups
        self._workload = workload
        self._before_report = before_report
        # Until when, on the monotonic clock, nobody expects a new generation, and why.
        self._held = (0.0, "")
        self._taken_up: Position | None = None
        self._released = False

    @property
    def transaction(self) -> Transaction:
        """As it is now; an immutable value."""
        return self._transaction

    # --- control thread

    def prepare(self, message: Prepare) -> None:
        """Abandon what is older than the message's generation, and report; stale messages change nothing."""
        with self._changed:
            before = self._transaction
            promised = before.promise(message.generation)
            generation = before.generation
            if promised is before or generation is None or generation >= message.generation:
                self._transaction = promised
                return
            self._before_report()
            self._transaction = promised
            self._send(promised.report())
            self._changed.notify_all()
        # A collective that waits for the dead ends now, and takes the peers' with it.
        self._groups.interrupt(generation)

    def open(self, message: Open) -> bool:
        """A new generation begins; stale messages change nothing, and are answered with False."""
        with self._changed:
            before = self._transaction
            self._transaction = before.open(message)
            if self._transaction is before:
                return False
            self._held = (0.0, "")
            self._groups.open(message)
            self._changed.notify_all()
            return True

    def hold(self, message: Hold) -> None:
        """A new generation may be long in coming: wait for it until ``seconds`` from now, if not longer anyway."""
        with self._changed:
            self._held = (time.monotonic() + message.seconds, message.reason)
            self._changed.notify_all()

    def release(self) -> None:
        """Nothing more is wanted of this rank: the training thread leaves as soon as it comes here."""
        with self._changed:
            self._released = True
            self._changed.notify_all()

    def serving(self) -> Serving | None:
        """For a controller that has taken over: where this rank stands; None if it was never in a world."""
        return self._transaction.serving()

    def again(self) -> Report | None:
        """For a controller that has taken over: the report, as it is now, if one is due."""
        with self._changed:
            return self._transaction.report() if self._transaction.abandoned else None

    # --- training thread

    def take_up(self, position: Position, work: Work, timeout: float) -> Transaction:
        """Come to a position: find or make this rank's share of its work. Waits while a recovery is under way.

        Raises:
            LoopError: a peer does something else there.
            Rewound: everybody goes back to another state.
            RecoveryTimeout: the recovery did not end in ``timeout`` seconds.
        """
        with self._changed:
            # After a report nothing may be begun that the report did not tell of.
            transaction = self._await_open(timeout)
            if transaction.lacks:
                # Everybody was told to go back since the training thread last looked.
                raise Rewound
            self._transaction = transaction.take_up(position, work, self._share(transaction, work))
            self._taken_up = position
            self._changed.notify_all()
            return self._transaction

    def obtain(self, beginning: int) -> bool:
        """The state before the position is there; False if another one is called for, or was reported as lacking."""
        with self._changed:
            if self._transaction.beginning != beginning or self._transaction.abandoned:
                return False
            self._transaction = self._transaction.obtain()
            return True

    def planned(self, work: Work) -> tuple[int, ...]:
        """This rank's share of work that nobody has begun, if the world stays as it is."""
        return self._share(self._transaction, work).indices

    def shares(self, work: Work) -> tuple[Transaction, dict[int, tuple[int, ...]]]:
        """By replica, what it contributes to the work just begun; none if this rank's share was told, not planned."""
        transaction = self._transaction
        planned = self._share(transaction, work) == transaction.share
        return transaction, transaction.shares(work, self._workload) if planned else {}

    def fold(self, position: Position, index: int, beginning: int | None = None) -> bool:
        """A microbatch is computed; False if it is void, since this rank has begun anew meanwhile."""
        with self._changed:
            before = self._transaction
            self._transaction = before.fold(position, index, beginning)
            return self._transaction is not before

    def enter(self, position: Position, generation: Generation) -> bool:
        """About to enter the vote; False if the generation was abandoned meanwhile."""
        with self._changed:
            transaction = self._transaction
            # A new generation may have brought more microbatches, or a peer's decision.
            if transaction.position != position or not transaction.current(generation) or transaction.due:
                return False
            self._transaction = transaction.enter(generation)
            return True

    def decide(self, position: Position, generation: Generation, verdict: Verdict) -> bool:
        """The vote was seen whole; False if the generation was abandoned before."""
        with self._changed:
            transaction = self._transaction
            if transaction.position != position or not transaction.current(generation):
                return False
            assert transaction.work is not None
            self._transaction = transaction.decide(generation, after(position, verdict, transaction.work.kind))
            return True

    def abandon(self, generation: Generation, error: CommunicatorError) -> None:
        """A collective failed: leave the group so that all peers fail too, and report once."""
        self._groups.interrupt(generation)
        place = self._groups.accused(generation, error)
        with self._changed:
            transaction = self._transaction
            if not transaction.current(generation):
                return
            world = transaction.world
            accused = world.members[place].incarnation if world is not None and place is not None else None
            self._before_report()
            self._transaction = transaction.abandon(generation)
            self._send(self._transaction.report(str(error), accused))
            self._changed.notify_all()

    def await_open(self, timeout: float) -> Transaction:
        """Block until the newest generation is one in which something can be decided.

        Raises:
            RecoveryTimeout: nobody opened one in ``timeout`` seconds.
        """
        with self._changed:
            return self._await_open(timeout)

    def await_taken_up(self, position: Position, generation: Generation, timeout: float) -> bool:
        """Block until the training thread has come to ``position``; False if that is out of reach or takes longer."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._taken_up == position or not self._transaction.current(generation), timeout
            )
            return self._taken_up == position == self._transaction.position

    def await_end(self, timeout: float) -> None:
        """Block until this process is ended from outside; returns if another generation is opened instead.

        Raises:
            RecoveryTimeout: neither happened in ``timeout`` seconds.
        """
        with self._changed:
            held = self._transaction.generation
            if not self._changed.wait_for(lambda: self._transaction.generation != held, timeout):
                raise RecoveryTimeout(f"a peer's failure should have ended this rank within {timeout:g} s")

    def await_other(self, generation: Generation, timeout: float) -> None:
        """Block until ``generation`` is over, at most ``timeout`` seconds.

        Raises:
            RecoveryTimeout: it is not.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._released or not self._transaction.current(generation), timeout):
                raise RecoveryTimeout(f"generation {generation} cannot begin, and no other one came in {timeout:g} s")

    def await_release(self, generation: Generation, timeout: float) -> bool:
        """Block until nothing more is wanted of this rank, at most ``timeout`` seconds.

        Returns:
            False as soon as a later generation than ``generation`` was opened.

        Raises:
            Rewound: something is wanted: everybody goes back to a saved state.
        """

        def changed() -> bool:
            return self._transaction.lacks or self._transaction.generation != generation

        with self._changed:
            self._changed.wait_for(lambda: self._released or changed(), timeout)
            if self._released or not changed():
                return True
            if self._transaction.lacks:
                raise Rewound
            return False

    def stands(self) -> Generation:
        """The newest generation that was opened to this rank, in which the state that training holds counts.

        Raises:
            Rewound: it does not count any more: everybody goes back to a saved state.
        """
        with self._changed:
            generation = self._transaction.generation
            assert generation is not None, "it is in the training loop"
            if self._transaction.lacks:
                raise Rewound
            return generation

    def _await_open(self, timeout: float) -> Transaction:
        started = time.monotonic()
        while self._released or self._transaction.generation is None or self._transaction.abandoned:
            if self._released:
                raise Released
            held, reason = self._held
            # A time-out of 0 is that of somebody who only looks.
            left = max(started + timeout, held if timeout else 0.0) - time.monotonic()
            if left <= 0:
                waited = time.monotonic() - started
                raise RecoveryTimeout(
                    f"no generation was opened for {waited:.3g} s at step {self._transaction.position}"
                    + (f", though the controller said: {reason}" if reason else "")
                )
            # Ended by a new generation; a hold makes it longer.
            self._changed.wait(left)
        return self._transaction

    def _share(self, transaction: Transaction, work: Work) -> Share:
        """What this rank does of work that nobody has begun."""
        return transaction.planned(work, self._workload)


def after(position: Position, verdict: Verdict, kind: WorkKind) -> Position:
    """The position that follows a decided one."""
    if verdict is Verdict.VOID:
        return replace(position, attempt=position.attempt + 1)
    if kind is WorkKind.EVALUATION:
        return Position(position.step, position.unit + 1)
    return Position(position.step + 1)
