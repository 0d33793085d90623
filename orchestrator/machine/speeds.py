"""How fast replicas compute, after what their ranks have said of themselves."""

from collections.abc import Mapping
from statistics import median
from types import MappingProxyType

from ...policies.world import World
from .state import Rank
from .watch import Rounds


def speeds(
    ranks: Mapping[str, Rank], world: World, newest: Mapping[str, float] = MappingProxyType({})
) -> dict[int, float]:
    """Microbatches per second by replica; one of which nobody knows is left out.

    Only time in microbatches counts, so whoever waits is not slower for it. A replica is as fast as its slowest rank.

    Args:
        newest: seconds that a microbatch took of late, by rank; of others it is the mean of all that they computed.
    """
    measured: dict[int, float] = {}
    for replica, group in world.groups.items():
        known = [ranks[member.incarnation] for member in group]
        late = [newest[rank.incarnation] for rank in known if newest.get(rank.incarnation)]
        if len(late) == len(known):
            measured[replica] = 1 / max(late)
        elif all(rank.computed and rank.busy > 0 for rank in known):
            measured[replica] = min(rank.computed / rank.busy for rank in known)
    return measured


def recent(rounds: Rounds) -> dict[str, float]:
    """Seconds that a microbatch of each member took of late: one pause is no slowness."""
    return {name: median(held) for name, held in rounds.seconds.items()}
