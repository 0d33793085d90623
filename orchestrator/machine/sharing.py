"""Which microbatches of a step in progress every member of the next world computes."""

from collections.abc import Mapping

from ...actors.messages import Report
from ...policies.world import Position, Progress, Work, World
from .state import State


def share(
    state: State, world: World, position: Position, reports: Mapping[str, Report]
) -> tuple[Work | None, dict[str, tuple[int, ...]], tuple[int, ...]]:
    """The work of ``position`` if somebody has come to it, its indices by incarnation, and the lost ones among them."""
    there = {name: held.work for name, held in reports.items() if held.position == position and held.work is not None}
    work = next(iter(there.values()), None)
    if work is None:
        # Whoever comes to it plans for itself, in the new world.
        return None, {}, ()
    assert state.world is not None
    policy = state.settings.workload
    seats = {member.seat.replica: member.incarnation for member in world.members if member.seat.coordinate == 0}
    progress = {
        replica: Progress(reports[name].done, reports[name].owed) if name in there else Progress()
        for replica, name in seats.items()
    }
    assignment = policy.extend(progress, work.microbatches)
    kept = {index for held in progress.values() for index in held.done | held.owed}
    # What a survivor would have begun by itself is given out too, but it is not lost.
    planned = policy.plan(state.world.replicas, work.microbatches).indices
    coming = {index for replica, name in seats.items() if name not in there for index in planned[replica]}
    lost = tuple(sorted(set(range(work.microbatches)) - kept - coming))
    indices = {member.incarnation: assignment.indices[member.seat.replica] for member in world.members}
    return work, indices, lost
