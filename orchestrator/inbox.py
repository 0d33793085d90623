"""What the controller has still to hear, in the order in which it came."""

import asyncio
from collections import deque

from ..actors.messages import Report
from .machine.events import Event, Heard, Reports
from .tenure import Deposed


class Inbox(asyncio.Queue[Event | Deposed]):
    """Events; reports that wait right behind each other come out as one: a large world sends all of its at once."""

    # Of the base class, which lets others say what comes out of it.
    _queue: deque[Event | Deposed]

    def _get(self) -> Event | Deposed:
        reports: list[Heard] = []
        while self._queue and isinstance(first := self._queue[0], Heard) and isinstance(first.message, Report):
            reports.append(first)
            self._queue.popleft()
        if not reports:
            return self._queue.popleft()
        return reports[0] if len(reports) == 1 else Reports(tuple(reports))
