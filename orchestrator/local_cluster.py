"""Ranks as processes of this machine, from a forkserver that has torch loaded. No Ray: a scenario runs in seconds."""

import asyncio
import contextlib
import multiprocessing
import os
import select
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from multiprocessing.context import ForkServerProcess
from typing import Any

import psutil

from ..actors.messages import Hello
from ..actors.node.vault_memory import Heap
from ..actors.node.vault_messages import PREFIX, VaultHello
from ..policies.world import Seat
from .cluster import Program, Sink, vault_spec
from .listener import Listener
from .machine.events import Event, Heard
from .machine.past import Past
from .store import open_store
from .tenure import Tenure
from .vault_fleet import StartVault

_HOST = "127.0.0.1"
# What a rank would import in its first second; torch's optimizers load the compiler.
_PRELOAD = ["everstep.orchestrator.local_rank", "torch._dynamo", "torch._inductor.config", "torch.utils.data"]
# Clocks of the file system and of processes differ by less.
_CLOCKS_S = 1.0


def context() -> Any:
    """Of processes that begin with torch loaded."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOAD)
    return context


class LocalCluster:
    """Processes on this machine.

    Args:
        program: what they run.
        tenure: of the controller; None takes the first term of a directory that nobody else knows. Only ranks that
            others may find outlive the process that has started them.
        nodes: names under which ranks and vaults are dealt out, as if this machine were several.
    """

    def __init__(self, program: Program, tenure: Tenure | None = None, nodes: Sequence[str] = ("localhost",)) -> None:
        self._program = program
        self._private = tenure is None
        self.tenure = tenure or Tenure.private()
        self._nodes = tuple(nodes)
        self._listener = Listener(_HOST, program.template.token)
        self._sink: Sink | None = None
        self._store: Any = None
        self._processes: dict[str, ForkServerProcess] = {}
        self._adopted: dict[str, int] = {}
        self._endings: set[asyncio.Future[None]] = set()
        self._asked = 0

    async def open(self, sink: Sink) -> tuple[str, int]:
        self._sink = sink
        address = await self._listener.open(self._hear)
        self._store, port = open_store(_HOST)
        self.tenure.publish(address)
        return _HOST, port

    async def adopt(self, past: Past) -> frozenset[str] | None:
        for rank in past.ranks.values():
            if rank.gone or not rank.pid:
                continue
            if _same_process(rank.pid, rank.seen):
                self._adopt(rank.incarnation, rank.pid)
            else:
                self._say_ended(rank.incarnation)
        return None

    def start(
        self, incarnation: str, seat: Seat | None, avoid: frozenset[str] = frozenset(), node: str | None = None
    ) -> None:
        from .local_rank import main

        spec = replace(
            self._program.template,
            incarnation=incarnation,
            seat=seat,
            directory=self.tenure.directory,
            node=self._nodes[self._asked % len(self._nodes)],
        )
        self._asked += 1
        self._begin(incarnation, main, (spec, self._program.train, self._private))

    async def room(self) -> Mapping[str, int]:
        return dict.fromkeys(self._nodes, Heap().room() // len(self._nodes))

    def start_vault(self, order: StartVault) -> None:
        from .local_rank import keep

        spec = vault_spec(self._program, order, self.tenure.directory)
        self._begin(order.incarnation, keep, (spec, self._private))

    def start_sentinel(self, incarnation: str, node: str) -> None:
        raise AssertionError(f"{incarnation}: this machine is one node, and its ranks' ends are seen from here")

    def _begin(self, incarnation: str, main: Callable[..., None], arguments: tuple[object, ...]) -> None:
        process = context().Process(target=main, args=arguments, name=f"everstep-{incarnation}")
        process.start()
        self._processes[incarnation] = process
        asyncio.get_running_loop().add_reader(process.sentinel, self._gone, incarnation)

    def send(self, incarnation: str, message: object) -> None:
        self._listener.send(incarnation, message)

    def kill(self, incarnation: str) -> None:
        process, adopted = self._processes.get(incarnation), self._adopted.get(incarnation)
        with contextlib.suppress(ProcessLookupError):
            if process is not None and process.is_alive() and process.pid is not None:
                os.kill(process.pid, signal.SIGKILL)
            elif adopted is not None:
                signal.pidfd_send_signal(adopted, signal.SIGKILL)

    async def close(self, timeout: float) -> list[str]:
        deadline = asyncio.get_running_loop().time() + timeout
        for incarnation in self._processes.keys() | self._adopted.keys():
            # Vaults hold nothing that outlives the run; a rank that is still starting was not told that it is over.
            if incarnation.startswith(PREFIX) or incarnation not in self._listener.known:
                self.kill(incarnation)
        while self._alive():
            if asyncio.get_running_loop().time() > deadline:
                for incarnation in (*self._processes, *self._adopted):
                    self.kill(incarnation)
                break
            await asyncio.sleep(0.01)
        await self.abandon()
        for process in self._processes.values():
            process.join(1.0)
        left = self._alive()
        if self._private:
            self.tenure.release()
        return left

    async def abandon(self) -> None:
        await self._listener.close()
        self._store = None

    def _alive(self) -> list[str]:
        started = [name for name, process in self._processes.items() if process.is_alive()]
        return [*started, *(name for name, adopted in self._adopted.items() if not _has_ended(adopted))]

    def _hear(self, event: Event) -> None:
        assert self._sink is not None
        match event:
            case Heard(incarnation, Hello(pid=pid) | VaultHello(pid=pid)) if incarnation not in self._processes:
                # It has just spoken, so this is its pid.
                self._adopt(incarnation, pid)
        self._sink(event)

    def _adopt(self, incarnation: str, pid: int) -> None:
        if incarnation in self._adopted:
            return
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        self._adopted[incarnation] = handle
        asyncio.get_running_loop().add_reader(handle, self._adopted_gone, incarnation)

    def _adopted_gone(self, incarnation: str) -> None:
        asyncio.get_running_loop().remove_reader(self._adopted[incarnation])
        self._say_ended(incarnation)

    def _gone(self, incarnation: str) -> None:
        process = self._processes[incarnation]
        asyncio.get_running_loop().remove_reader(process.sentinel)
        process.join()
        code = process.exitcode
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        self._say_ended(incarnation, f"its process ended with {how}")

    def _say_ended(self, incarnation: str, cause: str = "its process is gone") -> None:
        self._endings.add(asyncio.ensure_future(self._listener.report_end(incarnation, cause)))


def _same_process(pid: int, seen: float) -> bool:
    """Whether the process that had this pid when it was last ``seen``, in seconds since the epoch, still lives."""
    try:
        process = psutil.Process(pid)
        return bool(process.create_time() < seen + _CLOCKS_S and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _has_ended(handle: int) -> bool:
    ending = select.poll()
    ending.register(handle, select.POLLIN)
    return bool(ending.poll(0))
