"""What simulated ranks say, and when those that come into a world can begin."""

from collections import Counter
from collections.abc import Iterable, Iterator

from ...actors.messages import Hello, Open, Ready, Report
from ...conf.simulation import SimulatedCosts, Simulation
from ...policies.world import Generation, Position, Work, World
from ..machine import events
from .training import Standing

# Of a run that ends by the clock.
_ENDLESS = 10**12


def first_words(name: str, node: str, simulation: Simulation) -> Iterable[events.Event]:
    """Of a rank that stands in ``begin``."""
    steps = simulation.steps or _ENDLESS
    ready = Ready(name, {}, steps, state_bytes=int(simulation.costs.state_bytes))
    return events.Heard(name, Hello(name, 1, node)), events.Heard(name, ready)


def reports(
    members: Iterable[str], world: World, promised: Generation, at: Standing, work: Work, now: float
) -> Iterator[Report]:
    """Every one of these members promises, and says what its replica has."""
    facts = {}
    for replica, share in at.shares.items():
        here = share.at(now)
        facts[replica] = here.done, frozenset(here.queue), here.repeats
    nothing = frozenset[int](), frozenset[int](), None
    position, under_way = Position(at.step), work if at.begun else None
    for name in members:
        member = world.member(name)
        if member is None:
            continue
        done, owed, repeats = facts.get(member.seat.replica, nothing)
        yield Report(
            name,
            world.generation,
            position,
            done,
            owed,
            work=under_way,
            repeats=repeats,
            promised=promised,
        )


def arrivals(message: Open, costs: SimulatedCosts, now: float, before: World) -> dict[int, float]:
    """When each replica can begin that takes up the step with nothing done.

    A rank that holds a state feeds one newcomer at a time. Going back to a saved state begins when the group is there.
    """
    if message.restore is not None:
        per_byte = costs.vault_per_byte if message.restore.source == "vault" else costs.storage_per_byte
        begins = now + costs.rebuild + costs.relaunch + costs.state_bytes * per_byte
        return dict.fromkeys(message.world.replicas, begins)
    fed: Counter[str] = Counter()
    ready: dict[int, float] = {}
    for member in message.world.members:
        source = message.sources.get(member.incarnation)
        if source is None:
            continue
        when = now
        if source != member.incarnation:
            fed[source] += 1
            when += fed[source] * costs.state_bytes * costs.transfer_per_byte
        held = before.member(member.incarnation)
        if held is None or held.seat != member.seat:
            when += costs.adopt
        ready[member.seat.replica] = max(when, ready.get(member.seat.replica, now))
    return ready
