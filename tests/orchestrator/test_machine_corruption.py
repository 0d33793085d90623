"""A rank that computes wrong is named by its peers, shut out, and what has come of it is undone."""

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest
from everstep.actors.evidence import Check, Evidence
from everstep.actors.messages import Fenced, Open
from everstep.actors.saved.sources import START as THE_START
from everstep.monitors.certification import Trust
from everstep.orchestrator.machine.events import Found, KillRank, Saved, Undo
from everstep.orchestrator.machine.memory import inherited, note
from everstep.orchestrator.machine.past import Past, fold
from everstep.orchestrator.machine.records import pings
from everstep.orchestrator.machine.rollback import go_back
from everstep.orchestrator.machine.state import State
from everstep.orchestrator.machine.transition import advance
from everstep.orchestrator.machine.trust import CORRUPTION, marks
from everstep.orchestrator.view import Phase
from everstep.policies.retention import Marks, Undone
from everstep.policies.values import changed
from everstep.policies.world import Generation, Position

from .machine_script import Script, name, sent

EVERY = 4
HELD = {"0.weight": 1, "0.bias": 2}


def script(ranks: int = 4, every: int = EVERY, rolls_back: bool = True, **options: bool) -> Script:
    held = Script(ranks=ranks, steps=100, **options)
    settings = replace(held.state.settings, cadences={CORRUPTION: every}, rolls_back=rolls_back)
    held.state = changed(held.state, settings=settings)
    return held.boot()


def evidence(
    held: Script, rank: int, step: int, signatures: Mapping[str, int], check: Check = Check.STATE, among: int = 4
) -> None:
    said = Evidence(name(rank), check, step, held.generation, tuple(range(among)), signatures, ("an LSTM",))
    held.hear(rank, said)


def check(held: Script, step: int, wrong: Mapping[int, Mapping[str, int]] | None = None, ranks: int = 4) -> None:
    """All ranks bring evidence of one step and train on; these bring other than the others."""
    for rank in range(ranks):
        evidence(held, rank, step, {**HELD, **(wrong or {}).get(rank, {})}, among=ranks)
    if not wrong:
        train_on(held, step + 2, ranks)


def train_on(held: Script, step: int, ranks: int = 4) -> None:
    for rank in range(ranks):
        held.beat(rank, step)


def trust(held: Script) -> Trust:
    return held.state.trust[CORRUPTION]


def went_back(held: Script, *ranks: int) -> Open:
    """The survivors report; what they are told then."""
    for rank in ranks:
        held.report(rank, Position(9))
    opened = [sent(held.answered, rank, Open)[-1] for rank in ranks]
    assert all(each == opened[0] for each in opened)
    return opened[0]


def test_states_are_verified_by_two_clean_checks() -> None:
    held = script()
    check(held, 4)
    assert trust(held) == Trust(candidate=4, checked=4)
    check(held, 8)
    assert trust(held) == Trust(verified=4, candidate=8, checked=8)
    assert held.look.verdicts == ()
    assert held.look.trust == {"corruption": "verified up to step 4; candidate step 8; not covered: an LSTM"}
    assert not held.state.checks


def test_a_check_is_clean_only_when_nothing_more_can_come() -> None:
    held = script()
    for rank in range(4):
        evidence(held, rank, 4, HELD)
    assert CORRUPTION not in held.state.trust
    for rank in range(3):
        held.beat(rank, 6)
    held.beat(3, 5)
    assert CORRUPTION not in held.state.trust, "rank 3 may still bring the evidence of an audit"
    evidence(held, 3, 8, HELD)
    assert trust(held).candidate == 4, "it must have taken these steps"


