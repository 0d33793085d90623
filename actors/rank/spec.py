"""What a rank is told at its start. Loads no torch: the controller makes these."""

from dataclasses import dataclass
from typing import Any

from ...conf.elastic import ElasticConfig
from ...policies.world import Seat
from ..directory import Directory


@dataclass(frozen=True)
class RankSpec:
    """Everything that a rank must know to start.

    Attributes:
        seat: its place in the first world; None if it is parked until it is given one.
        directory: where its controller is found; the cluster that starts the rank says it.
        token: the run's secret.
        max_world: ranks that the run starts with; a larger world reduces too, with one more copy.
        weight_unit: what the weights of losses count.
        trace: folder for the lines of ``Trace``, None for none.
        saved: where checkpoints lie, as ``Storage`` reads it; None if there are none.
    """

    run: str
    incarnation: str
    seat: Seat | None
    token: str
    elastic: ElasticConfig
    max_world: int
    config: Any = None
    node: str = ""
    device: str = "cpu"
    threads: int = 1
    weight_unit: str = "weight"
    trace: str | None = None
    saved: str | None = None
    directory: Directory | None = None

    @property
    def number(self) -> int:
        """Of the rank, in the order in which ranks are started: incarnations begin with it."""
        return int(self.incarnation.partition("-")[0])
