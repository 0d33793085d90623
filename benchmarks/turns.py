"""Trainings that share a machine take turns: each goes a few steps while the others are blocked and cost nothing.

Two programs can only be compared on a machine whose speed drifts if they alternate within seconds, and starting one
takes longer than that. So all are started once, and pause between two steps of their own loops.
"""

import json
import socket
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TextIO

_BLOCK_DEADLINE_S = 600.0


class Turn:
    """A rank's place in its side.

    Args:
        address: of the ``Turns`` that it obeys.
        side: which training it belongs to.
        pid: of this process.
    """

    def __init__(self, address: tuple[str, int], side: str, pid: int) -> None:
        self._stream = socket.create_connection(address).makefile("rw")
        self._cpu = 0.0
        _write(self._stream, {"side": side, "pid": pid})

    def end(self, **facts: Any) -> None:
        """Say that the last step before this call is over."""
        _write(self._stream, {"at": time.monotonic(), "cpu": time.process_time() - self._cpu, **facts})

    def wait(self, **facts: Any) -> None:
        """The same, then block until it is this side's turn again."""
        self.end(**facts)
        # Ended by the measuring process: by its word, or by its own end.
        if not self._stream.readline():
            raise SystemExit("the measurement is over")
        self._cpu = time.process_time()


@dataclass(frozen=True)
class Block:
    """What one side did in one turn.

    Attributes:
        seconds: from the word to go to the end of the slowest rank's last step.
        facts: what its ranks said at the end, in no order.
    """

    seconds: float
    facts: tuple[Mapping[str, Any], ...]

    @property
    def cpu(self) -> float:
        """CPU seconds of all its ranks together; a busy machine disturbs them less than the clock."""
        return sum(float(one["cpu"]) for one in self.facts)


class Turns(AbstractContextManager["Turns"]):
    """The measuring process's end.

    Args:
        sides: ranks by name of the training.
    """

    def __init__(self, sides: Mapping[str, int]) -> None:
        self._expected = dict(sides)
        self._ranks: dict[str, list[TextIO]] = {side: [] for side in sides}
        self._server = socket.create_server(("127.0.0.1", 0))
        self.pids: list[int] = []
        host, port = self._server.getsockname()
        self.address: tuple[str, int] = (host, port)

    def __exit__(self, *_: object) -> None:
        for rank in (rank for ranks in self._ranks.values() for rank in ranks):
            rank.close()
        self._server.close()

    def gather_from(self, sides: Iterable[Future[Any]]) -> bool:
        """Receive a rank if one comes now; True once all of all sides are here.

        Raises:
            Exception: whatever has ended one of the ``sides``, which run elsewhere.
        """
        for side in sides:
            if side.done():
                side.result()
        return self.gather(seconds=0.1)

    def gather(self, seconds: float) -> bool:
        """Receive a rank for at most so long; True once all of all sides are here."""
        self._server.settimeout(seconds)
        try:
            connection, _ = self._server.accept()
        except TimeoutError:
            return self._complete
        connection.settimeout(_BLOCK_DEADLINE_S)
        stream = connection.makefile("rw")
        said = _read(stream)
        self._ranks[said["side"]].append(stream)
        self.pids.append(said["pid"])
        return self._complete

    def ready(self) -> None:
        """Wait until every rank of every side stands before its first step."""
        for ranks in self._ranks.values():
            for rank in ranks:
                _read(rank)

    def go(self, side: str) -> Block:
        """Let one side go on until all of its ranks have said that they are done."""
        began = time.monotonic()
        for rank in self._ranks[side]:
            _write(rank, {})
        said = tuple(_read(rank) for rank in self._ranks[side])
        return Block(max(one["at"] for one in said) - began, said)

    @property
    def _complete(self) -> bool:
        return all(len(self._ranks[side]) == count for side, count in self._expected.items())


def _write(stream: TextIO, facts: Mapping[str, Any]) -> None:
    stream.write(json.dumps(facts) + "\n")
    stream.flush()


def _read(stream: TextIO) -> dict[str, Any]:
    line = stream.readline()
    if not line:
        raise ConnectionError("a rank ended in the middle of the measurement")
    return dict(json.loads(line))
