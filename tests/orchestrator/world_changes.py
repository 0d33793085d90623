"""What the tests of a changing world have in common."""

from everstep.actors.messages import Heartbeat, Hello, Open, Ready
from everstep.orchestrator.machine.events import Heard, StartRank
from everstep.policies.world import Position, Work

from .machine_script import Script, name, sent


def opened(script: Script, rank: int = 0) -> Open:
    """The newest generation, as this rank was told of it."""
    return sent(script.history, rank, Open)[-1]


def begins(script: Script, rank: int, step: int = 0, work: Work | None = None) -> None:
    """Its heartbeat tells that it works at a step."""
    script.hear(rank, Heartbeat(name(rank), Position(step), "training", work=work or script.training))


def asked(script: Script) -> list[str]:
    """Incarnations that the machine asked for of its own accord."""
    starts = [action for action in script.history if isinstance(action, StartRank)]
    return [start.incarnation for start in starts if not start.incarnation.startswith("rank-")]


def arrive(script: Script, incarnation: str, node: str = "node") -> None:
    """A rank that was asked for starts, and stands in begin."""
    script.happen(Heard(incarnation, Hello(incarnation, 7, node)))
    script.happen(Heard(incarnation, Ready(incarnation, {"weight": "digest"}, script.steps)))


def replicas(script: Script) -> tuple[int, ...]:
    assert script.state.world is not None
    return script.state.world.replicas
