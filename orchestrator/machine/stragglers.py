"""Members are timed round by round: who is slow and at what, and what is done about it.

A round ends when every member has computed ``ROUND`` microbatches since it began. Heartbeats bring sums, so a lost one
loses nothing. What is said stands for as many clean rounds as it took to say it, so that it does not come and go.
"""

from collections.abc import Collection, Mapping

from ...monitors import links
from ...monitors.consensus import Agree, median_and_scale
from ...monitors.links import GroupTime
from ...monitors.spent import Spent
from ...monitors.stragglers import CONFIRM, SLOW_SECONDS, Finding, Part, Seen, Times, observe, renewed
from ...policies.stragglers import Remedy, SlowDecision, SlowFacts
from ...policies.values import changed
from ...policies.world import WorkKind
from ..view import Phase
from . import membership, recovery
from .events import Action, Record
from .findings import noted
from .measured import costs
from .speeds import recent
from .state import Rank, State
from .watch import Slow

Step = tuple[State, list[Action]]
# Microbatches of a member in one round.
ROUND = 8
# Who has computed nothing in so many steps owes nothing, and is not waited for.
_IDLE_STEPS = 2
_KIND = "straggler"
# What the exchange goes over, where nobody says more.
_NETWORK = "network"


def look(state: State, now: float) -> Step:
    """Judge the round under way if it is over, and act on what is known then."""
    if state.world is None or state.phase is not Phase.RUNNING or state.recovery is not None or state.finishing:
        return state, []
    if state.rounds.generation != state.world.generation:
        return _begun_anew(state), []
    times = _times(state)
    if times is None:
        return state, []
    before = state.rounds
    state, actions = _judged(state, times, now)
    new = [name for name, held in state.rounds.slow.items() if before.slow.get(name, held).parts != held.parts]
    new += [name for name in state.rounds.slow if name not in before.slow]
    decision = _decision(state)
    if new or (decision is not None and decision.remedy is not Remedy.OBSERVE):
        state, more = _noted(state, decision, times, now)
        actions += more
    if decision is None and state.rounds.slow:
        return state, actions
    said = decision.reason if decision is not None and decision.replicas else ""
    state = changed(state, rounds=changed(state.rounds, said=said))
    if decision is None:
        return state, actions
    match decision.remedy:
        case Remedy.WEIGH:
            state, more = recovery.begin(state, decision.reason, now, planned=True)
        case Remedy.EVICT:
            state, more = _let_go(state, decision.replicas, now)
        case _:
            more = []
    return state, [*actions, *more]


def _begun_anew(state: State) -> State:
    """The first round in a world, once every member has said what it has spent."""
    spent = _spent(state)
    if spent is None:
        return state
    assert state.world is not None
    rounds = state.rounds
    seconds = {name: held for name, held in rounds.seconds.items() if name in spent}
    slow = {name: held for name, held in rounds.slow.items() if name in spent}
    seen = {place: renewed(held) for place, held in rounds.seen.items()}
    generation = state.world.generation
    rounds = changed(rounds, generation=generation, began=spent, seen=seen, seconds=seconds, slow=slow)
    return changed(state, rounds=rounds)


def _spent(state: State) -> dict[str, Spent] | None:
    """By member; None while one of them has not said it."""
    told: dict[str, Spent] = {}
    for name in state.present:
        spent = state.ranks[name].spent
        if spent is None:
            return None
        told[name] = spent
    return told


def _times(state: State) -> dict[str, Times] | None:
    """Of the members that compute, if the round is over."""
    found: dict[str, Times] = {}
    for name in state.present:
        spent, began = state.ranks[name].spent, state.rounds.began.get(name)
        assert spent is not None
        assert began is not None, "all members of a generation have begun its rounds"
        computed = spent.microbatches - began.microbatches
        if computed >= ROUND:
            found[name] = spent.since(began)
        elif computed or spent.steps - began.steps < _IDLE_STEPS:
            return None
    return found or None


