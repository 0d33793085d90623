"""The group of one generation: a few collectives, asynchronous, and a way out when a peer is gone."""

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from ...conf.errors import CommunicatorError
from ...policies.world import Generation
from ..messages import StoreAddress
from .progress import Board
from .rendezvous import StoreClients
from .sockets import SocketWatch

_LEARN_PATIENCE_S = 5.0
_MEETING_POLL_S = 0.002
_GIVE_UP = timedelta(milliseconds=1)
# Of a message that nobody sends.
_GIVE_UP_TAG = 2**31 - 1


class Pending(Protocol):
    """A collective under way. Its buffers must be left alone until ``wait`` returns."""

    def wait(self) -> None:
        """Block until it is complete here; an interruption or the group's time-out ends the wait otherwise.

        Raises:
            CommunicatorError: it failed; output buffers are undefined and must not be used again.
        """
        ...


class Communicator(Protocol):
    """Collectives among the peers of one coordinate in one generation."""

    generation: Generation
    rank: int
    size: int

    def meet(self, what: str) -> None:
        """Block until all members have come to ``what``, before a collective that not all may be about to enter.

        Backends end the process, or hang, when two members enter different collectives.

        Args:
            what: not used before in this generation.

        Raises:
            CommunicatorError: an interruption, or the group's time-out, came first.
        """
        ...

    def all_to_all(self, output: torch.Tensor, source: torch.Tensor) -> Pending:
        """Exchange ``size`` equal parts: part i of ``source`` goes to rank i."""
        ...

    def all_gather(self, output: torch.Tensor, source: torch.Tensor) -> Pending:
        """Concatenate every rank's ``source`` in the order of ranks."""
        ...

    def all_reduce(self, tensor: torch.Tensor, op: dist.ReduceOp.RedOpType) -> Pending:
        """In place."""
        ...

    def learn(self) -> None:
        """What makes ``interrupt`` quicker but may come after the first collectives; blocking, called once.

        Raises:
            CommunicatorError: the group broke before.
        """
        ...

    def interrupt(self) -> None:
        """From any thread: make collectives under way fail at once, here and at peers that wait for this rank."""
        ...

    def accused(self, error: CommunicatorError) -> int | None:
        """Rank of the peer that the error points at, if it can be told."""
        ...

    def throttle(self) -> None:
        """For rehearsals: make transfers to this rank slow enough to be caught half done, if the backend can."""
        ...

    def close(self) -> None:
        """Free everything; may block on threads of the group, so it is called off the path of a step."""
        ...


class ProcessGroupCommunicator:
    """A communicator over a raw c10d process group, which no global state of torch.distributed knows of."""

    def __init__(self, group: Any, generation: Generation, rank: int, size: int, store: Store, timeout: float) -> None:
        self._group = group
        self._store = store
        self._timeout = timeout
        self._interrupted = False
        # Where others see what is entered.
        self.board: Board | None = None
        self.generation = generation
        self.rank = rank
        self.size = size

    def meet(self, what: str) -> None:
        deadline = time.monotonic() + self._timeout
        everybody = [f"{what}/{rank}" for rank in range(self.size)]
        try:
            self._store.set(everybody[self.rank], "here")
            while not self._store.check(everybody):
                if self._interrupted:
                    raise CommunicatorError(f"{what} in generation {self.generation}: interrupted")
                if time.monotonic() > deadline:
                    raise CommunicatorError(f"not all members came to {what} within {self._timeout:g} s")
                time.sleep(_MEETING_POLL_S)
        except RuntimeError as error:
            raise CommunicatorError(f"{what}: {_brief(error)}") from None

    def all_to_all(self, output: torch.Tensor, source: torch.Tensor) -> Pending:
        return self._launch("all-to-all", source, lambda group: group.alltoall_base(output, source, [], []))

    def all_gather(self, output: torch.Tensor, source: torch.Tensor) -> Pending:
        return self._launch("all-gather", source, lambda group: group._allgather_base(output, source))

    def all_reduce(self, tensor: torch.Tensor, op: dist.ReduceOp.RedOpType) -> Pending:
        options = dist.AllreduceOptions()
        options.reduceOp = op  # type: ignore[assignment]
        return self._launch("all-reduce", tensor, lambda group: group.allreduce([tensor], options))

    def learn(self) -> None:
        pass

    def accused(self, error: CommunicatorError) -> int | None:
        return None

    def throttle(self) -> None:
        pass

    def close(self) -> None:
        self._group = None

    def _launch(self, what: str, sent: torch.Tensor, call: Callable[[Any], dist.Work]) -> Pending:
        group = self._group
        if group is None:
            raise CommunicatorError(f"{what}: the group of generation {self.generation} is closed")
        if self.board is not None:
            self.board.entered(str(self.generation), what, sent.numel(), str(sent.dtype).removeprefix("torch."))
        try:
            return self._pending(call(group), f"{what} in generation {self.generation}")
        except RuntimeError as error:
            raise CommunicatorError(f"{what}: {_brief(error)}") from None

    def _pending(self, work: dist.Work, what: str) -> Pending:
        raise NotImplementedError


