"""How large what each member adds to a step is, compared at every check: who stays far above its peers is named.

That is all: a large gradient is no proof, so nothing is done, and nothing waits for who says nothing.
"""

from immutables import Map

from ...actors.evidence import Check, Evidence
from ...monitors.consensus import Attributed
from ...monitors.contributions import CONFIRM, too_large
from ...policies.values import changed
from .events import Action
from .findings import noted
from .state import State
from .trust import CORRUPTION

Step = tuple[State, list[Action]]


def heard(state: State, incarnation: str, message: Evidence, now: float) -> Step:
    """A member tells how large its contribution was."""
    if message.check is not Check.STATE or state.world is None or message.generation != state.world.generation:
        return state, []
    held = state.norms
    if (message.generation, message.step) != held.at:
        if held.at is not None and (message.generation, message.step) < held.at:
            return state, []
        held = changed(held, at=(message.generation, message.step), brought=Map())
    if not state.is_member(incarnation):
        return state, []
    held = changed(held, brought=held.brought.set(incarnation, message.norm))
    state = changed(state, norms=held)
    return _judged(state, message.step, now) if _all_here(state) else (state, [])


def _all_here(state: State) -> bool:
    """Whether every member has told; some who have may be lost since."""
    told = state.norms.brought
    return len(told) >= len(state.present) and all(name in told for name in state.present)


def _judged(state: State, step: int, now: float) -> Step:
    """All of it is here."""
    held = state.norms
    ranks = [rank for rank in state.members if rank.seat is not None]
    actions: list[Action] = []
    above: dict[str, int] = {}
    for coordinate in sorted({rank.seat.coordinate for rank in ranks if rank.seat}):
        peers = {
            rank.seat.replica: rank.incarnation for rank in ranks if rank.seat and rank.seat.coordinate == coordinate
        }
        verdict = too_large({place: held.brought[name] for place, name in peers.items()})
        if not isinstance(verdict, Attributed):
            continue
        above |= {peers[place]: held.above.get(peers[place], 0) + 1 for place in verdict.ranks}
        new = [peers[place] for place in verdict.ranks if above[peers[place]] == CONFIRM]
        if new:
            evidence = {state.ranks[peers[place]].title: norm for place, norm in sorted(verdict.evidence.items())}
            reason = f"in {CONFIRM} checks in a row what it adds was far larger; in the newest, {verdict.reason}"
            done = "nothing: a large gradient is no proof"
            state, more = noted(
                state, now, CORRUPTION, "attributed", reason, step=step, who=new, evidence=evidence, done=done
            )
            actions += more
    return changed(state, norms=changed(held, above=above)), actions
