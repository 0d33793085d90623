"""One check of everything that needs a GPU: what ``exact`` costs there, copies beside the step, a run over NCCL.

Run on a machine with one CUDA device, in under five minutes: ``python -m everstep.benchmarks.device_check``. Without
one it says so and ends well; ``--device cpu`` goes through the same motions on a small scale.
"""

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

# Read by cuBLAS when its first handle is made, and by torch when determinism is first asked for.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from everstep.actors.messages import StoreAddress
from everstep.actors.rank.communicator import Communicator, build
from everstep.actors.rank.environment import prepare
from everstep.actors.rank.gradients import GradientSum
from everstep.actors.rank.rng import seed_everything
from everstep.actors.rank.signature import weights_sha256
from everstep.benchmarks.common import Row, median_row, parser, publish
from everstep.benchmarks.device_copy import copy_rows
from everstep.benchmarks.killed_run import run_example
from everstep.conf.elastic import ElasticConfig, Reduction
from everstep.examples.gpt import GPT, GPTConfig, next_token_loss
from everstep.orchestrator.store import open_store
from everstep.policies.world import Generation
from torch import Tensor, nn
from torch.distributed import ReduceOp

MICROBATCHES = 4
WARM_UP = 3
_HOST = "127.0.0.1"


@dataclass(frozen=True)
class Size:
    """What is computed, and how often."""

    model: GPTConfig
    sequences: int
    rounds: int


SIZES = {
    "cuda": Size(GPTConfig(block=1024, layers=12, width=1024, heads=16), sequences=4, rounds=15),
    "cpu": Size(GPTConfig(block=64), sequences=1, rounds=3),
}


class Work:
    """The example's model and one batch on the device; on a GPU the forward is in bfloat16."""

    def __init__(self, device: torch.device, seed: int, *, mixed: bool) -> None:
        size = SIZES[device.type]
        seed_everything(seed)
        self.device = device
        self.mixed = mixed
        self.model: nn.Module = GPT(size.model).to(device)
        shape = (size.sequences, size.model.block + 1)
        self.windows = torch.randint(size.model.vocab_size, shape, device=device)

    def backward(self) -> None:
        """One microbatch."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.mixed):
            loss = next_token_loss(self.model, self.windows)
        loss.backward()

    @property
    def parameters(self) -> dict[str, Tensor]:
        return dict(self.model.named_parameters())


def cost_rows(device: torch.device, communicator: Communicator, seed: int) -> list[Row]:
    """Milliseconds and memory of all microbatches of a step and their sum, in a world of one."""
    elastic = ElasticConfig(MICROBATCHES, snapshot_every=0)

    def plain(work: Work) -> Callable[[], None]:
        def step() -> None:
            work.model.zero_grad()
            for _ in range(MICROBATCHES):
                work.backward()

        return step

    def summed(work: Work, reduction: Reduction) -> Callable[[], None]:
        size = int(elastic.bucket_mib * 2**20)
        gradients = GradientSum(work.parameters, reduction, MICROBATCHES, size, max_world=1)

        def step() -> None:
            gradients.reset()
            for _ in range(MICROBATCHES):
                with gradients.backward():
                    work.backward()
                gradients.fold()
            gradients.exchange(communicator)
            gradients.gather(communicator, MICROBATCHES)
            gradients.publish(gradients.touched())

        return step

    seconds: dict[str, list[float]] = {}
    memory: dict[str, int] = {}
    sides: dict[str, Callable[[Work], Callable[[], None]]] = {
        "plain": plain,
        "float": lambda work: summed(work, Reduction.FLOAT),
        # From here on with the deterministic kernels that ``exact`` asks for.
        "plain_deterministic": plain,
        "exact": lambda work: summed(work, Reduction.EXACT),
    }
    for name, side in sides.items():
        if name == "plain_deterministic":
            prepare(device, 1, Reduction.EXACT)
        work = Work(device, seed, mixed=device.type == "cuda")
        seconds[name], memory[name] = _timed(side(work), device)
        count = sum(parameter.numel() for parameter in work.parameters.values())

    def ratio(one: str, other: str) -> Row:
        pairs = zip(seconds[one], seconds[other], strict=True)
        return median_row(f"{one}_vs_{other}", [b / a for a, b in pairs], "ratio of speed", seed)

    return [
        *(median_row(f"{name}_step", [1000 * s for s in taken], "ms", seed) for name, taken in seconds.items()),
        ratio("float", "plain"),
        ratio("exact", "plain_deterministic"),
        ratio("exact", "float"),
        *(
            Row(f"{name}_extra_bytes_per_parameter", (memory[name] - memory["plain"]) / count, "bytes")
            for name in ("float", "exact")
            if device.type == "cuda"
        ),
    ]


def determinism_rows(device: torch.device, seed: int, *, compiled: bool) -> list[Row]:
    """Whether a microbatch's gradients have the same bits each time, with the kernels that ``exact`` asks for."""
    prepare(device, 1, Reduction.EXACT)

    def repeats(mixed: bool, compile_: bool) -> float:
        digests = set()
        for _ in range(WARM_UP):
            work = Work(device, seed, mixed=mixed)
            if compile_:
                work.model.compile()
            work.backward()
            digests.add(weights_sha256({name: p.grad for name, p in work.parameters.items() if p.grad is not None}))
        return float(len(digests) == 1)

    rows = [
        Row("kernels_repeat_float32", repeats(False, False), "1: same bits"),
        Row("kernels_repeat_bfloat16", repeats(True, False), "1: same bits"),
    ]
    return [*rows, Row("kernels_repeat_compiled", repeats(False, True), "1: same bits")] if compiled else rows


