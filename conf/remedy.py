"""What is done when a training becomes unstable, and what is different after everybody has gone back."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from .errors import ConfigError


class OnInstability(StrEnum):
    """What follows from an alarm of the stability monitors."""

    OBSERVE = "observe"
    HOLD = "hold"
    ROLLBACK = "rollback"
    STOP = "stop"


@dataclass(frozen=True)
class Remedy:
    """What is different from the step on to which everybody goes back because of an alarm; with several, all of it.

    Args:
        skip_steps: the data of so many steps is passed over.
        learning_rate: what every learning rate is multiplied with.
        switches: texts by name that the training function finds in ``ctx.switches``: a kernel for attention, say.
        times: how often; an alarm after that is only observed.

    Raises:
        ConfigError: a value that cannot work, in one line.
    """

    skip_steps: int = 0
    learning_rate: float = 1.0
    switches: dict[str, str] = field(default_factory=dict)
    times: int = 3

    def __post_init__(self) -> None:
        for name, low in (("skip_steps", 0), ("times", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < low:
                raise ConfigError(f"elastic.remedy.{name}={value!r} must be a whole number of at least {low}")
        rate = self.learning_rate
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < math.inf:
            raise ConfigError(f"elastic.remedy.learning_rate={rate!r} must be a factor above 0")
        held = self.switches
        if not isinstance(held, Mapping) or not all(isinstance(text, str) for pair in held.items() for text in pair):
            raise ConfigError(f"elastic.remedy.switches={held!r} must be texts by name")
        object.__setattr__(self, "switches", dict(held))

    @property
    def changes(self) -> bool:
        """Whether anything is different at all."""
        return bool(self.skip_steps or self.switches or self.learning_rate != 1)
