"""What may happen in a scenario: each form of a command, and what it does."""

import re
from collections.abc import Callable

from everstep.actors.evidence import Check, Evidence
from everstep.actors.messages import FaultFired, Finished, Heartbeat, Joined, Raised, Report, Resumed, StepRecord
from everstep.orchestrator.machine.events import (
    Ended,
    Found,
    NodeDraining,
    NodeLost,
    Refused,
    Resize,
    Room,
    Saved,
    StopRequested,
    Warned,
)
from everstep.policies.world import Generation, Position, Work

from .stage import Stage, name

_RANKS = r"(?P<ranks>ranks? \d+(?: \d+)*)"
_PLACE = r"step (?P<step>\d+)(?:, unit (?P<unit>\d+))?(?:, attempt (?P<attempt>\d+))?"
_WHY = r"(?:: (?P<why>.+))?"
Command = Callable[..., None]

_COMMANDS: dict[str, Command] = {}


def _says(form: str) -> Callable[[Command], Command]:
    """This is what a line of this form does; ``ranks`` come in one by one."""

    def register(command: Command) -> Command:
        _COMMANDS[form] = command
        return command

    return register


def forms() -> tuple[str, ...]:
    """Of all commands but the first."""
    return tuple(_COMMANDS)


def form_of(text: str) -> str:
    """Which form a command has.

    Raises:
        ValueError: it has none.
    """
    found = next((form for form in _COMMANDS if re.fullmatch(form, text)), None)
    if found is None:
        raise ValueError(f"unknown command {text!r}; known are:\n  " + "\n  ".join(map(_shown, _COMMANDS)))
    return found


def command_of(text: str) -> Callable[[Stage], None]:
    form = form_of(text)
    match = re.fullmatch(form, text)
    assert match is not None
    facts: dict[str, object] = match.groupdict()
    ranks = _numbers(match["ranks"]) if "ranks" in facts else None
    facts.pop("ranks", None)
    if "step" in facts:
        numbers = (facts.pop(part) for part in ("step", "unit", "attempt"))
        facts["place"] = Position(*(int(number or 0) for number in numbers))

    def play(stage: Stage) -> None:
        if ranks is None:
            _COMMANDS[form](stage, **facts)
        for rank in ranks or ():
            stage.must_know(rank)
            _COMMANDS[form](stage, rank, **facts)

    return play


def _shown(form: str) -> str:
    """A form as people write it."""
    text = form.replace(_RANKS, "rank N").replace(_PLACE, "step N").replace(_WHY, "[: WHY]")
    text = re.sub(r"\(\?P<(\w+)>[^()]*\)", lambda match: match[1].upper(), text)
    text = re.sub(r"\(\?:([^()|]*)\)\?", r"[\1]", text)
    return re.sub(r"\(\?:([^()|]*)\|[^()]*\)", r"\1", text).replace("s?", "s").replace("?", "")


def _numbers(text: str | None) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text or "")]


@_says(r"boot(?: on (?P<nodes>.+))?")
def _boot(stage: Stage, nodes: str | None) -> None:
    """``boot``, or ``boot on a: 0 1, b: 2 3``: ask for everybody; all connect and are ready, spares first."""
    ranks = range(len(stage.settings.ranks))
    held = dict.fromkeys(ranks, "node")
    for part in nodes.split(", ") if nodes else ():
        node, _, there = part.partition(": ")
        held |= dict.fromkeys(_numbers(there), node)
    stage.start()
    stage.open_store()
    for rank, node in held.items():
        stage.connect(rank, node)
    seated = len(ranks) - stage.settings.spares
    for rank in (*ranks[seated:], *ranks[:seated]):
        stage.ready(rank)


@_says("start")
def _start(stage: Stage) -> None:
    stage.start()
    stage.open_store()


@_says("start without a store")
def _start_only(stage: Stage) -> None:
    stage.start()


@_says("the store opens")
def _store_opens(stage: Stage) -> None:
    stage.open_store()


@_says(_RANKS + r" connects?(?: on (?P<node>\w+))?")
def _connects(stage: Stage, rank: int, node: str | None) -> None:
    stage.connect(rank, node or "node")


@_says(_RANKS + r" (?:is|are) ready(?: but built (?P<other>.+))?")
def _is_ready(stage: Stage, rank: int, other: str | None) -> None:
    stage.ready(rank, other or "the same")


@_says(_RANKS + r" arrives?(?: on (?P<node>\w+))?")
def _arrives(stage: Stage, rank: int, node: str | None) -> None:
    """It connects and is ready."""
    stage.connect(rank, node or "node")
    stage.ready(rank)


