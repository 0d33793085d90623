"""Which microbatches of a step in progress every member of the next world computes."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from types import MappingProxyType

from ...actors.messages import Report
from ...policies.workload import WorkloadPolicy, suited
from ...policies.world import Position, Progress, Work, World
from .state import State


@dataclass(frozen=True)
class Shared:
    """The work of a position, given out.

    Attributes:
        work: None if nobody has come to it: then there are no indices, and everybody plans for itself.
        indices: by incarnation, all that the member computes.
        shadows: members that compute what another one computes, with whose.
        dropped: indices that nobody contributes.
        lost: indices that nobody holds or was about to compute.
    """

    work: Work | None = None
    indices: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    shadows: Mapping[str, str] = field(default_factory=dict)
    dropped: frozenset[int] = frozenset()
    lost: tuple[int, ...] = ()


def share(
    state: State,
    world: World,
    position: Position,
    reports: Mapping[str, Report],
    leaving: Collection[str] = (),
    sources: Collection[str] = (),
    speeds: Mapping[int, float] = MappingProxyType({}),
) -> Shared:
    """What the members of ``world`` do at ``position``, after what they have reported.

    Args:
        leaving: members that go on with what they have, and are given nothing if they have nothing.
        sources: members that take up the position with nothing done, whatever they have reported.
        speeds: microbatches per second by replica, for a policy that goes by them.
    """
    there = {name: held for name, held in reports.items() if held.position == position and held.work is not None}
    work = next((held.work for held in there.values()), None)
    if work is None:
        # Whoever comes to it plans for itself, in the new world.
        return Shared()
    policy = suited(state.settings.workload, work.kind)
    replicas = {
        replica: tuple(member.incarnation for member in group)
        for replica, group in groupby(world.members, key=lambda member: member.seat.replica)
    }
    progress = {
        replica: _progress([there[name] for name in names if name in there and name not in sources])
        for replica, names in replicas.items()
    }
    kept = {index for held in progress.values() for index in held.done | held.owed}
    # What a survivor would have begun by itself is given out too, but it is not lost.
    planned = _planned(state, policy, work)
    coming = {
        replica: frozenset(planned.get(replica, ())) - kept
        for replica, names in replicas.items()
        if not any(name in there or name in sources for name in names)
    }
    if not policy.exact:
        # It gives nothing out, and is to drop only what the dead had.
        progress |= {replica: Progress(owed=indices) for replica, indices in coming.items()}
    idle = {
        replica
        for replica, names in replicas.items()
        if progress[replica] == Progress() and any(name in leaving for name in names)
    }
    assignment = policy.given(speeds).extend(
        {each: held for each, held in progress.items() if each not in idle}, work.microbatches
    )
    lost = set(range(work.microbatches)) - kept - {index for indices in coming.values() for index in indices}
    places = {member.seat: member.incarnation for member in world.members}
    return Shared(
        work,
        {
            member.incarnation: () if member.seat.replica in idle else assignment.computed_by(member.seat.replica)
            for member in world.members
        },
        {
            member.incarnation: places[replace(member.seat, replica=assignment.shadows[member.seat.replica])]
            for member in world.members
            if member.seat.replica in assignment.shadows
        },
        frozenset(assignment.dropped),
        tuple(sorted(lost)),
    )


def _planned(state: State, policy: WorkloadPolicy, work: Work) -> Mapping[int, tuple[int, ...]]:
    """What every replica of the old world does of work that it begins by itself."""
    assert state.world is not None
    speeds, leaving = (state.opened.speeds, state.opened.leaving) if state.opened else ({}, frozenset())
    idle = {member.seat.replica for name in leaving if (member := state.world.member(name)) is not None}
    staying = [replica for replica in state.world.replicas if replica not in idle]
    return policy.given(speeds).plan(staying, work.microbatches).indices


def _progress(reports: Sequence[Report]) -> Progress:
    """What a replica has, after what those of its ranks say that have come to the position."""
    if not reports:
        return Progress()
    done = frozenset.intersection(*(held.done for held in reports))
    held = frozenset.union(*(held.done | held.owed for held in reports))
    return Progress(done, held - done, reports[0].repeats)
