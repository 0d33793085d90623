"""What is true of the machine whatever it hears, in whatever order."""

from everstep.actors.messages import FaultFired, Fenced, Open, Prepare, Release
from everstep.orchestrator.machine.events import Action, Ended, EndRun, Event, Heard, KillRank, Record, Send
from everstep.orchestrator.machine.look import look
from everstep.orchestrator.machine.transition import advance
from everstep.orchestrator.view import Phase
from everstep.policies.world import Position
from hypothesis import given, settings
from hypothesis import strategies as st

from .machine_script import Script, name, sent

RANKS = 4
ranks = st.integers(0, RANKS - 1)
kinds = st.sampled_from(
    ["beat", "report", "accuse", "stale", "join", "resume", "finish", "raise", "end", "fault", "tick", "pause", "ready"]
)
moves = st.lists(st.tuples(kinds, ranks, st.integers(0, 3)), max_size=60)


class Checked(Script):
    """Says everything twice: the second time must change nothing. Watches the generations meanwhile."""

    def happen(self, event: Event) -> list[Action]:
        actions = super().happen(event)
        if isinstance(event, Heard | Ended):
            again, more = advance(self.state, event, self.now)
            assert again == self.state, f"heard twice, it changes the state: {event}"
            for action in more:
                harmless = isinstance(action, Record) or (
                    isinstance(action, Send) and isinstance(action.message, Fenced | Release)
                )
                assert harmless, f"heard twice, it is answered twice: {event}: {action}"
        look(self.state, self.now)
        return actions


def play(script: Script, kind: str, rank: int, number: int) -> None:
    """One move; a rank says nothing that contradicts what it was given."""
    held = script.indices(rank)
    finished = len(held) * number // 3
    begun = sent(script.history, rank, Open)[-1].work is not None or number > 0
    match kind:
        case "beat":
            script.beat(rank, number, records=range(number))
        case "report":
            script.report(rank, position_of(script), done=held[:finished], begun=begun)
        case "accuse":
            script.report(rank, position_of(script), held[:finished], cause="closed", accused=number, begun=begun)
        case "stale":
            script.report(rank, Position(9), abandons=0)
        case "join":
            script.join(rank)
        case "resume":
            script.resume(rank)
        case "finish":
            script.finish(rank)
        case "raise":
            script.fail_in(rank, microbatch=number, at=f"line {rank}")
        case "end":
            script.end(rank)
        case "fault":
            script.hear(rank, FaultFired(name(rank), f"fault {number}", "evidence"))
        case "ready":
            script.greet(rank)
            script.ready(rank)
        case "tick":
            script.tick(0.5)
        case "pause":
            script.tick(3.0, asleep=2.5 if number else 0.0)


def position_of(script: Script) -> Position:
    """Where the newest generation was opened."""
    opened = [
        action.message for action in script.history if isinstance(action, Send) and isinstance(action.message, Open)
    ]
    return opened[-1].position


@settings(max_examples=150, deadline=None)
@given(moves)
def test_what_is_heard_twice_changes_nothing(scenario: list[tuple[str, int, int]]) -> None:
    script = Checked(ranks=RANKS).boot()
    for kind, rank, number in scenario:
        play(script, kind, rank, number)


@settings(max_examples=150, deadline=None)
@given(moves)
def test_generations_only_count_up_and_each_is_opened_once(scenario: list[tuple[str, int, int]]) -> None:
    script = Script(ranks=RANKS).boot()
    newest = script.generation
    opened = {}
    prepared = newest
    for kind, rank, number in scenario:
        play(script, kind, rank, number)
        world = script.state.world
        assert world is not None
        for action in script.answered:
            if not isinstance(action, Send):
                continue
            if isinstance(action.message, Prepare):
                assert action.message.generation > newest
                prepared = action.message.generation
            if isinstance(action.message, Open):
                message = action.message
                opened.setdefault(message.world.generation, message)
                assert opened[message.world.generation] == message, "a generation is opened to all alike"
                assert message.world.generation == prepared, "nobody was asked to leave for it"
                indices = [index for mine in message.indices.values() for index in mine]
                assert sorted(indices) == list(range(message.work.microbatches if message.work else 0))
                assert message.work in (None, script.training)
        assert world.generation >= newest
        newest = world.generation


@settings(max_examples=150, deadline=None)
@given(moves)
def test_a_run_ends_once_and_only_with_a_verdict(scenario: list[tuple[str, int, int]]) -> None:
    script = Script(ranks=RANKS).boot()
    for kind, rank, number in scenario:
        play(script, kind, rank, number)
    ends = [action for action in script.history if isinstance(action, EndRun)]
    assert len(ends) == (1 if script.state.phase.ended else 0)
    if script.state.phase is Phase.FAILED:
        assert script.look.error
        assert script.look.first_cause
    if script.state.phase is Phase.SUCCEEDED:
        assert script.look.metrics["weights_sha256"] == "weights"


@settings(max_examples=100, deadline=None)
@given(moves)
def test_whoever_is_given_up_is_killed_and_never_opened_to_again(scenario: list[tuple[str, int, int]]) -> None:
    script = Script(ranks=RANKS).boot()
    lost: set[str] = set()
    for kind, rank, number in scenario:
        play(script, kind, rank, number)
        for action in script.answered:
            if isinstance(action, KillRank):
                lost.add(action.incarnation)
            if isinstance(action, Send) and isinstance(action.message, Open):
                assert action.incarnation not in lost
                assert not lost & set(action.message.world.incarnations)
