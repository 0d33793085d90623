"""What the machine answers, in words: one line for each thing that it asks for."""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from textwrap import wrap

from everstep.actors.messages import Fenced, Hold, Open, Ping, Prepare, Release, ToRank
from everstep.orchestrator.machine.events import Action, EndRun, KillRank, Publish, Record, Send, StartRank, Undo
from everstep.orchestrator.machine.look import look
from everstep.orchestrator.machine.state import State
from everstep.orchestrator.report import verdict_line
from everstep.policies.world import Seat

# Records of the journal that say something which no other line does, with the fact that says it.
_TOLD = {
    "stale report refused": "rank",
    "refused, its sender is fenced": "message",
    "connection refused": "reason",
    "fault fired": "fault",
    "suspected": "rank",
    "dismissed": "reason",
}


def told(actions: Sequence[Action], seats: dict[str, Seat | None]) -> Iterator[str]:
    """The actions in words, those that are alike in one line.

    Pings are left out: every tick sends one to every living rank.

    Args:
        actions: in their order.
        seats: as they were told last; they are brought up to date.
    """
    seats |= {action.incarnation: action.seat for action in actions if isinstance(action, StartRank)}
    records = [_record(action) for action in actions if isinstance(action, Record)]
    if records:
        yield "journal: " + "; ".join(_counted(records))
    asked: dict[str, list[Action]] = {}
    for action in actions:
        if not (isinstance(action, Record) or _is_ping(action)):
            asked.setdefault(_line(action), []).append(action)
    for line, same in asked.items():
        whom = " ".join(filter(None, dict.fromkeys(map(_whom, same)))).removesuffix(",")
        yield plain("-> " + line.replace("{}", whom, 1))
        if isinstance(same[0], Send) and isinstance(same[0].message, Open):
            yield from (plain(f"   {each}") for each in _shares(same[0].message, seats))


def seen(before: State, after: State, now: float) -> Iterator[str]:
    """What an onlooker sees that was not so before."""
    old, new = look(before, now), look(after, now)
    for record in new.recoveries[len(old.recoveries) :]:
        lost = _numbers(record.lost_microbatches) or "none"
        gone = " ".join(record.lost) or "nobody"
        yield f"recovered: from {record.world_before} to {record.world_after} ranks in step {record.step}"
        yield f"   lost: {gone}; lost microbatches: {lost}; {record.decision}"
    for verdict in new.verdicts[len(old.verdicts) :]:
        yield verdict_line(verdict)
    yield from (f"warning: {text}" for text in new.warnings[len(old.warnings) :])
    if new.decision != old.decision:
        yield plain(f"decision: {new.decision}")
    if (new.phase, new.reason) != (old.phase, old.reason):
        yield plain(f"state: {new.phase}: {new.reason}")


def wrapped(line: str) -> list[str]:
    """An answer as it is written down: indented, in lines of bearable length."""
    own = len(line) - len(line.lstrip())
    return wrap(line.lstrip(), 118, initial_indent=" " * (2 + own), subsequent_indent=" " * (9 + own))


def plain(text: str) -> str:
    """Incarnations as the numbers that ranks go by."""
    return re.sub(r"\b(\d{4})-[a-z]\b", lambda match: str(int(match[1])), text)


def _record(record: Record) -> str:
    fact = _TOLD.get(record.what)
    return plain(f"{record.what} ({record.facts[fact]})" if fact else record.what)


def _counted(texts: Iterable[str]) -> Iterator[str]:
    for text, group in groupby(texts):
        count = len(list(group))
        yield f"{text} ({count} times)" if count > 1 else text


def _is_ping(action: Action) -> bool:
    return isinstance(action, Send) and isinstance(action.message, Ping)


def _line(action: Action) -> str:
    """With ``{}`` in the place of whom it concerns; those whose line is the same are told as one."""
    match action:
        case StartRank(_, _, avoid):
            return "start {}" + (f", not on {' '.join(sorted(avoid))}" if avoid else "")
        case KillRank(_, reason):
            return f"kill {{}}: {reason}"
        case Send(_, message):
            return _sent(message)
        case Publish(records):
            return f"publish the records of steps {_numbers(record.step for record in records)}{{}}"
        case Undo(undone):
            return f"what was saved after step {undone.step} is wrong, and dropped{{}}"
        case EndRun():
            return "the run is over{}"
    raise AssertionError(action)


def _sent(message: ToRank) -> str:
    match message:
        case Prepare(generation):
            return f"prepare {generation} to {{}}"
        case Open():
            return f"open {message.world.generation} at step {message.position} to {{}}: {_opened(message)}"
        case Hold(seconds, reason):
            patience = f"{seconds / 86400:.0f} days" if seconds > 86400 else f"{seconds:g} s"
            return f"hold for {patience} to {{}}: {reason}"
        case Fenced(reason):
            return f"fence {{}}: {reason}"
        case Release():
            return "release {}"
    raise AssertionError(message)


def _opened(message: Open) -> str:
    parts = [str(message.work) if message.work else "nobody has begun, everybody plans its share"]
    if message.restore:
        parts.insert(0, f"restore step {message.restore.step} from {message.restore.source}")
    if poison := message.poison.get(message.position.step):
        parts.append(f"poison: {_numbers(poison)}")
    if message.dropped:
        parts.append(f"dropped: {_numbers(message.dropped)}")
    return ", ".join(parts)


def _whom(action: Action) -> str:
    match action:
        case StartRank(name, seat):
            return f"{name} as {seat if seat else 'a spare'},"
        case Send(name) | KillRank(name):
            return name
    return ""


def _shares(message: Open, seats: dict[str, Seat | None]) -> Iterator[str]:
    """What each member of a new world is told of itself."""
    for member in message.world.members:
        name, parts = member.incarnation, []
        if seats[name] != member.seat:
            parts.append(f"is {member.seat} now")
            seats[name] = member.seat
        source = message.sources.get(name)
        if source is not None:
            parts.append("begins anew" if source == name else f"takes the state of {source}")
        if message.work is not None:
            mine = _numbers(message.indices[name]) or "nothing"
            whose = message.shadows.get(name)
            parts.append(f"computes {mine}" + (f", as {whose} does" if whose else ""))
        if name in message.leaving:
            parts.append("is leaving")
        if parts:
            yield f"{name} {', '.join(parts)}"


def _numbers(values: Iterable[int]) -> str:
    return " ".join(map(str, sorted(values)))
