"""What is left of 100 generations: threads, descriptors and memory of four processes that rebuild their group.

Every generation goes as one that lost a peer: built, used, interrupted, followed by the next, freed off the path.

Run: ``python -m everstep.benchmarks.leaks``
"""

import gc
import multiprocessing
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import psutil
import torch
from everstep.actors.messages import Open, StoreAddress
from everstep.actors.rank.communicator import Communicator, build
from everstep.actors.rank.groups import Groups
from everstep.benchmarks.common import Row, parser, publish
from everstep.conf.errors import CommunicatorError
from everstep.orchestrator.store import open_store
from everstep.policies.world import Generation, Member, Position, Seat, World
from torch.distributed import ReduceOp

PROCESSES = 4
WARM_UP = 20
_HOST = "127.0.0.1"
_BUILD_S = 15.0
_PREPARE_S = 0.02
_SETTLE_S = 5.0


@dataclass(frozen=True)
class Held:
    """What a process holds; memory in MiB."""

    threads: int
    descriptors: int
    memory: float

    @classmethod
    def now(cls) -> "Held":
        process = psutil.Process()
        return cls(process.num_threads(), process.num_fds(), process.memory_info().rss / 2**20)


def churn(rank: int, port: int, generations: int) -> tuple[Held, Held]:
    """One process: what it holds after the warm-up, and after so many generations more."""
    groups = Groups(lambda message: _build(message, rank), lambda *_: None, lambda *_: None)
    held = []
    for number in range(1, WARM_UP + generations + 1):
        _live_and_fail(groups, Generation(1, number), rank, port)
        if number in (WARM_UP, WARM_UP + generations):
            held.append(_settled())
    return held[0], held[1]


def rows_of(held: Sequence[tuple[Held, Held]], generations: int) -> list[Row]:
    """The worst process's growth."""
    scale = 100 / generations

    def growth(of: str) -> float:
        return scale * float(max(getattr(after, of) - getattr(before, of) for before, after in held))

    return [
        Row("threads_leaked_per_100_generations", growth("threads"), "threads"),
        Row("descriptors_leaked_per_100_generations", growth("descriptors"), "descriptors"),
        Row("memory_leaked_per_100_generations", growth("memory"), "MiB"),
        Row("threads_held", max(after.threads for _, after in held), "threads"),
        Row("descriptors_held", max(after.descriptors for _, after in held), "descriptors"),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    made = parser(__doc__)
    made.add_argument("--generations", type=int, default=100, help="after a warm-up of some (default: 100)")
    options = made.parse_args(arguments)
    store, port = open_store(_HOST)
    with ProcessPoolExecutor(PROCESSES, mp_context=multiprocessing.get_context("spawn")) as pool:
        started = [pool.submit(churn, rank, port, options.generations) for rank in range(PROCESSES)]
        held = [future.result() for future in started]
    del store
    publish(f"{options.generations} generations of {PROCESSES} processes", rows_of(held, options.generations), options)


def _live_and_fail(groups: Groups, generation: Generation, rank: int, port: int) -> None:
    """Meet, reduce once, free what is older; then one rank leaves and the collective of the others fails."""
    members = tuple(Member(str(place), Seat(place)) for place in range(PROCESSES))
    store = StoreAddress(_HOST, port, f"leaks/{generation}")
    groups.open(Open(World(generation, members), Position(0), {}, store))
    communicator = groups.get(generation, _BUILD_S)
    groups.retire(generation)
    # Whom a broken socket does not reach, the controller does, from the control thread.
    prepare = threading.Timer(_PREPARE_S, groups.interrupt, (generation,))
    prepare.start()
    try:
        communicator.all_reduce(torch.ones(1000), ReduceOp.SUM).wait()
        if rank != generation.number % PROCESSES:
            communicator.all_reduce(torch.ones(1000), ReduceOp.SUM).wait()
            raise AssertionError("a collective came to its end without one of its members")
    except CommunicatorError:
        pass
    groups.interrupt(generation)
    prepare.join()


def _settled() -> Held:
    """What is held once nothing is being freed in the background any more."""
    deadline = time.monotonic() + _SETTLE_S
    while any(thread.name.startswith("everstep") for thread in threading.enumerate()):
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    gc.collect()
    return Held.now()


def _build(message: Open, rank: int) -> Communicator:
    return build(
        message.store,
        message.world.generation,
        rank,
        PROCESSES,
        host=_HOST,
        device=torch.device("cpu"),
        collective_timeout=_BUILD_S,
        build_timeout=_BUILD_S,
    )


if __name__ == "__main__":
    main()
