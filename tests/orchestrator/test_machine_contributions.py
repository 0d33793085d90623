"""A member whose contributions stay far larger than those of its peers is named, once, and nothing is done."""

from everstep.actors.evidence import Check, Evidence
from everstep.monitors.contributions import CONFIRM
from everstep.orchestrator.view import VerdictRecord

from .machine_script import Script, name

USUAL, LARGE = 0.5, 500.0


def told(script: Script, step: int, norms: dict[int, float]) -> None:
    for rank, norm in norms.items():
        among = tuple(range(script.ranks))
        said = Evidence(name(rank), Check.STATE, step, script.generation, among, {"weight": 1}, norm=norm)
        script.hear(rank, said)


def verdicts(script: Script) -> list[VerdictRecord]:
    return [record for record in script.look.verdicts if "far larger" in record.reason]


def booted() -> Script:
    return Script(ranks=4, steps=100).boot()


def test_who_stays_far_above_is_named_once_and_stays_a_member() -> None:
    script = booted()
    for check in range(1, CONFIRM):
        told(script, 4 * check, {0: USUAL, 1: LARGE, 2: USUAL, 3: USUAL})
        assert verdicts(script) == []
    for check in range(CONFIRM, CONFIRM + 3):
        told(script, 4 * check, {0: USUAL, 1: LARGE, 2: USUAL, 3: USUAL})
    (record,) = verdicts(script)
    assert (record.kind, record.outcome, record.who, record.step) == ("corruption", "attributed", ("rank 1.0",), 12)
    assert record.evidence == {"rank 0.0": USUAL, "rank 1.0": LARGE, "rank 2.0": USUAL, "rank 3.0": USUAL}
    assert record.done.startswith("nothing")
    assert len(script.state.present) == 4
    assert script.state.recovery is None


def test_single_large_gradients_name_nobody() -> None:
    script = booted()
    for check in range(1, 4 * CONFIRM):
        large = check % 4 if check % CONFIRM else None
        told(script, 4 * check, {rank: LARGE if rank == large else USUAL for rank in range(4)})
    assert verdicts(script) == []


def test_a_check_of_which_something_is_missing_says_nothing() -> None:
    script = booted()
    for check in range(1, 3 * CONFIRM):
        told(script, 4 * check, {0: USUAL, 1: LARGE, 2: USUAL})
    assert verdicts(script) == []


def test_who_has_told_and_is_lost_since_is_not_taken_for_one_who_has_yet_to_tell() -> None:
    script = booted()
    generation = script.generation
    told(script, 4, {2: USUAL, 3: LARGE})
    script.end(3)
    for rank in (0, 1):
        script.hear(rank, Evidence(name(rank), Check.STATE, 4, generation, (), {"weight": 1}, norm=USUAL))
    assert set(script.state.norms.brought.keys()) == {name(rank) for rank in range(4)}
    assert verdicts(script) == []


def test_what_comes_late_or_cannot_be_true_changes_nothing() -> None:
    script = booted()
    told(script, 8, {0: USUAL})
    before = script.state.norms
    told(script, 4, {1: LARGE})
    told(script, 8, {1: float("nan"), 2: -1.0})
    assert script.state.norms == before