def _judged(state: State, times: Mapping[str, Times], now: float) -> Step:
    """What the round shows; what is over is told, and what nobody can be named for."""
    rounds, size = state.rounds, state.settings.ranks_per_replica
    seen: dict[int, Seen] = {}
    slow: dict[str, Slow] = {}
    groupwide: dict[Part, float] = {}
    groups: list[GroupTime] = []
    actions: list[Action] = []
    late: set[int] = set()
    for coordinate in range(size):
        peers = {_replica(rank): rank for rank in state.members if _coordinate(rank) == coordinate}
        alike = _with_group_time({place: times[rank.incarnation] for place, rank in peers.items()
                                  if rank.incarnation in times})  # fmt: skip
        before = rounds.seen.get(coordinate, Seen())
        seen[coordinate], finding = observe(before, alike)
        groupwide |= {part: ratio for part, ratio in finding.groupwide.items() if part is not Part.COMMUNICATION}
        for place, rank in peers.items():
            old = rounds.slow.get(rank.incarnation)
            # Of whoever owes nothing, nothing new is known.
            held = _slow(old, finding, place, alike) if place in alike else old
            if held is not None:
                slow[rank.incarnation] = held
                late.add(_number(rank, size))
            elif old is not None:
                actions.append(Record("not slow any more", facts=rank.facts))
        groups += _group(alike, before, finding, size, coordinate)
    ends, verdict = links.observe(rounds.ends, groups, late)
    link = "" if isinstance(verdict, Agree) else verdict.reason
    if link and not rounds.link:
        who = [rank.incarnation for rank in state.members if _number(rank, size) in getattr(verdict, "ranks", ())]
        outcome = "attributed" if who else "inconclusive"
        state, more = noted(state, now, _KIND, outcome, link, who=who, done="nothing")
        actions += more
    for part in groupwide.keys() - rounds.groupwide:
        reason = f"all ranks are {groupwide[part]:.2f} times slower at {part.value} than they were"
        state, more = noted(state, now, _KIND, "alarm", reason, done="nothing")
        actions += more
    began = _spent(state)
    assert began is not None
    rounds = changed(
        rounds,
        began=began,
        seen=seen,
        ends=ends,
        link=link,
        seconds={**rounds.seconds, **{name: _newest(state, name) for name in times}},
        slow=slow,
        groupwide=frozenset(groupwide),
    )
    return changed(state, rounds=rounds), actions


def _newest(state: State, name: str) -> tuple[float, ...]:
    """Means of its last rounds, this one included."""
    rounds, spent = state.rounds, state.ranks[name].spent
    assert spent is not None
    return (*rounds.seconds.get(name, ()), spent.seconds_since(rounds.began[name]))[-CONFIRM:]


def _with_group_time(times: Mapping[int, Times]) -> dict[int, Times]:
    """All with the exchange as it was for whoever came last to it, and so waited for nobody: it is a group's, not a
    rank's."""
    exchange = min((held.communication for held in times.values()), default=0.0)
    return {place: changed(held, communication=exchange) for place, held in times.items()}


