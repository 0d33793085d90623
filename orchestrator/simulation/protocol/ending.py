"""How a simulated run may end: with success, or for a reason that is true."""

from typing import TYPE_CHECKING

from .checkers import Violation

if TYPE_CHECKING:
    from .simulation import Simulation


def check(simulation: "Simulation") -> None:
    """Look at a run that is over.

    Raises:
        Violation: it should not have ended like this.
    """
    state, checks, ranks = simulation.controller.state, simulation.checks, simulation.ranks
    checks.histories(ranks.values())
    if state.error is None:
        members = [ranks[member.incarnation] for member in state.members]
        checks.succeeded(members)
        simulation.corruption.ended(members)
        return
    if ("is poison" in state.error or "fails alike" in state.error) and not state.settings.skip_poison:
        return
    torn = any(kind in ("partition", "glitch") for kind, _ in simulation.diary.hits)
    if "nobody can be blamed" in state.error and torn:
        return
    if "ranks ended with different" in state.error and simulation.corruption.struck:
        return
    if "neither a snapshot nor a checkpoint" in state.error and simulation.corruption.forgotten:
        # Ranks were told to begin at the start, which a controller that knows nothing of it does not think of.
        return
    if "has outlived its controller" in state.error and not _holders(simulation):
        return
    scenario = simulation.scenario
    up = {name for name, known in state.ranks.items() if known.ready is not None}
    healthy = [rank for rank in ranks.values() if rank.alive and not rank.hit and rank.name in up]
    few = len(healthy) < scenario.minimum * scenario.ranks_per_replica
    if not few and not _nowhere(simulation):
        names = [rank.name for rank in healthy]
        raise Violation("an end with a cause", f"{names} are healthy, but the run ended: {state.error}")


def _nowhere(simulation: "Simulation") -> bool:
    """Whether the state of some coordinate is on no healthy rank, and in no vault."""
    world = simulation.checks.newest
    if simulation.controller.state.saved or world is None:
        return False
    return len(_holders(simulation)) < world.ranks_per_replica


def _holders(simulation: "Simulation") -> set[int]:
    """Coordinates of which a healthy member of the newest world holds the state."""
    world = simulation.checks.newest
    return {
        member.seat.coordinate
        for member in (world.members if world else ())
        if (rank := simulation.ranks[member.incarnation]).alive
        and not rank.hit
        and (transaction := rank.ledger.transaction).generation is not None
        and not transaction.lacks
        and not (transaction.abandoned and rank.lacked)
    }
