"""What a simulated run came to."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from .account import Cause

if TYPE_CHECKING:
    from .engine import Engine

_HOUR = 3600.0


@dataclass(frozen=True)
class Outcome:
    """What a simulated run came to.

    Attributes:
        end: how it ended, in one line.
        elapsed: virtual seconds.
        seconds: the same by what they were spent on.
        steps: committed ones that were not undone.
        tokens: that these trained on.
        ideal_tokens: that the first world would have trained on in the same time, undisturbed.
        gpu_hours: of all ranks that lived, spares included.
        failures: losses and slowdowns by their source; only those that hit somebody.
        remedies: recoveries by what was done.
        lost_microbatches: that were computed again because their rank died.
        redone_microbatches: of steps that were undone.
        fewest: smallest world, in replicas.
        events: that the machine heard.
    """

    end: str
    elapsed: float
    seconds: Mapping[str, float]
    steps: int
    tokens: int
    ideal_tokens: float
    gpu_hours: float
    failures: Mapping[str, int]
    remedies: Mapping[str, int]
    lost_microbatches: int
    redone_microbatches: int
    fewest: int
    events: int

    @property
    def goodput(self) -> float:
        """The share of ideal training: tokens against those of the first world undisturbed."""
        return self.tokens / self.ideal_tokens if self.ideal_tokens else 0.0

    @property
    def effective_throughput(self) -> float:
        """Tokens per GPU-hour of ranks that lived."""
        return self.tokens / self.gpu_hours if self.gpu_hours else 0.0

    def document(self) -> dict[str, object]:
        """For a JSON file."""
        return {**asdict(self), "goodput": self.goodput, "effective_throughput": self.effective_throughput}

    @classmethod
    def of(cls, engine: "Engine") -> "Outcome":
        """Of a run that is over."""
        simulation, account = engine.simulation, engine.training.account
        spent = account.seconds()
        per_microbatch = simulation.batch.tokens_per_microbatch
        per_step = simulation.batch.microbatches * per_microbatch
        state = engine.state
        end = state.error or (str(state.phase) if state.phase.ended else f"{state.phase} at the end of the time")
        return cls(
            end=end,
            elapsed=engine.now,
            seconds={str(cause): spent[cause] for cause in Cause},
            steps=account.steps,
            tokens=account.microbatches * per_microbatch,
            ideal_tokens=engine.now / engine.training.ideal * per_step,
            gpu_hours=engine.fleet.count(engine.now) * simulation.fleet.gpus_per_rank / _HOUR,
            failures=dict(sorted(engine.failures.items())),
            remedies=dict(sorted(engine.remedies.items())),
            lost_microbatches=sum(len(record.lost_microbatches) for record in state.recoveries),
            redone_microbatches=account.microbatches_redone,
            fewest=engine.fewest,
            events=engine.heard,
        )
