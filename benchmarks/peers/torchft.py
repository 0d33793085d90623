"""torchft: the survivors go on without the microbatches of the dead, until a new process has healed from them.

Run alone, with the extra ``peers`` installed: ``python -m everstep.benchmarks.peers.torchft --kills 3``
"""

import os
import random
import shutil
import socket
import sys
import tempfile
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from torch._C._distributed_c10d import TCPStore

from .common import PeerRecovery, main
from .kills import jobs, recoveries
from .progress import ProgressLog
from .workload import MICROBATCHES, RANKS, Workload, microbatches_of

MODULE = "everstep.benchmarks.peers.torchft"
COLLECTIVE_S = "PEER_COLLECTIVE_S"


@dataclass(frozen=True)
class Setting:
    """How long torchft waits.

    Args:
        lighthouse: options of its lighthouse.
        collective_s: longest wait inside one collective. It ends the wait of the rank opposite the dead one in Gloo's
            ring, which sees no closed socket; by default it is 60 s, and the lighthouse waits for that rank meanwhile.
    """

    lighthouse: tuple[str, ...]
    collective_s: float


SETTINGS = {
    # The lighthouse's options in torchft's README, with its own heartbeats of 5 s, and the collective of its example.
    "torchft (default)": Setting(("--join_timeout_ms=10000",), collective_s=5.0),
    # A join timeout below the time of a step shuts one healthy group out of every quorum, for ever.
    "torchft (tuned)": Setting(("--heartbeat_timeout_ms=500", "--join_timeout_ms=2000"), collective_s=1.0),
}


def measure(kills: int, seed: int) -> list[PeerRecovery]:
    """Kill one of four replica groups ``kills`` times, with default and with tuned heartbeats."""
    return [one for name in SETTINGS for one in measure_setting(name, kills, seed)]


def measure_setting(name: str, kills: int, seed: int) -> list[PeerRecovery]:
    """Kill one of four replica groups ``kills`` times under one setting of the lighthouse."""
    folders = [str(Path(sys.executable).parent), *os.get_exec_path()]
    lighthouse = shutil.which("torchft_lighthouse", path=os.pathsep.join(folders))
    if lighthouse is None:
        raise ModuleNotFoundError("torchft is not installed; install the extra: pip install 'everstep[peers]'")
    port, setting = _free_port(), SETTINGS[name]
    with tempfile.TemporaryDirectory() as folder, jobs(Path(folder)) as running:

        def start(rank: int) -> None:
            address = f"http://127.0.0.1:{port}"
            environment = {"RANK": str(rank), "TORCHFT_LIGHTHOUSE": address, COLLECTIVE_S: str(setting.collective_s)}
            running.start_module(MODULE, "--train-in", folder, **environment)

        # Survivors may be as few as one: a larger minimum would only add to the waiting.
        running.start(lighthouse, f"--bind=127.0.0.1:{port}", "--min_replicas=1", *setting.lighthouse)
        for rank in range(RANKS):
            start(rank)
        return recoveries(name, Path(folder), running, kills, random.Random(seed), replace=start)


def train(work: Path) -> None:
    """One replica group of one rank."""
    from torchft import Manager, ProcessGroupGloo

    rank, log, workload = int(os.environ["RANK"]), ProgressLog(work), Workload()
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=float(os.environ[COLLECTIVE_S]))),
        load_state_dict=workload.load_state_dict,
        state_dict=workload.state_dict,
        min_replica_size=1,
        init_sync=False,
        replica_id=f"replica_{rank}",
        hostname="127.0.0.1",
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
    )
    while True:
        step = manager.current_step()
        log.write("begin", step=step, rank=rank, world=0)
        manager.start_quorum()
        for index in microbatches_of(rank):
            workload.backward(workload.model, step, index)
        # Not torchft's DDP, which fails at the first death with torch 2.13.
        gradient = workload.flat_gradient()
        manager.allreduce(gradient).wait()
        if manager.should_commit():
            workload.set_gradient(gradient)
            workload.update()
            summed = manager.num_participants() * MICROBATCHES // RANKS
            # A group that has healed is now at its peers' step.
            committed = manager.current_step() - 1
            # torchft tells the name of its quorum to nobody.
            log.write("done", step=committed, rank=rank, world=manager._quorum_id, microbatches=summed)
        workload.optimizer.zero_grad()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main(measure, train)
