"""Which microbatches of a step in progress every member of the next world computes."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
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
    step, unit, attempt = position.step, position.unit, position.attempt
    there = {
        name: held
        for name, held in reports.items()
        if held.work is not None
        and held.position.step == step
        and held.position.unit == unit
        and held.position.attempt == attempt
    }
    work = next((held.work for held in there.values()), None)
    if work is None:
        # Whoever comes to it plans for itself, in the new world.
        return Shared()
    policy = suited(state.settings.workload, work.kind)
    replicas = {replica: tuple(one.incarnation for one in group) for replica, group in world.groups.items()}
    for name in sources:
        there.pop(name, None)
    said = {replica: [there[name] for name in names if name in there] for replica, names in replicas.items()}
    progress = {replica: _progress(reports) for replica, reports in said.items()}
    held = progress.values()
    kept = frozenset[int]().union(*(one.done for one in held), *(one.owed for one in held))
    # What a survivor would have begun by itself is given out too, but it is not lost.
    fresh = [
        replica
        for replica, names in replicas.items()
        if not said[replica] and not any(name in sources for name in names)
    ]
    planned = _planned(state, policy, work) if fresh else {}
    coming = {replica: frozenset(planned.get(replica, ())) - kept for replica in fresh}
    if not policy.exact:
        # It gives nothing out, and is to drop only what the dead had.
        progress |= {replica: Progress(owed=indices) for replica, indices in coming.items()}
    leavers = {member.seat.replica for name in leaving if (member := world.member(name)) is not None}
    idle = {replica for replica in leavers if progress[replica] == Progress()}
    assignment = policy.given(speeds).extend(
        {each: held for each, held in progress.items() if each not in idle}, work.microbatches
    )
    lost = frozenset(range(work.microbatches)).difference(kept, *coming.values())
    indices: dict[str, tuple[int, ...]] = {}
    for replica, names in replicas.items():
        indices |= dict.fromkeys(names, () if replica in idle else assignment.computed_by(replica))
    shadows: dict[str, str] = {}
    for shadow, repeated in assignment.shadows.items():
        shadows |= zip(replicas[shadow], replicas[repeated], strict=True)
    return Shared(work, indices, shadows, frozenset(assignment.dropped), tuple(sorted(lost)))


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
    # One of them may never have heard of what the others repeat; it has nothing then.
    repeats = next((held.repeats for held in reports if held.repeats is not None), None)
    done, owed = reports[0].done, reports[0].owed
    # They mostly say the same.
    if all(held.done == done and held.owed == owed for held in reports):
        return Progress(done, owed - done, repeats)
    kept = frozenset.intersection(*(held.done for held in reports))
    return Progress(kept, frozenset().union(*((held.done | held.owed) for held in reports)) - kept, repeats)