def _group(times: Mapping[int, Times], before: Seen, finding: Finding, size: int, coordinate: int) -> list[GroupTime]:
    """The exchange of one coordinate, beside what it took before; a slow one counts once it was so for long enough."""
    past = sorted(before.past.get(Part.COMMUNICATION, ()))
    if not past or not times:
        return []
    usual = max(past[len(past) // 2], SLOW_SECONDS)
    taken = next(iter(times.values())).communication if Part.COMMUNICATION in finding.groupwide else usual
    members = frozenset(place * size + coordinate for place in times)
    return [GroupTime(members, _NETWORK, taken, usual)]


def _slow(old: Slow | None, finding: Finding, place: int, times: Mapping[int, Times]) -> Slow | None:
    """What is known of a member after one more round."""
    parts = finding.ranks.get(place)
    if parts is not None:
        taken = (f"{part.value}: {_seconds(part, place, times)}" for part in parts)
        return Slow(parts, f"is slow at {'; and at '.join(taken)}")
    if old is None or old.clean + 1 >= CONFIRM:
        return None
    return changed(old, clean=old.clean + 1)


def _seconds(part: Part, place: int, times: Mapping[int, Times]) -> str:
    middle, _ = median_and_scale([held.of(part) for held in times.values()])
    return f"{times[place].of(part):.3g} s a microbatch, the median of {len(times)} peers is {middle:.3g} s"


def _noted(state: State, decision: SlowDecision | None, times: Mapping[str, Times], now: float) -> Step:
    """A verdict on all who are slow now, with the times of all."""
    slow = state.rounds.slow
    told = [f"{state.ranks[name].title} {held.reason}" for name, held in slow.items()]
    parts = {part for held in slow.values() for part in held.parts}
    evidence = {
        part.value: {state.ranks[name].title: held.of(part) for name, held in times.items()} for part in sorted(parts)
    }
    done = "nothing yet" if decision is None else decision.reason
    reason = "; ".join(told) or "nobody is slow any more"
    outcome = "attributed" if slow else "alarm"
    return noted(state, now, _KIND, outcome, reason, who=list(slow), evidence=evidence, done=done)


def _decision(state: State) -> SlowDecision | None:
    """What the policy says about those who are slow, or about shares that follow what is so no more."""
    rounds = state.rounds
    if state.leaving or any(held.clean for held in rounds.slow.values()):
        # Whether they still are slow will be known soon.
        return None
    slow = frozenset(_replica(state.ranks[name]) for name in rounds.slow)
    dealt = state.opened.speeds if state.opened is not None and state.settings.stragglers.weighs else {}
    if dealt and not slow and state.settings.alike:
        return SlowDecision(Remedy.WEIGH, (), 0.0, 0.0, "all owe alike again")
    facts = _facts(state, slow, dealt) if slow or dealt else None
    return None if facts is None else changed(state.settings.stragglers, **_prices(state)).decide(facts)


def _let_go(state: State, replicas: Collection[int], now: float) -> Step:
    """They leave as if they were told to, and others are asked for, on other nodes if there are any."""
    left = state.rounds.left | {rank.node for rank in state.members if _replica(rank) in replicas}
    state = changed(state, rounds=changed(state.rounds, left=left))
    state = membership.leave(state, lambda member: member.seat.replica in replicas)
    state, asked = membership.refill(state, now)
    state, actions = membership.settle(state, now)
    return state, [*asked, *actions]


def _facts(state: State, slow: frozenset[int], dealt: Mapping[int, float]) -> SlowFacts | None:
    """What the policy is told; None while nobody knows how much a step is."""
    assert state.world is not None
    training = [work.microbatches for _, (_, work) in sorted(state.begun.items()) if work.kind is WorkKind.TRAINING]
    seconds = _by_replica(state)
    if not training or slow - seconds.keys():
        return None
    steps = next((rank.ready.steps for rank in state.members if rank.ready), None)
    step = max(rank.position.step for rank in state.members)
    return SlowFacts(
        training[-1],
        seconds,
        slow,
        spares=len(state.parked) // state.settings.ranks_per_replica,
        minimum=state.settings.minimum,
        remaining_steps=None if steps is None else max(0, steps - step),
        dealt=dealt,
    )


def _by_replica(state: State) -> dict[int, float]:
    """Seconds of a microbatch; a replica takes as long as its slowest rank, one that owes nothing as most do."""
    assert state.world is not None
    late = recent(state.rounds)
    groups = state.world.groups.items()
    known = {replica: max(late.get(member.incarnation, 0.0) for member in group) for replica, group in groups}
    told = sorted(seconds for seconds in known.values() if seconds > 0)
    return {replica: seconds or told[len(told) // 2] for replica, seconds in known.items()} if told else {}


def _prices(state: State) -> dict[str, float]:
    """What a change of the world costs in this run, by its own measurements."""
    measured = costs(state)
    state_bytes = max((rank.ready.state_bytes for rank in state.members if rank.ready), default=0)
    return {"reopen": measured.rebuild, "replacing": measured.adopt + measured.transfer_per_byte * state_bytes}


def _replica(rank: Rank) -> int:
    assert rank.seat is not None, "members have seats"
    return rank.seat.replica


def _number(rank: Rank, size: int) -> int:
    return _replica(rank) * size + _coordinate(rank)


def _coordinate(rank: Rank) -> int:
    assert rank.seat is not None, "members have seats"
    return rank.seat.coordinate
