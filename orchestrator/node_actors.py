"""How the actors that each node has are started on Ray: vaults and sentinels."""

from collections.abc import Mapping
from typing import Any

from .names import NAMESPACE, rank_name


def options(run: str, incarnation: str, node: str, runtime_env: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Of an actor that belongs to one node and ends with it: found by its name, not restarted by Ray, no CPU's."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return {
        "name": rank_name(run, incarnation),
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "max_restarts": 0,
        "max_task_retries": 0,
        "num_cpus": 0,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False),
        "runtime_env": dict(runtime_env) if runtime_env else None,
    }
