"""A vault: gets parts when it is told to, holds them, and gives them to other vaults and to ranks that restore."""

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from ...conf.chaos import Fault, FaultPoint, FaultTarget
from ...conf.elastic import Timeouts
from ...conf.errors import EverstepError, VaultFullError
from .. import exchange
from ..directory import Directory
from ..faults import Chaos
from ..link import Link
from ..messages import FaultFired, Fenced, Release
from .vault import Vault
from .vault_memory import Memory
from .vault_messages import COPY, RESTORE, Commit, Forget, Part, PartName, Pull, Pulled, VaultBeat, VaultHello

# To have copies is less urgent than to train.
_NICE = 10


@dataclass(frozen=True)
class VaultSpec:
    """Everything that a vault must know to start.

    Attributes:
        number: in the order in which vaults are started.
        node: where it lives; ``host`` is the address of that node.
        budget: most bytes that it may hold; None for what is free on its node.
        token: the run's secret.
    """

    incarnation: str
    number: int
    node: str
    budget: int | None
    token: str
    timeouts: Timeouts
    chaos: tuple[Fault, ...] = ()
    directory: Directory | None = None
    host: str = "127.0.0.1"


class VaultProcess:
    """One life of a vault in this process.

    Args:
        memory: where the bytes lie.
    """

    def __init__(self, spec: VaultSpec, memory: Memory) -> None:
        self._spec = spec
        self._memory = memory
        self._vault = Vault(memory.room() if spec.budget is None else spec.budget)
        self._over = threading.Event()
        # One at a time: they would only share the same network.
        self._worker = ThreadPoolExecutor(1, "everstep-vault", _give_way)
        self._chaos = Chaos(spec.chaos, None, self._announce, spec.number, FaultTarget.VAULT)
        assert spec.directory is not None, "the cluster says where controllers are found"
        self._lender = exchange.Lender(spec.host, spec.token, self._lend, half=self._half_given)
        self._link = Link(spec.directory, spec.token, self._introduction, self._obey, spec.timeouts.heartbeat)

    def run(self) -> None:
        """Serve to the end of the run, or until no controller was heard of for long."""
        timeouts = self._spec.timeouts
        self._link.open(timeouts.start)
        self._link.beat(timeouts.heartbeat_interval, lambda: VaultBeat(self._spec.incarnation))
        while not self._over.wait(timeouts.heartbeat_interval):
            if time.monotonic() - self._link.last_heard > timeouts.orphan:
                return
        self._link.close(timeouts.probe)

    def _introduction(self) -> list[object]:
        spec, vault = self._spec, self._vault
        address = self._lender.address
        return [
            VaultHello(spec.incarnation, os.getpid(), spec.node, address, vault.budget, vault.parts, vault.manifests)
        ]

    def _obey(self, message: object) -> None:
        match message:
            case Pull(part, source):
                self._worker.submit(self._pull, part, source)
            case Commit(manifests):
                self._vault.commit(manifests)
            case Forget(names):
                self._vault.forget(names)
            case Release():
                self._over.set()
            case Fenced():
                os._exit(1)

    def _pull(self, part: Part, source: exchange.Address) -> None:
        began, problem, full = time.monotonic(), "", False
        try:
            if self._vault.admit(part):
                self._chaos.at(FaultPoint.IN_SNAPSHOT, f"{part.name} is being got from {source}", part.name.step)
                memory = self._memory.scratch(part.bytes)
                exchange.fetch(source, self._spec.token, part.name, COPY, memory, part.crc32)
                if not self._vault.put(part, self._memory.keep(memory)):
                    problem = "it is not wanted any more"
        except Exception as error:
            self._vault.fail(part.name)
            full = isinstance(error, VaultFullError)
            problem = " ".join(str(error).split()) or type(error).__name__
            problem = problem if isinstance(error, EverstepError) else f"{type(error).__name__}: {problem}"
        self._link.send(Pulled(self._spec.incarnation, part, time.monotonic() - began, problem, full))

    @contextmanager
    def _lend(self, name: PartName) -> Iterator[memoryview | None]:
        handle = self._vault.get(name)
        yield None if handle is None else self._memory.view(handle)

    def _half_given(self, name: PartName, purpose: str) -> None:
        if purpose == RESTORE:
            self._chaos.at(FaultPoint.IN_RESTORE, f"half of {name} is given", name.step)

    def _announce(self, fault: str, evidence: str) -> None:
        self._link.send(FaultFired(self._spec.incarnation, fault, evidence))


def _give_way() -> None:
    own = threading.get_native_id()
    os.setpriority(os.PRIO_PROCESS, own, min(19, os.getpriority(os.PRIO_PROCESS, own) + _NICE))
