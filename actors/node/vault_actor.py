"""A vault as a Ray actor, pinned to its node: what it holds lies in the object store there, and is its own."""

from dataclasses import replace

from ..raylet import end_with_raylet
from .vault_process import VaultSpec


class VaultActor:
    """Made a Ray actor by the cluster; ``run`` takes as long as the vault lives."""

    def run(self, spec: VaultSpec) -> None:
        """Serve to the end of the run."""
        import ray

        end_with_raylet()
        from .vault_memory import ObjectStore
        from .vault_process import VaultProcess

        VaultProcess(replace(spec, host=ray.util.get_node_ip_address()), ObjectStore()).run()

    def alive(self) -> bool:
        """Answers only while the actor lives and ``run`` has returned."""
        return True
