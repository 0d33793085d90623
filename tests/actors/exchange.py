"""Collectives among threads of one process, and ones that fail on purpose."""

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from everstep.conf.errors import CommunicatorError
from everstep.policies.world import Generation
from torch import Tensor

DEADLINE_S = 20.0
Result = TypeVar("Result")


class Exchange:
    """Where ``size`` threads meet: everybody's n-th collective is one collective."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._sources: dict[int, dict[int, Tensor]] = {}
        self._changed = threading.Condition()

    def put(self, place: int, rank: int, source: Tensor) -> None:
        with self._changed:
            self._sources.setdefault(place, {})[rank] = source
            self._changed.notify_all()

    def take(self, place: int) -> list[Tensor]:
        """What all have put, in the order of ranks."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._sources.get(place, {})) == self.size, DEADLINE_S):
                raise CommunicatorError(f"only {sorted(self._sources.get(place, {}))} of {self.size} came")
            return [self._sources[place][rank] for rank in range(self.size)]


class ThreadPending:
    def __init__(self, finish: Callable[[], None]) -> None:
        self._finish = finish

    def wait(self) -> None:
        self._finish()


class ThreadCommunicator:
    """One rank's end of an ``Exchange``. Sources are read when the collective is waited for, as a real one might."""

    generation = Generation(1, 1)

    def __init__(self, exchange: Exchange, rank: int) -> None:
        self.rank = rank
        self.size = exchange.size
        self._exchange = exchange
        self._place = 0

    def all_to_all(self, output: Tensor, source: Tensor) -> ThreadPending:
        assert output.numel() == source.numel()
        assert source.numel() % self.size == 0

        def finish(sources: list[Tensor]) -> None:
            torch.cat([other.view(self.size, -1)[self.rank] for other in sources], out=output)

        return self._launch(source, finish)

    def all_gather(self, output: Tensor, source: Tensor) -> ThreadPending:
        assert output.numel() == source.numel() * self.size
        return self._launch(source, lambda sources: torch.cat(sources, out=output))

    def all_reduce(self, tensor: Tensor, op: Any) -> ThreadPending:
        mine = tensor.clone()

        def finish(sources: list[Tensor]) -> None:
            stacked = torch.stack(sources)
            tensor.copy_(stacked.sum(0) if op == dist.ReduceOp.SUM else stacked.amax(0))

        return self._launch(mine, finish)

    def meet(self, what: str) -> None:
        pass

    def learn(self) -> None:
        pass

    def interrupt(self) -> None:
        raise AssertionError("nobody interrupts a thread")

    def accused(self, error: CommunicatorError) -> int | None:
        return None

    def close(self) -> None:
        pass

    def _launch(self, source: Tensor, finish: Callable[[list[Tensor]], Any]) -> ThreadPending:
        place = self._place
        self._place += 1
        self._exchange.put(place, self.rank, source)
        return ThreadPending(lambda: finish(self._exchange.take(place)))


class FailingCommunicator:
    """The ``fails``-th collective dies half-way: garbage stands in its output, and its wait raises.

    Attributes:
        outputs: of all collectives so far; threads of a dead group may write into them at any time.
    """

    generation = Generation(1, 1)

    def __init__(self, size: int, rank: int, fails: int, at_launch: bool = False) -> None:
        self.size = size
        self.rank = rank
        self.outputs: list[Tensor] = []
        self._fails = fails
        self._at_launch = at_launch

    def all_to_all(self, output: Tensor, source: Tensor) -> ThreadPending:
        return self._half(output)

    def all_gather(self, output: Tensor, source: Tensor) -> ThreadPending:
        return self._half(output)

    def all_reduce(self, tensor: Tensor, op: Any) -> ThreadPending:
        return self._half(tensor)

    def meet(self, what: str) -> None:
        pass

    def learn(self) -> None:
        pass

    def interrupt(self) -> None:
        pass

    def accused(self, error: CommunicatorError) -> int | None:
        return None

    def close(self) -> None:
        pass

    def _half(self, output: Tensor) -> ThreadPending:
        place = len(self.outputs)
        self.outputs.append(output)
        output[: output.numel() // 2].fill_(torch.nan)
        if place == self._fails and self._at_launch:
            raise CommunicatorError("closed by peer")

        def finish() -> None:
            if place == self._fails:
                raise CommunicatorError("closed by peer")

        return ThreadPending(finish)


def together(size: int, work: Callable[[ThreadCommunicator], Result]) -> list[Result]:
    """Run ``work`` on ``size`` threads, each with its end of one exchange."""
    exchange = Exchange(size)
    results: dict[int, Result] = {}
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = work(ThreadCommunicator(exchange, rank))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S + 5)
    if errors:
        raise errors[0]
    return [results[rank] for rank in range(size)]
