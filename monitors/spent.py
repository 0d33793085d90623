"""What a rank has spent its time on: sums that only grow, so two of them say what lies between, and what is usual."""

from collections import deque
from dataclasses import dataclass, replace

from .consensus import median_and_scale
from .stragglers import Times

# Of so many of the newest microbatches the median is what is usual: pauses of some of them do not show.
NEWEST = 16


@dataclass(frozen=True)
class Spent:
    """On training steps, since the rank began. A message that is lost loses nothing: the next one says it as well.

    Attributes:
        microbatches: that it computed.
        compute: seconds of their forward and backward.
        data: seconds of the waits for their batches.
        steps: that it reduced to the end.
        reduction: seconds from the end of its own work until these were decided: the exchange, and the wait for those
            who come to it later.
        usual_compute, usual_data: medians of the newest microbatches, in seconds; 0 before there are any.
    """

    microbatches: int = 0
    compute: float = 0.0
    data: float = 0.0
    steps: int = 0
    reduction: float = 0.0
    usual_compute: float = 0.0
    usual_data: float = 0.0

    def since(self, before: "Spent") -> Times:
        """What is usual now, and what the end of one step took from ``before`` on."""
        steps = self.steps - before.steps
        exchange = (self.reduction - before.reduction) / steps if steps > 0 else 0.0
        # What a damaged message says must not end who reads it.
        return Times(max(0.0, self.usual_compute), max(0.0, self.usual_data), max(0.0, exchange))

    def seconds_since(self, before: "Spent") -> float:
        """The mean of a microbatch from ``before`` on, its data and all pauses included.

        Raises:
            ValueError: nothing was computed in between.
        """
        count = self.microbatches - before.microbatches
        if count < 1:
            raise ValueError(f"{self.microbatches} microbatches now and {before.microbatches} before: nothing to time")
        return max(0.0, self.compute - before.compute + self.data - before.data) / count


class Tally:
    """Keeps count where it is spent.

    Attributes:
        spent: up to the last step that was reduced; replaced as a whole, so that other threads may read it.
    """

    def __init__(self) -> None:
        self.spent = Spent()
        self._newest: deque[tuple[float, float]] = deque(maxlen=NEWEST)

    def step(self, microbatches: list[tuple[float, float]], reduction: float) -> None:
        """One more step.

        Args:
            microbatches: seconds of computing each, and of waiting for its batch.
            reduction: seconds from the end of the last one until the step was decided.
        """
        self._newest.extend(microbatches)
        computes, waits = [compute for compute, _ in self._newest], [wait for _, wait in self._newest]
        spent = self.spent
        self.spent = replace(
            spent,
            microbatches=spent.microbatches + len(microbatches),
            compute=spent.compute + sum(compute for compute, _ in microbatches),
            data=spent.data + sum(wait for _, wait in microbatches),
            steps=spent.steps + 1,
            reduction=spent.reduction + reduction,
            usual_compute=median_and_scale(computes)[0] if computes else 0.0,
            usual_data=median_and_scale(waits)[0] if waits else 0.0,
        )
