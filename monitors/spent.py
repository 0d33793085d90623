"""What a rank has spent its time on, as sums that only grow: two of them say what lies between."""

from dataclasses import dataclass, replace

from .stragglers import Times


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
    """

    microbatches: int = 0
    compute: float = 0.0
    data: float = 0.0
    steps: int = 0
    reduction: float = 0.0

    def computed(self, compute: float, data: float) -> "Spent":
        """One more microbatch, in seconds."""
        count = self.microbatches + 1
        return replace(self, microbatches=count, compute=self.compute + compute, data=self.data + data)

    def reduced(self, seconds: float) -> "Spent":
        """One more step."""
        return replace(self, steps=self.steps + 1, reduction=self.reduction + seconds)

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(
            self.microbatches + other.microbatches,
            self.compute + other.compute,
            self.data + other.data,
            self.steps + other.steps,
            self.reduction + other.reduction,
        )

    def since(self, before: "Spent") -> Times:
        """What one microbatch, and the end of one step, took from ``before`` on.

        Raises:
            ValueError: nothing was computed in between.
        """
        count, steps = self.microbatches - before.microbatches, self.steps - before.steps
        if count < 1:
            raise ValueError(f"{self.microbatches} microbatches now and {before.microbatches} before: nothing to time")
        exchanged = (self.reduction - before.reduction) / steps if steps > 0 else 0.0
        taken = (self.compute - before.compute) / count, (self.data - before.data) / count, exchanged
        # What a damaged message says must not end who reads it.
        return Times(*(max(0.0, each) for each in taken))
