"""How a run moves from phase to phase and a rank from standing to standing, as data: on which events, and why.

The machine does not read this table. Tests play runs to it and record every move that it makes: each of them is here,
and nothing is here that no run does. ``python -m everstep.orchestrator.machine.table`` prints diagrams (Mermaid) and
tables (Markdown) of it, which docs/machine.md shows.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from ...actors.evidence import Evidence
from ...actors.messages import Finished, FromRank, Heartbeat, Hello, Raised, Ready, Report, Resumed, Serving
from ..view import Phase
from .events import (
    Ended,
    Event,
    Found,
    Heard,
    NodeDraining,
    NodeLost,
    Reports,
    Resize,
    Room,
    Started,
    StopRequested,
    StoreOpened,
    Tick,
    TookOver,
)
from .state import Standing

Place = Phase | Standing


@dataclass(frozen=True)
class Row:
    """One way to move.

    Attributes:
        before: from any of these; None for a rank that nobody had asked for yet.
        after: to one of these.
        why: in few words.
        events: on any of these; of messages, their own types.
    """

    before: tuple[Place | None, ...]
    after: tuple[Place, ...]
    why: str
    events: tuple[type, ...]

    def covers(self, before: Place | None, event: type, after: Place) -> bool:
        return before in self.before and event in self.events and after in self.after


STARTING = (Phase.STARTING,)
ADOPTING = (Phase.ADOPTING,)
RUNNING = (Phase.RUNNING,)
RECOVERING = (Phase.RECOVERING,)
WAITING = (Phase.WAITING,)
BEGUN = (*RUNNING, *RECOVERING, *WAITING)
UNDER_WAY = (*STARTING, *BEGUN)
SUCCEEDED = (Phase.SUCCEEDED,)
FAILED = (Phase.FAILED,)

# A change of the world is planned when the last report is in, when the last end is confirmed or was waited for long
# enough, when the last one that was waited for is lost with its node, and when there are more ranks than before.
PLANNING = (Report, Ended, NodeLost, Tick, Ready, Room)
# A later controller goes on when the last rank that it waits for has come, is known to be dead, or has not come in
# time; what it was told of others meanwhile, it hears then.
ADOPTION = (Ready, Heartbeat, Ended, Tick)
_GROUPS = {PLANNING: "planning", ADOPTION: "adoption"}
MESSAGES = get_args(FromRank)

PHASES: tuple[Row, ...] = (
    Row(STARTING, RUNNING, "enough are ready", (Ready, Ended, NodeLost, StoreOpened, Tick)),
    Row(RUNNING, RECOVERING, "a member is lost", (Ended, NodeLost, Tick)),
    Row(RUNNING, RECOVERING, "a collective fails", (Report,)),
    Row(RUNNING, RECOVERING, "a member computes wrong, so all go back", (Evidence,)),
    Row(RECOVERING, RUNNING, "every member has decided again", (Resumed, Finished)),
    Row((*RUNNING, *RECOVERING), WAITING, "too few are left", PLANNING),
    Row(WAITING, RECOVERING, "enough are ready", PLANNING),
    Row((*RUNNING, *RECOVERING), SUCCEEDED, "all who live have finished alike", (Finished, Ended, NodeLost, Tick)),
    Row(STARTING, FAILED, "too few can begin, or they differ", (Ready, Ended, NodeLost, StoreOpened, Tick)),
    Row(STARTING, FAILED, "it cannot go on from what it has saved", (Found,)),
    Row(BEGUN, FAILED, "nothing helps, or a deadline is over", PLANNING),
    Row(BEGUN, FAILED, "ranks do different work", (Heartbeat,)),
    Row((*RUNNING, *RECOVERING), FAILED, "ranks end differently", (Finished,)),
    Row(UNDER_WAY, FAILED, "the training function is at fault", (Raised,)),
    Row((*UNDER_WAY, *ADOPTING), FAILED, "somebody stops it", (StopRequested,)),
    Row(STARTING, ADOPTING, "another controller takes over", (TookOver,)),
    Row(STARTING, ADOPTING, "somebody has a world who was not heard in time", (Serving,)),
    Row(STARTING, SUCCEEDED, "it had ended before", (TookOver,)),
    Row(STARTING, FAILED, "it had ended before, or nobody is left", (TookOver,)),
    Row(ADOPTING, STARTING, "there was no generation yet", ADOPTION),
    Row(ADOPTING, RUNNING, "all serve the newest generation, or are ready for the first", ADOPTION),
    Row(ADOPTING, RECOVERING, "a member is lost, or has left its group", ADOPTION),
    Row(ADOPTING, WAITING, "too few are left", ADOPTION),
    Row(ADOPTING, SUCCEEDED, "all had finished", ADOPTION),
    Row(ADOPTING, FAILED, "nothing helps", ADOPTION),
)

HEALTHY = (Standing.STARTING, Standing.READY, Standing.MEMBER, Standing.FINISHED)
SUSPECT = (Standing.SUSPECT,)
LIVING = (*HEALTHY, *SUSPECT)
_READY = (Standing.READY,)
_MEMBER = (Standing.MEMBER,)
_FINISHED = (Standing.FINISHED,)
_FENCED = (Standing.FENCED,)
_LEFT = (Standing.LEFT,)

STANDINGS: tuple[Row, ...] = (
    Row(
        (None,),
        (Standing.STARTING,),
        "it is asked for",
        (Started, NodeDraining, Resize, *PLANNING, *ADOPTION),
    ),
    Row((None,), (Standing.STARTING,), "an earlier controller has asked for it", (TookOver, Hello)),
    Row((None,), (Standing.GONE,), "it was lost under an earlier controller", (TookOver, *ADOPTION)),
    Row((Standing.STARTING, *_READY), _FINISHED, "it had finished", ADOPTION),
    Row((Standing.STARTING,), _READY, "it stands in begin", (Ready,)),
    Row((Standing.STARTING,), _MEMBER, "the others waited for it", (Ready,)),
    Row(
        _READY,
        _MEMBER,
        "a generation opens with it, or it serves the newest one",
        (StoreOpened, Heartbeat, *PLANNING),
    ),
    Row((*_MEMBER, *_FINISHED), _READY, "there is no place for it", PLANNING),
    Row(_MEMBER, _FINISHED, "it has applied all steps", (Finished,)),
    Row(_FINISHED, _MEMBER, "all go back to a saved state", PLANNING),
    Row(HEALTHY, SUSPECT, "it is silent", (Tick,)),
    Row(SUSPECT, HEALTHY, "it is heard again, and is what it was", MESSAGES),
    Row(LIVING, _FENCED, "it is given up", (*PLANNING, *ADOPTION)),
    Row((*_MEMBER, *_FINISHED), _FENCED, "it computes wrong", (Evidence,)),
    Row(LIVING, _LEFT, "it is not needed any more", (NodeDraining, *PLANNING, *ADOPTION)),
    Row((*LIVING, *_FENCED, *_LEFT), (Standing.GONE,), "its process is gone", (Ended,)),
)


def kind(event: Event) -> type:
    """What an event is in the table: a message counts as what it is."""
    if isinstance(event, Reports):
        return Report
    return type(event.message) if isinstance(event, Heard) else type(event)


def diagram(rows: Sequence[Row], name: str, group: Sequence[Place]) -> str:
    """A Mermaid state diagram.

    Args:
        rows: of the table.
        name: of the group.
        group: places that are drawn as one where they move alike; who comes in from outside comes to the first.
    """
    inside: dict[tuple[str, str], list[str]] = {("[*]", _id(group[0])): []}
    # A rank begins when it is asked for, a run when it is made.
    first = rows[0].before[0]
    outside: dict[tuple[str, str], list[str]] = {} if first is None else {("[*]", _id(first)): []}
    for row in rows:
        for start, end in _moves(row, name, group):
            within = {start, end} <= {_id(place) for place in group}
            (inside if within else outside).setdefault((start, end), []).append(row.why)
    shown = [place for row in rows for place in (*row.before, *row.after) if place is not None]
    states = [f'    state "{place}" as {_id(place)}' for place in dict.fromkeys(shown) if _id(place) != place]
    return "\n".join(
        ["stateDiagram-v2", *states, f"    state {name} {{", *_edges(inside, 8), "    }", *_edges(outside, 4)]
    )


def markdown(rows: Sequence[Row]) -> str:
    """The same as a table, with the events."""
    lines = [f"| {_all(row.before)} | {_all(row.after)} | {row.why} | {_names(row.events)} |" for row in rows]
    return "\n".join(["| from | to | why | on |", "|---|---|---|---|", *lines])


def _moves(row: Row, name: str, group: Sequence[Place]) -> Iterator[tuple[str, str]]:
    """From where to where arrows go for this row."""
    starts, ends = _together(row.before, name, group), _together(row.after, name, group)
    for start in starts:
        for end in ends:
            into = end == _id(group[0]) and start not in {_id(place) for place in group}
            yield start, name if into else end


def _together(places: Sequence[Place | None], name: str, group: Sequence[Place]) -> list[str]:
    """The whole group counts as one."""
    if not set(group) <= set(places):
        return [_id(place) for place in places]
    return [name, *(_id(place) for place in places if place not in group)]


def _edges(found: Mapping[tuple[str, str], Sequence[str]], indent: int) -> Iterator[str]:
    for (start, end), reasons in found.items():
        yield " " * indent + f"{start} --> {end}" + (": " + "<br/>".join(reasons) if reasons else "")


def _id(place: Place | None) -> str:
    return "[*]" if place is None else place.name.lower()


def _all(places: Sequence[Place | None]) -> str:
    return ", ".join("(nothing)" if place is None else place.value for place in places)


def _names(events: Sequence[type]) -> str:
    if events == MESSAGES:
        return "any message"
    groups = [many for many in _GROUPS if set(many) <= set(events)]
    named = [event.__name__ for event in events if not any(event in many for many in groups)]
    return ", ".join([*named, *(_GROUPS[many] for many in groups)])


def main() -> None:
    """Print everything."""
    for rows, name, group in ((PHASES, "begun", BEGUN), (STANDINGS, "healthy", HEALTHY)):
        print(f"```mermaid\n{diagram(rows, name, group)}\n```\n\n{markdown(rows)}\n")


if __name__ == "__main__":
    main()
