"""A sentinel as a Ray actor. It sees the end of its raylet itself, since others must end before it does."""

from ..raylet import raylet_pid
from .sentinel import Sentinel, SentinelSpec


class SentinelActor:
    """Made a Ray actor by the cluster; ``run`` takes as long as the sentinel lives."""

    def run(self, spec: SentinelSpec) -> None:
        """Watch to the end."""
        Sentinel(spec, raylet_pid()).run()

    def alive(self) -> bool:
        """Answers only while the actor lives and ``run`` has returned."""
        return True
