"""The course that a run has taken: what its stability monitors have seen, and what is different since it went back."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from ...conf.schedule import BatchSchedule
from ...monitors.health import Health
from ...policies import changes
from ...policies.changes import Changes


@dataclass
class Course:
    """A part of the state of a run, the same on every rank.

    Attributes:
        health: what was seen.
        changes: what is different, and since when.
    """

    health: Health = field(default_factory=Health)
    changes: Changes = ()

    def passed_over(self, schedule: BatchSchedule, step: int) -> int:
        """Microbatches whose data is passed over before this step."""
        windows = changes.skipped(self.changes, step)
        return sum(schedule.before(first + steps) - schedule.before(first) for first, steps in windows)

    def watch_rates(self, optimizers: Iterable[torch.optim.Optimizer], step: Callable[[], int]) -> None:
        """From now on optimizers use rates that go by the changes; schedulers and what is saved see none of it.

        Args:
            step: number of the step under way.
        """

        def before(optimizer: torch.optim.Optimizer, *_: object) -> None:
            factor = changes.learning_rate(self.changes, step())
            kept.append([group["lr"] for group in optimizer.param_groups])
            if factor != 1:
                for group in optimizer.param_groups:
                    group["lr"] = group["lr"] * factor

        def after(optimizer: torch.optim.Optimizer, *_: object) -> None:
            for group, rate in zip(optimizer.param_groups, kept.pop(), strict=True):
                group["lr"] = rate

        kept: list[list[Any]] = []
        for optimizer in optimizers:
            optimizer.register_step_pre_hook(before)
            optimizer.register_step_post_hook(after)