def communicator_rows(device: torch.device) -> tuple[Communicator, list[Row]]:
    """Two generations of a group of one: build, every collective that a step uses, close. Returns the second group."""
    store, port = open_store(_HOST)
    rows = []
    for number in (1, 2):
        started = time.monotonic()
        communicator = _build(device, port, Generation(1, number))
        built = time.monotonic()
        right = _collectives_right(communicator, device)
        used = time.monotonic()
        if number == 1:
            communicator.close()
            rows.append(Row("group_close", 1000 * (time.monotonic() - used), "ms"))
        rows += [
            Row(f"group_{number}_build", 1000 * (built - started), "ms"),
            Row(f"group_{number}_first_collectives", 1000 * (used - built), "ms"),
            Row(f"group_{number}_right", float(right), "1: all sums and parts right"),
        ]
    del store
    return communicator, rows


def copying_rows(device: torch.device, seed: int) -> list[Row]:
    """A snapshot of model and optimizer after every step, copied beside the next one."""
    work = Work(device, seed, mixed=device.type == "cuda")
    work.backward()
    return copy_rows(work.model, device, SIZES[device.type].rounds, seed)


def product_rows(device: torch.device, seed: int) -> list[Row]:
    """The example on one rank of the local cluster: twice the same bits, and what a step takes."""
    gpu = device.type == "cuda"
    shape = ["scaling.ranks=1", f"scaling.use_gpu={str(gpu).lower()}"]
    runs = {
        name: run_example(name, seed, "local", overrides=[*shape, f"elastic.reduction={reduction}"])
        for name, reduction in (("exact", Reduction.EXACT), ("again", Reduction.EXACT), ("float", Reduction.FLOAT))
    }
    steps = {}
    for name, run in runs.items():
        (trace,) = run.traces.values()
        ends = [trace.decided[step] for step in sorted(trace.decided)][1:]
        steps[name] = [1000 * (later - sooner) for sooner, later in pairwise(ends)]
    same = runs["exact"].metrics["weights_sha256"] == runs["again"].metrics["weights_sha256"]
    return [
        Row("run_repeats", float(same), "1: same weights twice"),
        median_row("run_exact_step", steps["exact"] + steps["again"], "ms", seed),
        median_row("run_float_step", steps["float"], "ms", seed),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line. Exit code 1 says that something was not right."""
    made = parser(__doc__)
    made.add_argument("--device", choices=list(SIZES), default="cuda")
    made.add_argument("--compile", action="store_true", help="also look at the kernels of torch.compile")
    options = made.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device: nothing to check")
        return

    torch.set_num_threads(1)
    device = torch.device(options.device)
    communicator, rows = communicator_rows(device)
    rows += cost_rows(device, communicator, options.seed)
    communicator.close()
    rows += determinism_rows(device, options.seed, compiled=options.compile)
    rows += copying_rows(device, options.seed)
    rows += product_rows(device, options.seed)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    publish(f"Device check on {name}", rows, options, cuda=torch.version.cuda, device=name)
    wrong = [row.name for row in rows if row.unit.startswith("1:") and row.value != 1]
    if wrong:
        sys.exit(f"not as it should be: {', '.join(wrong)}")


def _build(device: torch.device, port: int, generation: Generation) -> Communicator:
    return build(
        StoreAddress(_HOST, port, f"device-check/{generation}"),
        generation,
        rank=0,
        size=1,
        host=_HOST,
        device=device,
        collective_timeout=30.0,
        build_timeout=30.0,
    )


def _collectives_right(communicator: Communicator, device: torch.device) -> bool:
    source = torch.arange(1024.0, device=device)
    reduced, exchanged, gathered = source.clone(), torch.empty_like(source), torch.empty_like(source)
    pending = [
        communicator.all_reduce(reduced, ReduceOp.SUM),
        communicator.all_to_all(exchanged, source),
        communicator.all_gather(gathered, source),
    ]
    for collective in pending:
        collective.wait()
    _synchronise(device)
    return all(bool(torch.equal(result, source)) for result in (reduced, exchanged, gathered))


def _timed(step: Callable[[], None], device: torch.device) -> tuple[list[float], int]:
    """Seconds of each round after a warm-up, and the most memory that the device held."""
    for _ in range(WARM_UP):
        step()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    taken = []
    for _ in range(SIZES[device.type].rounds):
        _synchronise(device)
        started = time.monotonic()
        step()
        _synchronise(device)
        taken.append(time.monotonic() - started)
    return taken, torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
