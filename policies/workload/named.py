"""Workload policies by the names that a configuration uses."""

from collections.abc import Callable, Mapping

from .adaptive import AdaptiveWorld
from .assignment import WorkloadPolicy
from .balanced import Balanced
from .versatile import Versatile

# ``Weighted`` is not among them: it needs measured speeds.
_POLICIES: Mapping[str, Callable[[], WorkloadPolicy]] = {
    "balanced": Balanced,
    "versatile": Versatile,
    "adaptive_world": AdaptiveWorld,
}


def workload_policy(name: str) -> WorkloadPolicy:
    """The policy of this name. Not all are exact: ``policy.exact`` tells.

    Raises:
        ValueError: no policy has this name.
    """
    if name not in _POLICIES:
        raise ValueError(f"unknown workload policy {name!r}; use one of: {', '.join(_POLICIES)}")
    return _POLICIES[name]()
