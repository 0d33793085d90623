"""Real Gloo groups between processes; run as a program, it plays all scenarios and prints what came of them as JSON.

Ranks come from a forkserver that has torch loaded, so that a scenario takes a moment.
"""

import contextlib
import gc
import json
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist
from everstep.actors.messages import StoreAddress
from everstep.actors.rank import communicator as module
from everstep.actors.rank.communicator import GlooCommunicator
from everstep.actors.rank.rendezvous import StoreClients
from everstep.conf.errors import CommunicatorError
from everstep.orchestrator.store import open_store
from everstep.policies.world import Generation

SIZE = 3
PATIENCE_S = 30.0
Say = Callable[..., None]


class Peer:
    """One rank's side of a scenario."""

    def __init__(self, scenario: str, rank: int, port: int, pipe: Any) -> None:
        self.scenario = scenario
        self.rank = rank
        self.port = port
        self._pipe = pipe
        self.clients: StoreClients | None = None

    def build(self, number: int = 1, size: int = SIZE, build_timeout: float = 10.0) -> GlooCommunicator:
        generation = Generation(1, number)
        address = StoreAddress("127.0.0.1", self.port, f"{self.scenario}/{generation}")
        self.clients = self.clients or StoreClients(build_timeout)
        built = module.build(
            address,
            generation,
            self.rank,
            size,
            host="127.0.0.1",
            device=torch.device("cpu"),
            collective_timeout=PATIENCE_S,
            build_timeout=build_timeout,
            clients=self.clients,
        )
        assert isinstance(built, GlooCommunicator)
        built.learn()
        return built

    def say(self, **facts: Any) -> None:
        self._pipe.send(facts)

    def wait_for_word(self) -> None:
        assert self._pipe.poll(PATIENCE_S)
        self._pipe.recv()


def summed(communicator: GlooCommunicator, count: int = 4) -> list[float]:
    tensor = torch.full((count,), float(communicator.rank + 1))
    communicator.all_reduce(tensor, dist.ReduceOp.SUM).wait()
    return tensor.tolist()


def failure(communicator: GlooCommunicator, count: int = 4) -> dict[str, Any]:
    """How a collective that cannot end did end."""
    started = time.monotonic()
    try:
        summed(communicator, count)
    except CommunicatorError as error:
        return {
            "failed": True,
            "text": str(error),
            "accused": communicator.accused(error),
            "seconds": time.monotonic() - started,
        }
    return {"failed": False, "seconds": time.monotonic() - started}


class Closing:
    """Stands in for Gloo's group: as it is built, sockets that were there before are closed, and numbers are free."""

    real = dist.ProcessGroupGloo
    _Options = real._Options
    create_device = staticmethod(real.create_device)
    closed: list[socket.socket] = []  # noqa: RUF012

    def __new__(cls, *arguments: Any) -> Any:
        for held in cls.closed:
            held.close()
        return cls.real(*arguments)


def reusing_descriptors(peer: Peer) -> GlooCommunicator:
    """Build while as many descriptors become free as the group will take."""
    Closing.closed = [socket.socket() for _ in range(40)]
    dist.ProcessGroupGloo = Closing  # type: ignore[misc,assignment]
    built = peer.build()
    dist.ProcessGroupGloo = Closing.real  # type: ignore[misc]
    return built


# --- scenarios, as one rank plays them


def collectives(peer: Peer) -> None:
    """What the three collectives mean."""
    group = peer.build()
    gathered = torch.zeros(SIZE * 2)
    group.all_gather(gathered, torch.tensor([peer.rank, peer.rank + 0.5])).wait()
    exchanged = torch.zeros(SIZE * 2)
    group.all_to_all(exchanged, torch.arange(SIZE * 2, dtype=torch.float32) + 10 * peer.rank).wait()
    maxima = torch.tensor([float(peer.rank), -1.0])
    group.all_reduce(maxima, dist.ReduceOp.MAX).wait()
    group.close()
    try:
        summed(group)
    except CommunicatorError as error:
        closed = str(error)
    peer.say(
        gathered=gathered.tolist(),
        exchanged=exchanged.tolist(),
        maxima=maxima.tolist(),
        closed=closed,
        peers=sorted(group._watch.peers.values()),
    )


def stopped(peer: Peer) -> None:
    """Rank 2 is stopped in mid-collective; the others are told to leave the group, and go on without it."""
    group = reusing_descriptors(peer)
    peer.say(sum=summed(group), owned=len(group._watch.owned))
    peer.wait_for_word()
    if peer.rank == 2:
        os.kill(os.getpid(), signal.SIGSTOP)
    threading.Timer(0.3, group.interrupt).start()
    said = failure(group)
    started = time.monotonic()
    # It joins the threads of the group, so it ends only if its collective has really ended.
    group.close()
    said["freed_after"] = time.monotonic() - started
    peer.say(**said)
    peer.say(again=summed(peer.build(2, size=2)))


def killed(peer: Peer) -> None:
    """Rank 2 dies in mid-collective."""
    group = peer.build()
    peer.say(sum=summed(group))
    peer.wait_for_word()
    if peer.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    said = failure(group, 4_000_000)
    group.interrupt()
    peer.say(**said)


