"""Which end of a link is slow, where process groups overlap: one that is in several slow groups and in no healthy one.

SCOUT's rule (arXiv 2608.11034). A group is compared with its own past over the same traffic, so groups of unlike sizes
and resources say the same thing.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from .consensus import Agree, Attributed, Inconclusive, Verdict

# How many times its own past a group takes.
SLOW = 1.5
HEALTHY = 1.15
# Slow groups in which a blamed end must be, and rounds in a row in which that must be so.
GROUPS = 2
CONFIRM = 3


@dataclass(frozen=True)
class GroupTime:
    """One process group in one round.

    Attributes:
        members: ranks.
        resource: what it communicates over: "nvlink", "tcp", ...
        seconds: that its collectives took.
        usual: what the same ones took in healthy rounds.
        complete: whether all members were measured.
    """

    members: frozenset[int]
    resource: str
    seconds: float
    usual: float
    complete: bool = True

    def __post_init__(self) -> None:
        if not (self.usual > 0 and self.seconds >= 0):
            raise ValueError(
                f"the group of {sorted(self.members)} took {self.seconds} s and usually {self.usual} s; the second "
                "must be above 0"
            )

    @property
    def ratio(self) -> float:
        """How many times its own past it takes."""
        return self.seconds / self.usual


@dataclass(frozen=True)
class Seen:
    """By (rank, resource), in how many rounds in a row it was to blame."""

    streaks: Mapping[tuple[int, str], int] = field(default_factory=dict)


def suspects(groups: Sequence[GroupTime], stragglers: Collection[int] = ()) -> frozenset[tuple[int, str]]:
    """(rank, resource) of the ends that are in at least two unlike slow groups and in no healthy one.

    Args:
        groups: of one round. Incomplete ones, and those with a rank that is slow at computing, say nothing of links.
        stragglers: ranks that are slow at computing.
    """
    told = [group for group in groups if group.complete and not group.members & set(stragglers)]
    found = set()
    for resource in {group.resource for group in told}:
        here = [group for group in told if group.resource == resource]
        slow = {group.members for group in here if group.ratio >= SLOW}
        healthy = frozenset[int]().union(*(group.members for group in here if group.ratio <= HEALTHY))
        for rank in frozenset[int]().union(*slow) - healthy:
            if sum(rank in members for members in slow) >= GROUPS:
                found.add((rank, resource))
    return frozenset(found)


def observe(
    seen: Seen, groups: Sequence[GroupTime], stragglers: Collection[int] = (), confirm: int = CONFIRM
) -> tuple[Seen, Verdict]:
    """One more round of all groups.

    Returns:
        What is known now, and a verdict: ranks that were to blame in ``confirm`` rounds in a row; inconclusive if
        groups are slow and nobody is to blame.
    """
    now = suspects(groups, stragglers)
    seen = Seen({end: seen.streaks.get(end, 0) + 1 for end in now})
    blamed = sorted(end for end, streak in seen.streaks.items() if streak >= confirm)
    evidence = dict(enumerate(groups))
    if blamed:
        ranks = tuple(sorted({rank for rank, _ in blamed}))
        told = ", ".join(f"rank {rank} over {resource}" for rank, resource in blamed)
        return seen, Attributed(ranks, f"all groups with {told} are slow, and those without are not", evidence)
    slow = [group for group in groups if group.complete and group.ratio >= SLOW]
    if slow and not now and not any(group.members & set(stragglers) for group in slow):
        what = "; ".join(f"ranks {sorted(group.members)}: {group.ratio:.2f} times" for group in slow)
        return seen, Inconclusive(f"groups are slow ({what}) that have no end in common", evidence)
    return seen, Agree(evidence)
