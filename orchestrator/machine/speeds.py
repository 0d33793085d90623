"""How fast replicas compute, after what their ranks have said of themselves."""

from collections.abc import Mapping

from ...policies.world import World
from .state import Rank


def speeds(ranks: Mapping[str, Rank], world: World) -> dict[int, float]:
    """Microbatches per second by replica; one of which nobody knows is left out.

    Only time in microbatches counts, so whoever waits is not slower for it. A replica is as fast as its slowest rank.
    """
    measured: dict[int, float] = {}
    for replica, group in world.groups.items():
        known = [ranks[member.incarnation] for member in group]
        if all(rank.computed and rank.busy > 0 for rank in known):
            measured[replica] = min(rank.computed / rank.busy for rank in known)
    return measured
