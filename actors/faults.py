"""Planned faults, carried out: real signals at named points, each announced before it strikes."""

import os
import signal
from collections.abc import Callable, Sequence

from ..conf.chaos import Fault, FaultKind, FaultPoint, FaultTarget
from ..policies.world import Seat


class PlannedError(RuntimeError):
    """The exception that a planned fault of kind ``exception`` raises."""


class Chaos:
    """The faults planned for one rank.

    Args:
        faults: of the whole run.
        seat: that it was started with; None for a spare.
        announce: called with the fault and the evidence just before it strikes.
        number: of the rank, in the order in which ranks are started; spares, and vaults among each other, are told
            apart by it.
        target: what this process is, if it is no rank.
    """

    def __init__(
        self,
        faults: Sequence[Fault],
        seat: Seat | None,
        announce: Callable[[str, str], None],
        number: int = 0,
        target: FaultTarget | None = None,
    ) -> None:
        target = target or (FaultTarget.RANK if seat else FaultTarget.SPARE)
        place = (seat.replica, seat.coordinate) if seat else (number, 0)
        self._planned = [
            fault for fault in faults if fault.target is target and (fault.replica, fault.coordinate) == place
        ]
        self._announce = announce
        self._announced: set[Fault] = set()
        self.step = -1
        self.ordinal = -1
        # In what is computed to be compared nothing strikes but a fault that recurs.
        self.aside = False

    def __bool__(self) -> bool:
        return bool(self._planned)

    def planned(self, point: FaultPoint) -> bool:
        """Whether a fault would strike here and now."""
        return self._due(point) is not None

    def at(self, point: FaultPoint, evidence: str = "", step: int | None = None) -> None:
        """Strike if a fault is planned here and now.

        Args:
            step: which this is about, if that is not the one under way.

        Raises:
            PlannedError: for the kind ``exception``.
        """
        fault = self._due(point, step)
        if fault is None:
            return
        self._planned.remove(fault)
        self._announce(str(fault), evidence or f"step {self.step}, its microbatch {self.ordinal}, pid {os.getpid()}")
        if fault.kind is FaultKind.EXCEPTION:
            raise PlannedError(f"planned: {fault}")
        os.kill(os.getpid(), signal.SIGKILL if fault.kind is FaultKind.SIGKILL else signal.SIGSTOP)

    def flips(self, point: FaultPoint, kind: FaultKind, what: str) -> list[Fault]:
        """Planned flips of a number that strike here and now; each is announced when it first does.

        Args:
            what: is about to be changed.
        """
        found = []
        for fault in [fault for fault in self._planned if fault.kind is kind and fault.point == point]:
            again = fault.recurring and self.step >= fault.step
            if not again and not self._here(fault, self.step):
                continue
            if not fault.recurring:
                self._planned.remove(fault)
            if fault not in self._announced:
                self._announced.add(fault)
                self._announce(str(fault), f"{what} at step {self.step}, pid {os.getpid()}")
            found.append(fault)
        return found

    def _due(self, point: FaultPoint, step: int | None = None) -> Fault | None:
        now = self.step if step is None else step
        for fault in self._planned:
            if fault.point == point and not fault.numeric and self._here(fault, now):
                return fault
        return None

    def _here(self, fault: Fault, step: int) -> bool:
        return not self.aside and fault.step == step and fault.microbatch in (None, self.ordinal)
