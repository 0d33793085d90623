"""Workload policies by the names that a configuration uses."""

from collections.abc import Callable, Mapping

from .adaptive import AdaptiveWorld
from .assignment import WorkloadPolicy
from .balanced import Balanced
from .versatile import Versatile
from .weighted import Weighted

# From the number of replicas that the run begins with.
_POLICIES: Mapping[str, Callable[[int], WorkloadPolicy]] = {
    "balanced": lambda replicas: Balanced(),
    "versatile": lambda replicas: Versatile(),
    "weighted": lambda replicas: Weighted(),
    "adaptive_world": AdaptiveWorld,
}


def workload_policy(name: str, replicas: int = 1) -> WorkloadPolicy:
    """The policy of this name. Not all are exact: ``policy.exact`` tells.

    Args:
        replicas: that the run begins with.

    Raises:
        ValueError: no policy has this name.
    """
    if name not in _POLICIES:
        raise ValueError(f"unknown workload policy {name!r}; use one of: {', '.join(_POLICIES)}")
    return _POLICIES[name](replicas)
