"""The groups of ranks, and what can come of a collective.

A collective completes only if all members have entered it. Once somebody leaves, stops or is cut off, any subset of the
others may still see it complete.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ....conf.errors import CommunicatorError
from ....policies.world import Generation, World
from .checkers import Violation

if TYPE_CHECKING:
    from .ranks import Rank
    from .simulation import Simulation


@dataclass(slots=True)
class Collective:
    """Who has entered with what, and how it ended for whom."""

    entered: dict[str, tuple[str, Any]] = field(default_factory=dict)
    outcome: dict[str, bool] = field(default_factory=dict)


@dataclass
class Group:
    """Ranks that reduce with each other in one generation."""

    members: tuple[str, ...]
    calls: Counter[str] = field(default_factory=Counter)
    collectives: list[Collective] = field(default_factory=list)


@dataclass
class Meeting:
    """All groups of one generation: one for each coordinate, and one for each replica of several ranks.

    Attributes:
        built: whether a member's groups could be built, once that is known.
        left: who has left, in this order.
    """

    world: World
    groups: dict[tuple[str, int], Group]
    arrived: list[str] = field(default_factory=list)
    built: dict[str, bool] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)

    def of(self, name: str) -> list[Group]:
        return [group for group in self.groups.values() if name in group.members]


class Fabric:
    """Every meeting of a run."""

    def __init__(self, simulation: "Simulation") -> None:
        self._simulation = simulation
        self.meetings: dict[Generation, Meeting] = {}

    def arrive(self, rank: "Rank", world: World) -> None:
        """A member begins to build; when all have, each is done in its own time, if nobody leaves before."""
        simulation, generation = self._simulation, world.generation
        meeting = self.meetings.get(generation)
        if meeting is None:
            meeting = self.meetings[generation] = Meeting(world, _groups(world))
        if meeting.world != world:
            raise Violation("a generation once", f"{generation} was opened with {meeting.world} and with {world}")
        meeting.arrived.append(rank.name)
        simulation.clock.after(simulation.scenario.timeouts.build, self._built, rank, generation, False)
        if len(meeting.arrived) == len(world.members):
            names = world.incarnations
            whole = simulation.network.whole(names)
            for name in names:
                when = whole + simulation.chance.short() + 0.001
                simulation.clock.at(when, self._built, simulation.ranks[name], generation, True)

    def leave(self, name: str, generation: Generation, unseen: bool = False) -> None:
        """A member's sockets are gone: collectives under way fail at the others, unless they were all but done.

        Args:
            unseen: its whole machine is gone, and nobody tells the others.
        """
        meeting = self.meetings.get(generation)
        if meeting is None or meeting.world.member(name) is None or name in meeting.left:
            return
        meeting.left.append(name)
        meeting.built.setdefault(name, False)
        for group in meeting.of(name):
            for collective in group.collectives:
                if name in collective.entered:
                    collective.outcome.setdefault(name, False)
            if not unseen:
                for other in group.members:
                    if other != name:
                        self._fail_soon(group, other, name)
        self._simulation.stir(name)

    def leave_all(self, name: str, unseen: bool) -> None:
        for generation in list(self.meetings):
            self.leave(name, generation, unseen)

    def enter(self, rank: "Rank", generation: Generation, group: Group, what: str, contribution: Any) -> Collective:
        simulation, meeting = self._simulation, self.meetings[generation]
        place = group.calls[rank.name]
        group.calls[rank.name] += 1
        if place == len(group.collectives):
            group.collectives.append(Collective())
            simulation.clock.after(simulation.scenario.timeouts.collective, self._fail_all, group, place)
        collective = group.collectives[place]
        collective.entered[rank.name] = (what, contribution)
        gone = [name for name in meeting.left if name in group.members]
        if gone:
            # With somebody gone the others can at most be late to notice.
            self._fail_soon(group, rank.name, gone[0])
        if len(collective.entered) == len(group.members):
            if len({entered[0] for entered in collective.entered.values()}) != 1:
                raise Violation("collectives match", f"a sum meets a vote: {collective.entered}")
            if rank.name not in gone:
                self._complete(group, collective)
        simulation.faults.strike("vote" if what == "whole" else what, rank)
        return collective

    def thawed(self, name: str) -> None:
        """What stood still because this rank was stopped goes on."""
        for meeting in self.meetings.values():
            for group in meeting.of(name):
                for collective in group.collectives:
                    if len(collective.entered) == len(group.members) > len(collective.outcome) and not meeting.left:
                        self._complete(group, collective)

    def _complete(self, group: Group, collective: Collective) -> None:
        """All have entered: it ends for each in its own time, for some only when all reach each other again."""
        simulation = self._simulation
        whole = simulation.network.whole(group.members)
        stopped = any(simulation.ranks[name].frozen for name in group.members)
        held_up = stopped or whole > simulation.clock.now
        for name in group.members:
            if name in collective.outcome:
                continue
            if not held_up or simulation.chance.of(0.5):
                simulation.clock.after(simulation.chance.short(), self._end, collective, name)
            elif not stopped:
                simulation.clock.at(whole + simulation.chance.latency(), self._end, collective, name)

    def _end(self, collective: Collective, name: str) -> None:
        collective.outcome.setdefault(name, True)
        self._simulation.stir(name)

    def _built(self, rank: "Rank", generation: Generation, whole: bool) -> None:
        simulation, meeting = self._simulation, self.meetings[generation]
        if rank.name in meeting.built or not rank.alive:
            return
        if rank.frozen:
            simulation.clock.after(0.1, self._built, rank, generation, whole)
            return
        meeting.built[rank.name] = whole and (not meeting.left or simulation.chance.of(0.5))
        if meeting.built[rank.name]:
            rank.built(generation)
            if meeting.left:
                for group in meeting.of(rank.name):
                    self._fail_soon(group, rank.name, meeting.left[0])
        else:
            rank.ledger.abandon(generation, CommunicatorError("not built"))
        simulation.stir(rank.name)

    def _fail_soon(self, group: Group, name: str, leaver: str) -> None:
        simulation = self._simulation
        when = simulation.network.heals(name, leaver) + simulation.chance.short() * 2
        simulation.clock.at(when, self._fail, group, name)

    def _fail(self, group: Group, name: str) -> None:
        for collective in group.collectives:
            if name in collective.entered and name not in collective.outcome:
                collective.outcome[name] = False
        self._simulation.stir(name)

    def _fail_all(self, group: Group, place: int) -> None:
        """The time-out of one collective."""
        collective = group.collectives[place]
        for name in collective.entered:
            if name not in collective.outcome:
                collective.outcome[name] = False
                self._simulation.stir(name)


def _groups(world: World) -> dict[tuple[str, int], Group]:
    size = world.ranks_per_replica
    groups = {
        ("peers", place): Group(tuple(member.incarnation for member in world.peers(place))) for place in range(size)
    }
    if size > 1:
        for replica in world.replicas:
            inside = tuple(member.incarnation for member in world.members if member.seat.replica == replica)
            groups["replica", replica] = Group(inside)
    return groups
