"""Ray Train v2: the whole worker group is started again and reads the checkpoint of the last step.

Run alone: ``python -m everstep.benchmarks.peers.ray_train --kills 3``
"""

import random
import tempfile
from itertools import count
from pathlib import Path
from typing import Any

import ray
import torch.distributed as dist

from .common import PeerRecovery, main
from .kills import jobs, recoveries
from .progress import ProgressLog
from .workload import MICROBATCHES, RANKS, Workload, world_name

MODULE = "everstep.benchmarks.peers.ray_train"


def measure(kills: int, seed: int) -> list[PeerRecovery]:
    """Kill one of four workers ``kills`` times in one run of ``TorchTrainer``."""
    with tempfile.TemporaryDirectory() as folder, jobs(Path(folder)) as running:
        running.start_module(MODULE, "--train-in", folder, RAY_TRAIN_V2_ENABLED="1")
        return recoveries("Ray Train", Path(folder), running, kills, random.Random(seed))


def train(work: Path) -> None:
    """The driver: a Ray of its own, and a trainer that forgives every failure."""
    from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    # More logical than real CPUs, as the other peers use them; one is the controller's.
    ray.init(address="local", num_cpus=RANKS + 1, include_dashboard=False)
    TorchTrainer(
        train_loop,
        train_loop_config={"work": str(work)},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=RANKS),
        run_config=RunConfig(
            name="peer",
            storage_path=str(work / "storage"),
            failure_config=FailureConfig(max_failures=-1),
            checkpoint_config=CheckpointConfig(num_to_keep=2),
        ),
    ).fit()


def train_loop(config: dict[str, Any]) -> None:
    """One worker: DDP, and every step is reported with a checkpoint of rank 0."""
    from ray.train import Checkpoint, get_checkpoint, report
    from ray.train.torch import prepare_model

    rank, world, log = dist.get_rank(), world_name(), ProgressLog(Path(config["work"]))
    workload = Workload()
    first_step = 0
    if checkpoint := get_checkpoint():
        with checkpoint.as_directory() as folder:
            first_step = workload.load(Path(folder) / "checkpoint.pt")
    ddp = prepare_model(workload.model)
    for step in count(first_step):
        log.write("begin", step=step, rank=rank, world=world)
        workload.ddp_step(ddp, step)
        log.write("done", step=step, rank=rank, world=world, microbatches=MICROBATCHES)
        # Inside the working folder, since a killed worker clears nothing away.
        with tempfile.TemporaryDirectory(dir=config["work"]) as folder:
            if rank == 0:
                workload.save(Path(folder) / "checkpoint.pt", next_step=step + 1)
            report({"step": step}, checkpoint=Checkpoint.from_directory(folder) if rank == 0 else None)


if __name__ == "__main__":
    main(measure, train)