def test_who_differs_is_shut_out_and_everybody_goes_back_to_what_is_verified() -> None:
    held = script()
    for step in (4, 8, 12):
        held.happen(Saved("vault", step))
        held.happen(Saved("storage", step))
        check(held, step, {2: {"0.bias": 3}} if step == 12 else None)
    assert [action.incarnation for action in held.history if isinstance(action, KillRank)] == [name(2)]
    (fenced,) = sent(held.history, 2, Fenced)
    assert "rank 2 holds another 0.bias; the others hold the same" in fenced.reason
    assert str(held.look.first_cause).startswith("rank 2.0: it computes wrong, state of step 12")
    (verdict,) = held.look.verdicts
    assert (verdict.kind, verdict.outcome, verdict.who, verdict.step) == ("corruption", "attributed", ("rank 2.0",), 12)
    assert verdict.evidence["rank 2.0"] == {"0.bias": "0000000000000003"}
    assert verdict.evidence["rank 0.0"] == {"0.bias": "0000000000000002"}
    assert "known to be right, up to step 4" in verdict.done
    assert held.state.failures.records["node"].failures == 1, "its node is counted"
    held.end(2)
    opened = went_back(held, 0, 1, 3)
    assert opened.position == Position(4)
    assert opened.restore is not None
    assert (opened.restore.source, opened.restore.step, opened.restore.times) == ("vault", 4, 1)
    assert opened.sources == {name(rank): name(rank) for rank in (0, 1, 3)}
    undone = Undone(4, held.generation)
    assert Undo(undone) in held.history
    (record,) = note(changed(held.state, undone=None), held.state)
    assert told_later(record.facts).undone == undone
    # Two of these were on their way to the controller meanwhile.
    for step, number, counts in ((6, 1, False), (4, 1, True), (6, held.generation.number, True)):
        saved = Saved("storage", step, generation=Generation(1, number))
        assert (advance(held.state, saved, 0.0)[0].saved["storage"] == step) == counts
    assert held.state.saved == {"vault": 4, "storage": 4}
    assert held.look.decision.startswith("everybody goes back to step 4, from vault, since rank 2.0 computed wrong")
    assert trust(held) == Trust(verified=4, checked=4)
    held.join(0, 1, 3)
    held.resume(0, 1, 3, step=4)
    assert held.look.phase is Phase.RUNNING
    assert held.state.rollback is None
    assert held.look.sources[-1] == "vault: step 4, taken"


@pytest.mark.parametrize("saved", [(), (9,)])
def test_where_nothing_is_known_to_be_right_everybody_begins_anew(saved: tuple[int, ...]) -> None:
    held = script()
    for step in saved:
        held.happen(Saved("vault", step))
    check(held, 12, {2: {"0.bias": 3}})
    held.end(2)
    opened = went_back(held, 0, 1, 3)
    assert opened.restore is not None
    assert (opened.position, opened.restore.source, opened.restore.step) == (Position(0), THE_START, 0)
    assert held.state.saved == {}


def test_a_candidate_is_better_than_nothing_and_a_resumed_run_began_with_what_is_right() -> None:
    held = script()
    held.happen(Saved("storage", 3))
    check(held, 4)
    check(held, 8, {2: {"0.bias": 3}})
    held.end(2)
    assert went_back(held, 0, 1, 3).position == Position(3)
    held = Script(ranks=4, steps=100)
    held.state = changed(held.state, settings=replace(held.state.settings, cadences={CORRUPTION: EVERY}))
    held.happen(Found("storage", 50))
    held.boot()
    check(held, 52, {2: {"0.bias": 3}})
    held.end(2)
    assert went_back(held, 0, 1, 3).position == Position(50)


def test_a_failure_while_they_go_back_does_not_stop_it() -> None:
    held = script()
    check(held, 12, {2: {"0.bias": 3}})
    held.end(2)
    first = went_back(held, 0, 1, 3)
    held.join(0, 1)
    held.end(3)
    for rank in (0, 1):
        held.report(rank, Position(0), begun=False)
    second = sent(held.answered, 0, Open)[-1]
    assert second.world.generation > first.world.generation
    assert second.restore is not None
    assert second.restore.source == THE_START
    held.join(0, 1)
    held.resume(0, 1)
    assert held.look.phase is Phase.RUNNING


def test_who_has_died_since_has_done_harm_all_the_same() -> None:
    held = script()
    for rank, bias in ((1, 2), (2, 3), (3, 2)):
        evidence(held, rank, 12, {**HELD, "0.bias": bias})
    held.end(2)
    evidence(held, 0, 12, HELD)
    opened = went_back(held, 0, 1, 3)
    assert opened.position == Position(0)
    assert "since rank 2.0 computed wrong" in held.look.decision


def test_audits_name_as_well_and_what_does_not_come_only_blocks() -> None:
    held = script()
    gradient = {"gradient of microbatch 5": 7}
    for rank in (0, 1):
        evidence(held, rank, 4, gradient, Check.AUDIT, among=3)
    check(held, 4)
    assert "there is no evidence of audit of rank 2.0" in str(trust(held).blocked)
    (verdict,) = held.look.verdicts
    assert (verdict.outcome, verdict.who) == ("inconclusive", ())
    for rank in range(3):
        evidence(held, rank, 8, {"gradient of microbatch 5": 7 + (rank == 1)}, Check.AUDIT, among=3)
    assert [action.incarnation for action in held.history if isinstance(action, KillRank)] == [name(1)]
    assert "audit of step 8: rank 1 holds another gradient of microbatch 5" in held.look.verdicts[-1].reason


