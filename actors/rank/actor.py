"""A training rank as a Ray actor. Control does not pass through Ray: the actor only runs, and its end is heard."""

from dataclasses import replace

from ..raylet import end_with_raylet
from .spec import RankSpec


class RankActor:
    """Made a Ray actor by the cluster; ``run`` takes as long as the rank lives."""

    def run(self, spec: RankSpec, train: bytes) -> None:
        """Train to the end."""
        end_with_raylet()
        import ray
        from ray import cloudpickle

        from .process import RankProcess

        spec = replace(spec, node=ray.get_runtime_context().get_node_id())
        RankProcess(spec).run(cloudpickle.loads(train))

    def alive(self) -> bool:
        """Answers only while the actor lives and ``run`` has returned."""
        return True