def halfway(peer: Peer) -> None:
    """Rank 0 has half a message of rank 1 as the collective fails, since rank 2 died; then it leaves the group."""
    group = peer.build()
    pids = torch.zeros(SIZE, dtype=torch.int64)
    group.all_gather(pids, torch.tensor([os.getpid()])).wait()
    peer.say(here=True)
    peer.wait_for_word()
    if peer.rank == 2:
        signal.pause()
    part = 2_000_000
    received = torch.full((SIZE * part,), torch.nan)
    if peer.rank == 0:
        group.throttle()
    pending = group.all_to_all(received, torch.ones(SIZE * part))
    if peer.rank == 1:
        signal.pause()
    of_rank_1 = received[part : 2 * part]
    assert until(lambda: not of_rank_1[:1].isnan().any())
    os.kill(int(pids[1]), signal.SIGSTOP)
    half = bool(of_rank_1.isnan().any())
    os.kill(int(pids[2]), signal.SIGKILL)
    try:
        pending.wait()
    except CommunicatorError as error:
        failed = str(error)
    group.interrupt()
    rested = until(lambda: not any(thread.name == "everstep-interrupt" for thread in threading.enumerate()))
    before = cpu_of_loops()
    time.sleep(0.7)
    peer.say(half=half, failed=failed, rested=rested, cpu_s=cpu_of_loops() - before)


def strangers(peer: Peer) -> None:
    """Sockets that have nothing to do with the group are opened before, while and after it is built."""
    stop = threading.Event()
    pairs: list[tuple[socket.socket, socket.socket]] = [tcp_pair()]

    def open_pairs() -> None:
        while not stop.is_set() and len(pairs) < 60:
            pairs.append(tcp_pair())

    # As the constructor begins, when the group's watch looks for what is new.
    Closing.closed = []
    opener = threading.Thread(target=open_pairs)
    opener.start()
    group = peer.build()
    stop.set()
    opener.join()
    pairs.append(tcp_pair())
    unix = socket.socketpair()
    owned = set(group._watch.owned)
    ours = {end.fileno() for pair in [*pairs, unix] for end in pair}
    result = summed(group)
    group.interrupt()
    broken = sum(not talk(*pair) for pair in [*pairs, unix])
    peer.say(sum=result, owned=len(owned), taken=len(owned & ours), broken=broken, pairs=len(pairs), **failure(group))


def many(peer: Peer) -> None:
    """A hundred generations, every other one interrupted; each is freed behind the back of the next."""
    figures = []
    for number in range(1, 121):
        group = peer.build(number)
        summed(group)
        if number % 2:
            group.interrupt()
        freeing = threading.Thread(target=group.close)
        freeing.start()
        if number in (20, 120):
            freeing.join()
            gc.collect()
            figures.append(usage())
    peer.say(before=figures[0], after=figures[1])


def dropped(peer: Peer) -> None:
    """A group that nobody frees, with a collective under way: the last to hold it may not be a thread of its own."""
    for number in range(1, 21):
        group = peer.build(number)
        summed(group)
        group._interrupted = True
        with contextlib.suppress(CommunicatorError):
            summed(group)
        del group
    peer.say(alive=True)


def alone(peer: Peer) -> None:
    """Rank 0 waits for peers that never come; then the store is not there either."""
    if peer.rank:
        peer.say(skipped=True)
        return
    said: dict[str, Any] = {}
    for what, port in (("peers", peer.port), ("store", 1)):
        peer.port = port
        started = time.monotonic()
        try:
            peer.build(build_timeout=1.0)
        except CommunicatorError as error:
            said[what] = {"text": str(error), "seconds": time.monotonic() - started}
    peer.say(**said)


def until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.001)
    return condition()


def cpu_of_loops() -> float:
    """Seconds that the threads have computed on which Gloo waits for sockets."""
    tasks = [task for task in Path("/proc/self/task").iterdir() if (task / "comm").read_text() == "gloo_tcp_loop\n"]
    assert tasks
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        return one, server.accept()[0]


def talk(one: socket.socket, other: socket.socket) -> bool:
    """Whether a word gets through in both directions."""
    with contextlib.suppress(OSError):
        for sender, receiver in ((one, other), (other, one)):
            receiver.settimeout(2.0)
            sender.sendall(b"word")
            if receiver.recv(4) != b"word":
                return False
        return True
    return False


def usage() -> dict[str, float]:
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "mib": psutil.Process().memory_info().rss / 2**20,
    }


# --- the conductor

# How many ranks live on, the first ones.
SURVIVORS = {stopped: 2, killed: 2, halfway: 1}


def conduct(play: Callable[[Peer], None]) -> list[list[dict[str, Any]]]:
    """Fork the ranks of a scenario; returns all that each has said."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["everstep.actors.rank.communicator"])
    store, port = open_store("127.0.0.1")
    pipes, processes = [], []
    for rank in range(SIZE):
        mine, theirs = context.Pipe()
        process = context.Process(target=play, args=(Peer(play.__name__, rank, port, theirs),))
        process.start()
        theirs.close()
        pipes.append(mine)
        processes.append(process)
    said: list[list[dict[str, Any]]] = [[] for _ in pipes]
    survivors = pipes
    if play in SURVIVORS:
        for heard, pipe in zip(said, pipes, strict=True):
            heard.append(pipe.recv() if pipe.poll(PATIENCE_S) else {})
        for pipe in pipes:
            pipe.send("go on")
        survivors = pipes[: SURVIVORS[play]]
    for heard, pipe in zip(said, survivors, strict=False):
        for _ in range(2 if play is stopped else 1):
            heard.append(pipe.recv() if pipe.poll(PATIENCE_S) else {})
    for process in processes:
        if play in SURVIVORS:
            process.kill()
        process.join(PATIENCE_S)
        process.kill()
    del store
    return said


def main() -> None:
    scenarios = (collectives, stopped, killed, halfway, strangers, many, dropped, alone)
    torch.set_num_threads(1)
    wanted = [play for play in scenarios if play.__name__ in sys.argv[1:]] or scenarios
    print(json.dumps({play.__name__: conduct(play) for play in wanted}))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
