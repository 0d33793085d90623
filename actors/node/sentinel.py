"""The sentinel: one small process a node that says that its node lives, and ends whoever must not outlive it.

It loads no torch, so it starts quickly and nothing that training does can hold it up.
"""

import os
import select
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from ...conf.elastic import Timeouts
from ..directory import Directory
from ..link import Link
from ..messages import Fenced, Ping, Release
from .guarded import Guarded
from .observer import Observer
from .sentinel_messages import FromSentinel, Guard, SentinelBeat, SentinelHello, Strike, ToSentinel


@dataclass(frozen=True)
class SentinelSpec:
    """Everything that a sentinel must know to start.

    Attributes:
        directory: where its controller is found.
        token: the run's secret.
    """

    incarnation: str
    node: str
    token: str
    directory: Directory
    timeouts: Timeouts


class Sentinel:
    """One life of a sentinel in this process.

    Args:
        spec: of it.
        raylet: process id of what its ranks must not outlive.
        leave: ends this process, with an exit code.
    """

    def __init__(self, spec: SentinelSpec, raylet: int, leave: Callable[[int], None] = os._exit) -> None:
        self._spec = spec
        self._raylet = raylet
        self._leave = leave
        self._guarded = Guarded()
        self._observer = Observer()
        self._link = Link(spec.directory, spec.token, self._introduction, self._obey, spec.timeouts.heartbeat)

    def run(self) -> None:
        """Watch until the raylet ends; whoever it started and guards ends then too."""
        timeouts = self._spec.timeouts
        try:
            raylet = os.pidfd_open(self._raylet)
        except ProcessLookupError:
            self._leave(1)
            return
        self._link.open(timeouts.start)
        ending = select.poll()
        ending.register(raylet, select.POLLIN)
        # Else ended by Fenced or Release, or by the orphan time-out.
        while not ending.poll(1000 * timeouts.heartbeat_interval):
            if time.monotonic() - self._link.last_heard > timeouts.orphan:
                self._leave(1)
                return
        self._guarded.kill_all()
        self._leave(1)

    def close(self) -> None:
        """End the connection."""
        self._link.close()

    def _introduction(self) -> list[FromSentinel]:
        return [SentinelHello(self._spec.incarnation, self._spec.node, os.getpid())]

    def _beat(self) -> SentinelBeat:
        states = self._guarded.states()
        return SentinelBeat(self._spec.incarnation, self._spec.node, states, self._observer.records(states))

    def _obey(self, message: ToSentinel | Ping | Fenced | Release) -> None:
        match message:
            case Ping():
                self._link.send(self._beat())
            case Guard(ranks):
                self._guarded.only(ranks)
                self._observer.only(ranks)
            case Strike(rank):
                self._guarded.kill(rank)
            case Fenced(reason):
                print(f"everstep: sentinel {self._spec.incarnation} ends: {reason}", file=sys.stderr, flush=True)
                self._leave(1)
            case Release():
                self._leave(0)
