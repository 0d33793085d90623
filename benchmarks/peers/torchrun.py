"""torchrun elastic: every rank is restarted and reads the checkpoint of the last step.

Run alone: ``python -m everstep.benchmarks.peers.torchrun --kills 3``
"""

import random
import tempfile
from itertools import count
from pathlib import Path

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from .common import PeerRecovery, main
from .kills import jobs, recoveries
from .progress import ProgressLog
from .workload import MICROBATCHES, RANKS, Workload, world_name

MODULE = "everstep.benchmarks.peers.torchrun"


def measure(kills: int, seed: int) -> list[PeerRecovery]:
    """Kill one of four ranks ``kills`` times in one job of torchrun."""
    with tempfile.TemporaryDirectory() as folder, jobs(Path(folder)) as running:
        agent = ["torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
        patience = [f"--max-restarts={kills + 1}", "--monitor-interval=0.1"]
        # The store that torchrun shares by default keeps the Gloo addresses of the ranks before a restart: with
        # torch 2.13 every later attempt fails to connect.
        fresh_store = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        running.start_module(*agent, *patience, "-m", MODULE, "--train-in", folder, **fresh_store)
        return recoveries("torchrun", Path(folder), running, kills, random.Random(seed))


def train(work: Path) -> None:
    """One rank: DDP, and rank 0 writes a checkpoint after every step."""
    dist.init_process_group("gloo")
    rank, world, log = dist.get_rank(), world_name(), ProgressLog(work)
    workload = Workload()
    checkpoint = work / "checkpoint.pt"
    first_step = workload.load(checkpoint) if checkpoint.exists() else 0
    ddp = DistributedDataParallel(workload.model)
    for step in count(first_step):
        log.write("begin", step=step, rank=rank, world=world)
        workload.ddp_step(ddp, step)
        log.write("done", step=step, rank=rank, world=world, microbatches=MICROBATCHES)
        if rank == 0:
            workload.save(checkpoint, next_step=step + 1)


if __name__ == "__main__":
    main(measure, train)
