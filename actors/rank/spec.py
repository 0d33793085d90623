"""What a rank is told at its start. Loads no torch: the controller makes these."""

from dataclasses import dataclass
from typing import Any

from ...conf.elastic import ElasticConfig
from ...policies.world import Seat


@dataclass(frozen=True)
class RankSpec:
    """Everything that a rank must know to start.

    Attributes:
        controller: host and port of the control connection.
        token: the run's secret.
        max_world: most ranks that will ever reduce together.
        weight_unit: what the weights of losses count.
        trace: folder for the lines of ``Trace``, None for none.
    """

    run: str
    incarnation: str
    seat: Seat
    controller: tuple[str, int]
    token: str
    elastic: ElasticConfig
    max_world: int
    config: Any = None
    node: str = ""
    device: str = "cpu"
    threads: int = 1
    weight_unit: str = "weight"
    trace: str | None = None