class GlooCommunicator(ProcessGroupCommunicator):
    """Gloo. It has no abort, so there are three ways out, and a group is left by all of them.

    Its sockets are shut down, which fails most collectives within milliseconds, here and at the peers. Nobody waits
    for it: a message of which a part had arrived when its sender died is forgotten by Gloo 2.13, and its receiver would
    wait for the whole time-out. And its pairs are closed, since Gloo never reads on where a collective failed in the
    middle of a message, while its loop wakes up over and over to do so.
    """

    def __init__(
        self,
        group: Any,
        generation: Generation,
        rank: int,
        size: int,
        store: Store,
        timeout: float,
        watch: SocketWatch,
    ) -> None:
        super().__init__(group, generation, rank, size, store, timeout)
        self._watch = watch
        self._changed = threading.Condition()
        self._learned = threading.Event()

    def learn(self) -> None:
        self._watch.learn()
        self._learned.set()

    def interrupt(self) -> None:
        with self._changed:
            first, self._interrupted = not self._interrupted, True
            self._changed.notify_all()
        self._watch.shut_down()
        if first and (group := self._group) is not None:
            # It may wait for a turn of Gloo's loop for each peer.
            threading.Thread(target=_close_pairs, args=(group,), name="everstep-interrupt", daemon=True).start()

    def accused(self, error: CommunicatorError) -> int | None:
        end = re.search(r"\[([0-9a-fA-F.:]+)\]:(\d+)", str(error))
        if end is None:
            return None
        # Gloo 2.13 prints ports in the byte order of the network.
        ports = {int(end[2]), socket.htons(int(end[2]))}
        named = {self._watch.peers.get(f"{end[1]}:{port}") for port in ports} - {None}
        return named.pop() if len(named) == 1 else None

    def throttle(self) -> None:
        self._learned.wait(_LEARN_PATIENCE_S)
        self._watch.narrow()

    def await_work(self, work: dist.Work) -> bool:
        """Block until ``work`` is complete; False if an interruption came first."""
        future = work.get_future()
        if not future.done():
            changed = self._changed

            def notify(_: object) -> None:
                with changed:
                    changed.notify_all()

            # It runs on a thread of the group, so it may not hold the group: whoever frees one joins its threads.
            future.add_done_callback(notify)
            with changed:
                # Ended by the work itself, at the latest by the group's time-out, or by ``interrupt``.
                changed.wait_for(lambda: future.done() or self._interrupted)
        return bool(future.done())

    def _pending(self, work: dist.Work, what: str) -> Pending:
        return _GlooPending(work, what, self)


class _GlooPending:
    def __init__(self, work: dist.Work, what: str, communicator: GlooCommunicator) -> None:
        self._work = work
        self._what = what
        self._communicator = communicator

    def wait(self) -> None:
        if not self._communicator.await_work(self._work):
            raise CommunicatorError(f"{self._what}: interrupted")
        _finish(self._work, self._what)


class NcclCommunicator(ProcessGroupCommunicator):
    """NCCL. A wait only orders the device's stream; the host synchronises once, before the vote."""

    def interrupt(self) -> None:
        self._interrupted = True
        group = self._group
        if group is not None:
            group.abort()

    def _pending(self, work: dist.Work, what: str) -> Pending:
        return _StreamPending(work, what)


class _StreamPending:
    def __init__(self, work: dist.Work, what: str) -> None:
        self._work = work
        self._what = what

    def wait(self) -> None:
        _finish(self._work, self._what)


def build(
    address: StoreAddress,
    generation: Generation,
    rank: int,
    size: int,
    *,
    host: str,
    device: torch.device,
    collective_timeout: float,
    build_timeout: float,
    clients: StoreClients | None = None,
    board: Board | None = None,
) -> Communicator:
    """Meet the peers at the generation's own store keys and build its group; blocking.

    Args:
        host: address of this machine that peers can reach.
        collective_timeout: seconds; bound of one collective.
        build_timeout: seconds; bound of the meeting.
        clients: where the connection to the store comes from; None makes one.
        board: where others see what this rank enters, once the group is built.

    Raises:
        CommunicatorError: a peer did not come, or the store is gone.
    """
    started = time.monotonic()
    clients = clients or StoreClients(build_timeout)
    communicator: ProcessGroupCommunicator
    try:
        if device.type == "cuda":
            # NCCL's own threads use the store for as long as the group lives.
            store = PrefixStore(address.prefix, clients.take(address.host, address.port))
            clients.prepare(address.host, address.port)
            nccl = dist.ProcessGroupNCCL.Options()
            nccl._timeout = timedelta(seconds=collective_timeout)
            group = dist.ProcessGroupNCCL(store, rank, size, nccl)
            communicator = NcclCommunicator(group, generation, rank, size, store, collective_timeout)
        else:
            with clients.lent(address.host, address.port) as client:
                store = PrefixStore(address.prefix, client)
                watch = SocketWatch()
                options: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
                options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
                options._timeout = timedelta(seconds=build_timeout)
                gloo = dist.ProcessGroupGloo(store, rank, size, options)
                over_gloo = GlooCommunicator(gloo, generation, rank, size, store, collective_timeout, watch)
                watch.ask(over_gloo)
                gloo._set_default_timeout(timedelta(seconds=collective_timeout))
                communicator = over_gloo
        communicator.board = board
        return communicator
    except RuntimeError as error:
        waited = time.monotonic() - started
        raise CommunicatorError(
            f"the group of generation {generation} was not built after {waited:.1f} s: {_brief(error)}"
        ) from None


def _close_pairs(group: Any) -> None:
    """Let a wait run out of time, the one occasion on which Gloo closes its connections to all peers."""
    with contextlib.suppress(RuntimeError):
        group.recv_anysource([torch.empty(1)], _GIVE_UP_TAG).wait(_GIVE_UP)


def _finish(work: dist.Work, what: str) -> None:
    try:
        work.wait()
    except RuntimeError as error:
        raise CommunicatorError(f"{what}: {_brief(error)}") from None


def _brief(error: RuntimeError) -> str:
    """What happened and to which peer, without source paths, advice and stack traces of the backend."""
    first = str(error).splitlines()[0]
    return re.sub(r"^\[[^\]]*\]\s*", "", first).partition(". This is typically")[0]
