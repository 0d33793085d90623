"""Planned faults, carried out: real signals at named points, each announced before it strikes."""

import os
import signal
from collections.abc import Callable, Sequence

from ..conf.chaos import Fault, FaultKind, FaultPoint
from ..policies.world import Seat


class PlannedError(RuntimeError):
    """The exception that a planned fault of kind ``exception`` raises."""


class Chaos:
    """The faults planned for one seat.

    Args:
        faults: of the whole run.
        seat: whose.
        announce: called with the fault and the evidence just before it strikes.
    """

    def __init__(self, faults: Sequence[Fault], seat: Seat, announce: Callable[[str, str], None]) -> None:
        self._planned = [
            fault for fault in faults if (fault.replica, fault.coordinate) == (seat.replica, seat.coordinate)
        ]
        self._announce = announce
        self.step = -1
        self.ordinal = -1

    def __bool__(self) -> bool:
        return bool(self._planned)

    def planned(self, point: FaultPoint) -> bool:
        """Whether a fault would strike here and now."""
        return self._due(point) is not None

    def at(self, point: FaultPoint, evidence: str = "") -> None:
        """Strike if a fault is planned here and now.

        Raises:
            PlannedError: for the kind ``exception``.
        """
        fault = self._due(point)
        if fault is None:
            return
        self._planned.remove(fault)
        self._announce(str(fault), evidence or f"step {self.step}, its microbatch {self.ordinal}, pid {os.getpid()}")
        if fault.kind is FaultKind.EXCEPTION:
            raise PlannedError(f"planned: {fault}")
        os.kill(os.getpid(), signal.SIGKILL if fault.kind is FaultKind.SIGKILL else signal.SIGSTOP)

    def _due(self, point: FaultPoint) -> Fault | None:
        for fault in self._planned:
            if fault.point == point and fault.step == self.step and fault.microbatch in (None, self.ordinal):
                return fault
        return None