@_says(_RANKS + r" (?:dies|die)" + _WHY)
def _dies(stage: Stage, rank: int, why: str | None) -> None:
    stage.happen(Ended(name(rank), why or "its process ended with signal 9"))


@_says(_RANKS + r" falls? silent")
def _falls_silent(stage: Stage, rank: int) -> None:
    stage.silent.add(name(rank))


@_says(_RANKS + r" speaks? again")
def _speaks_again(stage: Stage, rank: int) -> None:
    stage.silent.discard(name(rank))
    held = stage.state.ranks[name(rank)]
    stage.hear(rank, Heartbeat(name(rank), held.position, held.stage))


@_says(r"(?P<seconds>[\d.]+) s pass")
def _passes(stage: Stage, seconds: str) -> None:
    stage.wait(float(seconds))


@_says(r"(?P<seconds>[\d.]+) s pass while the controller is stopped")
def _sleeps(stage: Stage, seconds: str) -> None:
    stage.sleep(float(seconds))


@_says(_RANKS + r" begins? (?P<what>an evaluation at )?" + _PLACE + r"(?: of (?P<generation>[\d.]+))?")
def _begins(stage: Stage, rank: int, what: str | None, place: Position, generation: str | None) -> None:
    """Its heartbeat tells so."""
    work = stage.evaluation if what else stage.training
    told = _generation(generation) if generation else None
    stage.hear(rank, Heartbeat(name(rank), place, "training", work=work, generation=told))


@_says(_RANKS + r" (?:has|have) computed (?P<count>\d+) microbatches in (?P<seconds>[\d.]+) s")
def _has_computed(stage: Stage, rank: int, count: str, seconds: str) -> None:
    """Its heartbeat tells so."""
    held = stage.state.ranks[name(rank)]
    said = Heartbeat(name(rank), held.position, held.stage, computed=int(count), busy=float(seconds))
    stage.hear(rank, said)


@_says(_RANKS + r" reports? " + _PLACE + r": (?P<facts>.+)")
def _reports(stage: Stage, rank: int, place: Position, facts: str) -> None:
    """It abandons the newest generation, or another one, and says what it has of the step."""
    held: dict[str, object] = {"done": frozenset(), "owed": frozenset()}
    work: Work | None = stage.training
    for part in facts.split(", "):
        word, _, rest = part.partition(" ")
        match word:
            case "done" | "owes":
                held["done" if word == "done" else "owed"] = frozenset(_numbers(rest))
            case "not" if rest == "begun":
                work = None
            case "evaluates":
                work = stage.evaluation
            case "lacks" if rest == "the state":
                held["lacks"] = True
            case "abandons":
                held["abandons"] = _generation(rest)
            case "promises":
                held["promised"] = _generation(rest)
            case "repeats":
                held["repeats"] = int(rest)
            case "accuses":
                held["accused"] = name(int(rest))
            case "because":
                held["cause"] = rest
            case _:
                raise ValueError(
                    f"unknown in a report: {part!r}; known are: done N ..., owes N ..., not begun, evaluates, "
                    "lacks the state, repeats N, abandons T.N, promises T.N, accuses N, because ..."
                )
    if "abandons" not in held:
        held["abandons"] = stage.generation
    stage.hear(rank, Report(incarnation=name(rank), position=place, work=work, **held))  # type: ignore[arg-type]


@_says(_RANKS + r" signs? (?P<other>another|the) state of step (?P<after>\d+)")
def _signs(stage: Stage, rank: int, other: str, after: str) -> None:
    """It holds what most of its peers hold, or something else."""
    signatures = {"0.weight": 1, "0.bias": 3 if other == "another" else 2}
    world = stage.state.world
    assert world is not None
    stage.hear(rank, Evidence(name(rank), Check.STATE, int(after), world.generation, tuple(world.replicas), signatures))


@_says(_RANKS + r" brings? the records of steps (?P<steps>[\d ]+)")
def _brings(stage: Stage, rank: int, steps: str) -> None:
    """With a heartbeat, as it was asked to."""
    records = tuple(StepRecord(step, 1.0, 1.0, 0.5, {}, {}, None, 8, 1, 0.0) for step in _numbers(steps))
    held = stage.state.ranks[name(rank)]
    position = max(held.position, Position(records[-1].step + 1))
    stage.hear(rank, Heartbeat(name(rank), position, held.stage, held=records[0].step, records=records))


@_says(_RANKS + r" builds? (?:its|their) group(?: of (?P<generation>[\d.]+))?")
def _builds(stage: Stage, rank: int, generation: str | None) -> None:
    stage.hear(rank, Joined(name(rank), _generation(generation) if generation else stage.generation, 0.01))