def test_two_detect_and_name_nobody() -> None:
    held = script(ranks=2)
    check(held, 4, {1: {"0.bias": 3}}, ranks=2)
    (verdict,) = held.look.verdicts
    assert (verdict.outcome, verdict.done) == (
        "inconclusive",
        "nothing: nobody can be named, and the step is not verified",
    )
    check(held, 8, ranks=2)
    assert [text for text in held.look.warnings if "2 peers can detect" in text] == list(held.look.warnings)
    assert held.look.phase is Phase.RUNNING
    assert "blocked" not in held.look.trust["corruption"]


def test_it_is_only_said_if_that_is_wanted() -> None:
    held = script(rolls_back=False)
    check(held, 4, {2: {"0.bias": 3}})
    (verdict,) = held.look.verdicts
    assert (verdict.who, verdict.done) == (("rank 2.0",), "nothing, as elastic.on_corruption says")
    assert held.look.phase is Phase.RUNNING
    assert "blocked: step 4" in held.look.trust["corruption"]


def test_the_end_of_a_generation_settles_what_is_open() -> None:
    held = script()
    for rank in range(3):
        evidence(held, rank, 4, HELD)
    held.end(3)
    held.recover(0, 1, 2)
    assert not held.state.checks
    assert "the group changed" in str(trust(held).blocked)
    held.hear(0, Evidence(name(0), Check.STATE, 4, Generation(1, 1), (0, 1, 2), HELD))
    assert held.records("late evidence refused")
    assert not held.state.checks


def test_records_of_steps_that_are_taken_once_more_come_again() -> None:
    held = script()
    held.beat(0, 8, records=range(8))
    check(held, 8, {2: {"0.bias": 3}})
    held.end(2)
    went_back(held, 0, 1, 3)
    assert held.state.recorded == 0
    assert any(action.message.recorded == 0 for action in pings(held.state))  # type: ignore[union-attr]


def test_garbage_is_refused() -> None:
    held = script()
    for among, step, value in (((1, 0), 4, 1), ((0, 1), -1, 1), ((0, 1), 4, 2**63), ((), 4, 1)):
        held.hear(0, Evidence(name(0), Check.AUDIT, step, held.generation, among, {"x": value}))
    assert len(held.records("refused, it cannot be true")) == 4
    assert not held.state.checks


def test_what_all_bring_need_not_name_them() -> None:
    held = script()
    for rank in range(4):
        assert not held.look.verdicts
        held.hear(rank, Evidence(name(rank), Check.STATE, 4, held.generation, (), {"x": int(rank == 2)}))
    (verdict,) = held.look.verdicts
    assert verdict.who == ("rank 2.0",)


def told_later(facts: Mapping[str, object]) -> Past:
    return fold(json.loads(json.dumps([{"what": "memory", "time": 1.0, **facts}])))


def test_a_later_controller_goes_on_with_it() -> None:
    """It knows what is verified; and if nobody was told to go back, it has everybody go back."""
    held = script()
    for step in (4, 8):
        held.happen(Saved("vault", step))
        check(held, step)
    before = held.state
    check(held, 12, {2: {"0.bias": 3}})
    (record,) = note(State(before.settings), held.state)
    past = told_later(record.facts)
    assert past.trust[CORRUPTION].verified == 4
    assert past.rollback == held.state.rollback
    later = inherited(State(before.settings), past)
    assert marks(later) == Marks((4,), ((EVERY, 12),))
    assert past.rollback is not None
    opened = replace(past.rollback, opened=Generation(1, 2))
    (record,) = note(held.state, changed(held.state, rollback=opened))
    assert told_later(record.facts).rollback == opened


def test_a_run_whose_ranks_have_finished_goes_back_all_the_same() -> None:
    held = script()
    held.finish(0, 1)
    check(held, 12, {3: {"0.bias": 3}})
    held.end(3)
    held.finish(2)
    assert held.look.phase is Phase.RECOVERING, "all who are left have finished, with wrong weights"
    opened = went_back(held, 0, 1, 2)
    assert opened.position == Position(0)
    held.join(0, 1, 2)
    held.resume(0, 1, 2)
    held.finish(0, 1, 2)
    assert held.look.phase is Phase.SUCCEEDED


def test_others_who_watch_come_in_by_the_same_door() -> None:
    held = script()
    held.happen(Saved("storage", 5))
    held.state, actions = go_back(held.state, held.now, "stability", "attention collapses", "attention collapses", 6)
    held.history += actions
    opened = went_back(held, 0, 1, 2, 3)
    assert opened.restore is not None
    assert (opened.restore.step, len(opened.world.members)) == (5, 4)
    assert held.state.deathless == 0
    assert held.look.phase is Phase.RECOVERING
