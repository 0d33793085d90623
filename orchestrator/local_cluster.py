"""Ranks as processes of this machine, from a forkserver that has torch loaded. No Ray: a scenario runs in seconds."""

import asyncio
import contextlib
import multiprocessing
import os
import signal
from dataclasses import replace
from multiprocessing.context import ForkServerProcess
from typing import Any

from ..actors.messages import ToRank
from ..policies.world import Seat
from .cluster import Program, Sink
from .listener import Listener
from .store import open_store

_HOST = "127.0.0.1"
# What a rank would import in its first second; torch's optimizers load the compiler.
_PRELOAD = ["everstep.orchestrator.local_rank", "torch._dynamo", "torch._inductor.config", "torch.utils.data"]


def _context() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOAD)
    return context


class LocalCluster:
    """Processes on this machine.

    Args:
        program: what they run.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._listener = Listener(_HOST, program.template.token)
        self._address: tuple[str, int] = ("", 0)
        self._store: Any = None
        self._processes: dict[str, ForkServerProcess] = {}
        self._endings: set[asyncio.Future[None]] = set()

    async def open(self, sink: Sink) -> tuple[str, int]:
        self._address = await self._listener.open(sink)
        self._store, port = open_store(_HOST)
        return _HOST, port

    def start(
        self, incarnation: str, seat: Seat | None, avoid: frozenset[str] = frozenset(), node: str | None = None
    ) -> None:
        from .local_rank import main

        spec = replace(
            self._program.template, incarnation=incarnation, seat=seat, controller=self._address, node="localhost"
        )
        process = _context().Process(target=main, args=(spec, self._program.train), name=f"everstep-{incarnation}")
        process.start()
        self._processes[incarnation] = process
        loop = asyncio.get_running_loop()
        loop.add_reader(process.sentinel, self._gone, incarnation)

    def send(self, incarnation: str, message: ToRank) -> None:
        self._listener.send(incarnation, message)

    def kill(self, incarnation: str) -> None:
        process = self._processes.get(incarnation)
        if process is not None and process.is_alive() and process.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)

    async def close(self, timeout: float) -> list[str]:
        deadline = asyncio.get_running_loop().time() + timeout
        for incarnation in self._processes.keys() - self._listener.known:
            # It is still starting, and nobody has told it that the run is over.
            self.kill(incarnation)
        while any(process.is_alive() for process in self._processes.values()):
            if asyncio.get_running_loop().time() > deadline:
                for incarnation in self._processes:
                    self.kill(incarnation)
                break
            await asyncio.sleep(0.01)
        await self._listener.close()
        left = []
        for incarnation, process in self._processes.items():
            process.join(1.0)
            if process.is_alive():
                left.append(incarnation)
        self._store = None
        return left

    def _gone(self, incarnation: str) -> None:
        process = self._processes[incarnation]
        asyncio.get_running_loop().remove_reader(process.sentinel)
        process.join()
        code = process.exitcode
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        ending = self._listener.report_end(incarnation, f"its process ended with {how}")
        self._endings.add(asyncio.ensure_future(ending))