@_says(_RANKS + r" decides? " + _PLACE + r"(?: in (?P<generation>[\d.]+))?")
def _decides(stage: Stage, rank: int, place: Position, generation: str | None) -> None:
    """For the first time in this generation."""
    held = _generation(generation) if generation else stage.generation
    stage.hear(rank, Resumed(name(rank), held, place, (), 0.0, stage.now, stage.now))


@_says(_RANKS + r" raises? (?P<error>\w+) at (?P<line>\S+)(?: in microbatch (?P<index>\d+))? of " + _PLACE
       + r"(?P<final>, which is final)?")  # fmt: skip
def _raises(
    stage: Stage, rank: int, error: str, line: str, index: str | None, place: Position, final: str | None
) -> None:
    microbatch = None if index is None else int(index)
    samples = () if microbatch is None else (2 * microbatch, 2 * microbatch + 1)
    said = f"{error} at {line}"
    stage.hear(rank, Raised(name(rank), place, microbatch, samples, said, said, "Traceback ...", final is not None))


@_says(_RANKS + r" finish(?:es)?(?: with (?P<weights>\w+))?")
def _finishes(stage: Stage, rank: int, weights: str | None) -> None:
    stage.hear(rank, Finished(name(rank), stage.generation, weights or "weights", 0.5, stage.steps, 10, {}, "state"))


@_says(r"fault (?P<fault>\w+) fires on " + _RANKS)
def _fires(stage: Stage, rank: int, fault: str) -> None:
    stage.hear(rank, FaultFired(name(rank), fault, "as planned"))


@_says(r"node (?P<node>\w+) is lost" + _WHY)
def _node_lost(stage: Stage, node: str, why: str | None) -> None:
    stage.silent.update(rank.incarnation for rank in stage.state.living if rank.node == node)
    stage.happen(NodeLost(node, why or "no sign of life"))


@_says(r"node (?P<node>\w+) is to be left" + _WHY)
def _drains(stage: Stage, node: str, why: str | None) -> None:
    stage.happen(NodeDraining(node, why or "maintenance"))


@_says(r"resize to (?P<replicas>\d+)")
def _resize(stage: Stage, replicas: str) -> None:
    stage.happen(Resize(int(replicas)))


@_says(r"the cluster has room for (?P<replicas>\d+) more")
def _room(stage: Stage, replicas: str) -> None:
    stage.happen(Room(int(replicas)))


@_says(r"the run has taken (?P<count>\d+) steps before(?:, and had built (?P<other>\w+))?" + _WHY)
def _found(stage: Stage, count: str, other: str | None, why: str | None) -> None:
    """An earlier life of it has left a checkpoint; the reason is why a newer one is not taken."""
    identity = {"initial state of weight": other or "the same"}
    stage.happen(Found("storage", int(count), identity, (why,) if why else ()))


@_says(r"it cannot go on from what it has left" + _WHY)
def _found_nothing(stage: Stage, why: str | None) -> None:
    stage.happen(Found("storage", 0, refused=why or "every checkpoint is torn"))


@_says(r"(?P<source>vault|storage) holds the state after (?P<count>\d+) steps")
def _saved(stage: Stage, source: str, count: str) -> None:
    stage.happen(Saved(source, int(count)))


@_says(r"somebody stops the run: (?P<why>.+)")
def _stop(stage: Stage, why: str) -> None:
    stage.happen(StopRequested(why))


@_says(r"warning: (?P<text>.+)")
def _warned(stage: Stage, text: str) -> None:
    stage.happen(Warned(text))


@_says(r"a stranger connects")
def _refused(stage: Stage) -> None:
    stage.happen(Refused("it is of another run"))


@_says(r"another controller takes over(?:, of ranks (?P<living>[\d ]+) that live)?")
def _takes_over(stage: Stage, living: str | None) -> None:
    """It has the journal; the cluster may know who lives."""
    stage.take_over(None if living is None else frozenset(map(name, _numbers(living))))


@_says(r"the journal is lost")
def _lost(stage: Stage) -> None:
    stage.archive.forget()


@_says(_RANKS + r" comes? to it(?: at " + _PLACE + r")?(?P<waits>, not begun)?(?P<builds>, still building)?")
def _comes(stage: Stage, rank: int, waits: str | None, builds: str | None, place: Position) -> None:
    """It introduces itself to the new controller."""
    stage.come(rank, place, begun=waits is None, joined=builds is None)


@_says(r"the same again")
def _again(stage: Stage) -> None:
    """What was heard last comes a second time."""
    stage.again()


def _generation(text: str) -> Generation:
    term, _, number = text.partition(".")
    return Generation(int(term), int(number))
