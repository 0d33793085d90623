"""Feeds the machine with events and carries its actions out. It decides nothing itself."""

import asyncio
import time
from collections.abc import Mapping

from .cluster import Cluster
from .journal import Journal
from .machine.events import (
    Action,
    EndRun,
    Event,
    KillRank,
    Record,
    Send,
    Started,
    StartRank,
    StopRequested,
    StoreOpened,
    Tick,
)
from .machine.look import look
from .machine.state import Settings, State
from .machine.transition import advance
from .view import RunState

CLOSE_TIMEOUT_S = 10.0


class Controller:
    """One controller life.

    Args:
        settings: of the run.
        cluster: where ranks live.
        journal: what happened.
    """

    def __init__(self, settings: Settings, cluster: Cluster, journal: Journal) -> None:
        self._state = State(settings)
        self._cluster = cluster
        self._journal = journal
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._over = False
        self.leftovers: list[str] = []

    def state(self) -> RunState:
        """One look at the run, at any moment."""
        return look(self._state, time.monotonic())

    def events(self) -> list[Mapping[str, object]]:
        """Everything in the journal so far."""
        return list(self._journal.entries)

    def stop(self, reason: str) -> None:
        """End the run from outside."""
        self._events.put_nowait(StopRequested(reason))

    async def run(self) -> RunState:
        """From the first rank's start to the last one's end."""
        host, port = await self._cluster.open(self._events.put_nowait)
        self._events.put_nowait(StoreOpened(host, port))
        self._handle(Started())
        ticking = asyncio.create_task(self._tick())
        try:
            while not self._over:
                self._handle(await self._events.get())
        finally:
            ticking.cancel()
            self.leftovers = await self._cluster.close(CLOSE_TIMEOUT_S)
            self._journal.close()
        return self.state()

    async def _tick(self) -> None:
        interval = self._state.settings.timeouts.heartbeat_interval
        last = time.monotonic()
        while True:
            await asyncio.sleep(interval)
            now = time.monotonic()
            # Our own pause must not look like everybody else's silence.
            late = now - last - interval
            self._events.put_nowait(Tick(late if late > interval else 0.0))
            last = now

    def _handle(self, event: Event) -> None:
        self._state, actions = advance(self._state, event, time.monotonic())
        for action in actions:
            self._carry_out(action)

    def _carry_out(self, action: Action) -> None:
        match action:
            case Send(incarnation, message):
                self._cluster.send(incarnation, message)
            case Record():
                self._journal.write(action)
            case StartRank(incarnation, seat):
                self._cluster.start(incarnation, seat)
            case KillRank(incarnation, _):
                self._cluster.kill(incarnation)
            case EndRun():
                self._over = True
