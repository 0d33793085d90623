"""A run that goes on from a saved state: where it begins, and when it must not."""

from everstep.actors.messages import Hello, Open, Prepare, Ready, Report, Restore
from everstep.orchestrator.machine.events import (
    EndRun,
    Found,
    Heard,
    Lost,
    Saved,
    Send,
    Started,
    StartRank,
    StoreOpened,
)
from everstep.orchestrator.machine.resuming import identity
from everstep.orchestrator.view import Phase
from everstep.policies.world import Position

from .machine_script import Script, generation, name

IDENTITY = {"seed": "3", "initial state of weight": "abc"}


def begun(found: Found, seed: str = "3", weight: str = "abc", steps: int = 9) -> Script:
    """Two ranks come to ``begin``."""
    script = Script(ranks=2)
    script.happen(found)
    if script.state.phase.ended:
        return script
    script.happen(Started())
    script.happen(StoreOpened("host", 1))
    for rank in range(2):
        script.hear(rank, Hello(name(rank), 100 + rank, "node"))
        script.hear(rank, Ready(name(rank), {"weight": weight}, steps, {"seed": seed}))
    return script


def test_everybody_takes_the_saved_state() -> None:
    script = begun(Found("storage", 4, IDENTITY))
    opened = [action.message for action in script.answered if isinstance(action, Send)]
    message = opened[0]
    assert isinstance(message, Open)
    assert (message.position, message.restore) == (Position(4), Restore("storage", 4))
    assert message.sources == {name(rank): name(rank) for rank in range(2)}
    assert script.look.resumed == "step 4, from storage"
    assert script.look.sources == ("storage: step 4, taken",)
    # If everybody dies before the next one is saved, it is still there.
    assert script.state.saved == {"storage": 4}


def test_where_nothing_whole_was_found_the_run_begins_anew_and_says_why() -> None:
    script = begun(Found("storage", 0, skipped=("the checkpoint of step 4 is not taken: it is cut",)))
    (message, _) = [action.message for action in script.answered if isinstance(action, Send)]
    assert isinstance(message, Open)
    assert (message.position, message.restore, message.sources) == (Position(0), None, {})
    assert script.look.resumed == ""
    assert script.look.warnings == ("the checkpoint of step 4 is not taken: it is cut",)


def test_another_seed_or_model_is_refused_by_name() -> None:
    for change, said in (({"seed": "4"}, "another seed (3 then, 4 now)"), ({"weight": "x"}, "initial state of weight")):
        script = begun(Found("storage", 4, IDENTITY), **change)  # type: ignore[arg-type]
        assert script.look.phase is Phase.FAILED
        assert said in str(script.look.error)
        assert any(isinstance(action, EndRun) for action in script.answered)


def test_a_run_of_fewer_steps_is_refused() -> None:
    script = begun(Found("storage", 4, IDENTITY), steps=3)
    assert "has taken 4 steps already, and is to take 3" in str(script.look.error)
    assert begun(Found("storage", 4, IDENTITY), steps=4).look.phase is Phase.RUNNING


def test_what_cannot_be_used_ends_the_run_before_anything_starts() -> None:
    script = begun(Found("storage", 0, refused="the checkpoints cannot be read"))
    assert script.look.phase is Phase.FAILED
    assert script.look.error == "the checkpoints cannot be read"


def test_before_any_rank_is_ready_a_run_has_no_identity() -> None:
    assert identity(Script().state) == {}


def test_the_identity_is_what_ranks_say() -> None:
    assert identity(begun(Found("storage", 0)).state) == IDENTITY


def without(older: int | None) -> Script:
    """What everybody is to go back to cannot be read; all report that they still lack it."""
    script = begun(Found("storage", 4, IDENTITY))
    script.happen(Lost("storage", 4, older, "part-0001 is cut"))
    assert [action.message for action in script.answered if isinstance(action, Send)] == [Prepare(generation(2))] * 2
    for rank in range(2):
        nothing = frozenset[int]()
        script.hear(rank, Report(name(rank), generation(1), Position(4), nothing, nothing, lacks=True))
    return script


def test_an_older_state_is_taken_when_one_cannot_be_read() -> None:
    script = without(older=2)
    message = next(action.message for action in script.answered if isinstance(action, Send))
    assert isinstance(message, Open)
    assert (message.position, message.restore) == (Position(2), Restore("storage", 2, times=1))
    assert script.look.warnings == ("what storage holds of step 4 cannot be read: part-0001 is cut",)
    failed = "storage: step 4 cannot be read: part-0001 is cut"
    assert script.look.sources == (failed, "vault: it holds nothing", "storage: step 2, taken")


def test_where_there_is_no_older_one_the_run_ends_and_says_why() -> None:
    script = without(older=None)
    assert script.look.phase is Phase.FAILED
    assert "storage holds of step 4 cannot be read: part-0001 is cut" in str(script.look.error)


def test_what_is_lost_while_nobody_needs_it_disturbs_nobody() -> None:
    script = begun(Found("storage", 0))
    script.happen(Saved("storage", 4))
    script.happen(Lost("storage", 4, 2, "it is cut"))
    assert script.look.phase is Phase.RUNNING
    assert script.state.saved == {"storage": 2}


def test_a_rank_that_dies_before_the_first_generation_is_asked_for_again() -> None:
    """What is saved is worth another start, unless nobody is to be replaced; a run that begins anew ends at once."""
    for replaces, found in ((True, 4), (False, 4), (True, 0)):
        script = Script(ranks=2, minimum=2, replaces=replaces)
        script.happen(Found("storage", found, IDENTITY))
        script.happen(Started())
        script.happen(StoreOpened("host", 1))
        script.hear(0, Hello(name(0), 100, "node"))
        script.hear(0, Ready(name(0), {"weight": "abc"}, 9, {"seed": "3"}))
        script.end(1)
        if not (replaces and found):
            assert script.look.phase is Phase.FAILED
            continue
        (asked,) = [action for action in script.wait(2.0, 0) if isinstance(action, StartRank)]
        script.happen(Heard(asked.incarnation, Hello(asked.incarnation, 102, "node")))
        script.happen(Heard(asked.incarnation, Ready(asked.incarnation, {"weight": "abc"}, 9, {"seed": "3"})))
        sent = [action.message for action in script.answered if isinstance(action, Send)]
        opened = next(message for message in sent if isinstance(message, Open))
        assert set(opened.world.names) == {name(0), asked.incarnation}
        assert opened.position == Position(4)
