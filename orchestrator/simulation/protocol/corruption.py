"""A rank computes wrong: what that spoils, what the checks of the ranks see of it, and what must hold once it is named.

What is wrong in the weights of a rank is a set of names: ``FLIP``, which is of its own, and the steps to whose sums
somebody gave a gradient that was wrong already, which all have alike. So only who has flipped differs from the others.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from ....actors.evidence import Check, Evidence
from ....policies.world import Generation, World
from ...machine import events
from ...machine.state import State
from ...machine.trust import CORRUPTION, trust_of
from .chance import Chance
from .checkers import Violation
from .loop import Unit

if TYPE_CHECKING:
    from .ranks import Rank
    from .simulation import Simulation

Spoiled = frozenset[str]
CLEAN: Spoiled = frozenset()
FLIP = "flip"
_BLAME = "it computes wrong"
# At how many of the points that ranks go through something changes, and how often and how long it is calm then.
_FLIPS, _RESTS, _RESTS_S = 0.01, 0.7, 20.0


class Held(NamedTuple):
    """A state: what was gone through to get there, what is wrong in it, and the group that has committed it last."""

    history: tuple[Unit, ...] = ()
    spoiled: Spoiled = CLEAN
    generation: Generation = Generation(0, 0)


class Corruption:
    """What is computed wrong in one run, one bit at a time, and what becomes of it.

    Args:
        simulation: in which this happens.

    Attributes:
        struck: whether a bit has flipped at all.
        forgotten: whether a later controller does not know what an earlier one has found.
    """

    def __init__(self, simulation: "Simulation") -> None:
        self._simulation = simulation
        self._chance = Chance(f"corruption {simulation.seed}")
        self._every = simulation.scenario.checks
        self._brought: dict[tuple[Generation, int], dict[str, Spoiled]] = {}
        self.struck = self.forgotten = False
        self._named = False
        # Nobody can see it any more: all hold it, most do, or the controller has forgotten what it had found.
        self._hidden = False

    # --- ranks

    def strike(self, rank: "Rank") -> None:
        """A rank goes through a point of the protocol; perhaps something in its weights changes there.

        One at a time: those who are right must be the most. Often nothing else happens until that is found out.
        """
        simulation = self._simulation
        if not self._every or self._hidden or not self._chance.of(_FLIPS):
            return
        if any(one.alive and one.training.spoiled for one in simulation.ranks.values()):
            return
        if self._chance.of(_RESTS):
            simulation.faults.rest(self._chance.within(_RESTS_S))
        rank.hit = self.struck = True
        self._named = False
        rank.training.spoiled = frozenset({FLIP})
        simulation.saw("computed wrong")

    @staticmethod
    def summed(entered: Mapping[str, Any]) -> bool:
        """Whether somebody gave a wrong gradient to a sum: who gave none did no harm."""
        return any(contribution.spoiled and contribution.given for _, contribution in entered.values())

    def check(self, rank: "Rank", step: int) -> None:
        """A rank has taken so many steps: what its peers must hold alike is compared now and then, and at the end."""
        training = rank.training
        if training.voted is None or not self._every or (step % self._every and step != self._simulation.loop.steps):
            return
        self._brought.setdefault((training.voted, step), {})[rank.name] = training.spoiled
        rank.say(Evidence(rank.name, Check.STATE, step, training.voted, (), {"state": _signature(training.spoiled)}))

    def taken(self, rank: "Rank", held: Held) -> None:
        """A rank goes on from a saved state, which must not be wrong once it was found out."""
        if not held.spoiled:
            return
        if self._named and not self._hidden:
            told = f"{rank.name} goes on with {held.spoiled}, saved by {held.generation} at {len(held.history)}"
            raise Violation("back to what is right", told)
        # So does everybody else: they are all alike.
        self._hide("everybody took it")

    # --- the controller

    def observe(self, event: events.Event, before: State, after: State, actions: Sequence[events.Action]) -> None:
        """The newest controller has taken a step."""
        known, now = trust_of(before, CORRUPTION), trust_of(after, CORRUPTION)
        clean, world = now.candidate, before.world
        if world is not None and clean is not None and clean != known.candidate and clean > (known.checked or 0):
            there = self._brought.get((world.generation, clean), {})
            if any(there.values()):
                self._hide("nobody differed")
        if not (isinstance(event, events.Heard) and isinstance(event.message, Evidence)):
            return
        for action in actions:
            if isinstance(action, events.KillRank) and action.reason.startswith(_BLAME):
                assert world is not None
                brought = self._brought[event.message.generation, event.message.step]
                self._blamed(action.incarnation, world, brought)

    def forgot(self) -> None:
        """A later controller does not know all that was found."""
        if self._named:
            self.forgotten = True
            self._hide("its finding was forgotten")

    # --- the end

    def ended(self, members: Sequence["Rank"]) -> None:
        """With success: what was found out has left no trace."""
        left = {rank.name: rank.training.spoiled for rank in members if rank.training.spoiled}
        if left and self._named and not self._hidden:
            raise Violation("what was found is undone", f"the run ends with {left}")
        if left:
            self._simulation.saw("ended wrong")

    def _blamed(self, name: str, world: World, brought: Mapping[str, Spoiled]) -> None:
        member = world.member(name)
        assert member is not None
        peers = [peer.incarnation for peer in world.peers(member.seat.coordinate)]
        wrong = [peer for peer in peers if FLIP in brought.get(peer, CLEAN)]
        self._simulation.ranks[name].hit = True
        if name in wrong:
            self._named = True
            self._simulation.saw("named")
        elif 2 * len(wrong) > len(peers):
            # They took it from the one that flipped, before anybody looked.
            self._hide("outvoted")
        else:
            raise Violation("only who computes wrong is shut out", f"{name} is, among {brought}")

    def _hide(self, why: str) -> None:
        if not self._hidden:
            self._hidden = True
            self._simulation.saw(f"wrong for good: {why}")


def _signature(spoiled: Spoiled) -> int:
    """The same in every process."""
    return crc32(repr(sorted(spoiled)).encode())
