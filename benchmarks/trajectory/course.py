"""What all arms train, where they lose ranks, and what they leave behind."""

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from everstep.benchmarks.timeline import RankTrace
from everstep.conf.chaos import Fault, FaultPoint
from everstep.examples.gpt import GPT, GPTConfig
from everstep.examples.gpt_bytes import warm_up_cosine
from everstep.examples.text import ByteBlocks, prepare
from torch.optim.lr_scheduler import LambdaLR

SEQUENCES = 4
MODEL = GPTConfig(block=64, layers=2, width=64, heads=4)
# Several buckets, so that a loss can come between two of them.
BUCKET_MIB = 0.25
# A rank that is lost at one of these has computed all of its share, and a part of the sum is under way. Not
# ``in_transfer``, whose victim watches for the moment with all its CPU, which would be counted.
IN_REDUCTION = (FaultPoint.FIRST_BUCKET, FaultPoint.MIDDLE_BUCKET, FaultPoint.LAST_BUCKET)


@dataclass(frozen=True)
class Course:
    """One training, the same for all arms.

    Args:
        seed: of weights, data, dropout, and of who is lost.
        ranks: in the beginning; half of them are lost.
        steps: optimizer steps in all.
        every: steps from one loss to the next.

    Raises:
        ValueError: the training would end before the last loss.
    """

    seed: int
    ranks: int
    steps: int
    every: int

    def __post_init__(self) -> None:
        if self.steps <= (last := self.every * (self.ranks // 2)):
            raise ValueError(f"{self.steps} steps end before the last loss, which is in step {last}; take more")

    @property
    def microbatches(self) -> int:
        return 2 * self.ranks

    @property
    def tokens(self) -> int:
        """Of one microbatch."""
        return SEQUENCES * MODEL.block

    @property
    def faults(self) -> tuple[Fault, ...]:
        """One rank after another, each somewhere in a reduction."""
        rng = random.Random(self.seed)
        victims = rng.sample(range(self.ranks), self.ranks // 2)
        return tuple(
            Fault(self.every * number, victim, point=rng.choice(IN_REDUCTION))
            for number, victim in enumerate(victims, 1)
        )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Outcome:
    """What one arm left behind.

    Attributes:
        losses: mean loss of each step, as the step was committed.
        summed: microbatches in the committed steps.
        computed: microbatches that any rank computed to the end.
        cpu_s: user and system time of all processes, from the first step on, in seconds.
        starts_cpu_s: how much of it went into starting ranks again.
        weights: SHA-256 of the final weights, if known.
    """

    losses: tuple[float, ...]
    summed: int
    computed: int
    cpu_s: float
    starts_cpu_s: float = 0.0
    weights: str | None = None

    @property
    def wasted(self) -> int:
        """Microbatches that were computed once more, or for nothing."""
        return self.computed - self.summed

    def tokens_per_cpu_s(self, tokens: int, starts: bool = True) -> float:
        """Tokens in the committed steps for a second of CPU time.

        Args:
            tokens: of a microbatch.
            starts: whether what went into starting ranks again counts.
        """
        return self.summed * tokens / (self.cpu_s if starts else self.cpu_s - self.starts_cpu_s)


def build(course: Course) -> tuple[GPT, torch.optim.Optimizer, LambdaLR]:
    """Model, optimizer and schedule, from the random streams as they stand."""
    model = GPT(MODEL)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    return model, optimizer, LambdaLR(optimizer, warm_up_cosine(course.every, course.steps))


def dataset() -> ByteBlocks:
    """The text in sequences."""
    return ByteBlocks(prepare(), MODEL.block)


def computed(traces: Sequence[RankTrace]) -> int:
    """Microbatches, also those of ranks that died."""
    return sum(len(spans) for trace in traces for spans in trace.computed.values())
