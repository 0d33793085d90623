"""Hundreds of runs under faults at any instant; and proof that the checks would find a broken protocol."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from everstep.actors.messages import Open, StoreAddress
from everstep.actors.rank.transaction import Verdict
from everstep.benchmarks.simulated_protocol import replay
from everstep.orchestrator.simulation.protocol.bugs import BUGS, Bug
from everstep.orchestrator.simulation.protocol.campaign import campaign, find, play
from everstep.orchestrator.simulation.protocol.checkers import Checks, Violation
from everstep.orchestrator.simulation.protocol.faults import COUNTED, POINTS
from everstep.orchestrator.simulation.protocol.loop import Loop
from everstep.orchestrator.simulation.protocol.outcome import Outcome
from everstep.orchestrator.simulation.protocol.parts import Parts, fingerprint
from everstep.orchestrator.simulation.protocol.ranks import Rank
from everstep.orchestrator.simulation.protocol.simulation import Simulation
from everstep.policies.world import Generation, Member, Position, Seat, Work, WorkKind, World

SEEDS = 150
CHUNK = 50
MODULE = "everstep.orchestrator.simulation.protocol.simulation"


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    """What came of all runs of this module."""
    return Outcome()


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_nothing_forbidden_happens(first: int, outcome: Outcome) -> None:
    """A failure names its seed; ``python -m everstep.benchmarks.simulated_protocol --seed N`` plays it again."""
    part = play(range(first, first + CHUNK))
    outcome.add(part)
    assert not part.violations, next(iter(part.violations.values()))


def test_the_runs_went_where_it_is_dangerous(outcome: Outcome) -> None:
    if outcome.seeds < SEEDS:
        pytest.skip("needs the runs above")
    for what in (
        "followed",
        "promised before it saw the vote",
        "failed in the sum",
        "stale report refused",
        "refused, its sender is fenced",
        "deathless",
        "woke",
        "orphaned",
        "void of training",
        "commit of evaluation",
        "waited to begin",
        "nobody had begun",
        "some had begun",
        "opened in training",
        "opened in evaluation",
        "opened with poison",
        "opened with shadows",
        "opened with dropped microbatches",
        "opened with leavers",
        "opened with newcomers",
        "opened with a saved state",
        "began anew",
        "parked",
        "left",
        "waiting",
        "node lost",
        "a machine came",
        "took over",
        "adopted",
        "deposed",
        "journals were lost",
        "fenced",
        "computed wrong",
        "named",
        "going back",
        "succeeded",
        "failed",
    ):
        assert outcome.seen[what], f"no run saw: {what}"
    assert outcome.seen["recovered"] > SEEDS / 3
    assert outcome.faults > SEEDS


def test_every_kind_of_fault_hits_where_it_hurts_most(outcome: Outcome) -> None:
    if outcome.seeds < SEEDS:
        pytest.skip("needs the runs above")
    often, dangerous = ("crash", "nap", "partition"), ("sum", "vote", "voted", "report", "open", "built")
    assert not [(kind, point) for kind in often for point in dangerous if not outcome.hits[kind, point]]
    assert {point for _, point in outcome.hits} == set(POINTS)
    assert {kind for kind, _ in outcome.hits} >= set(COUNTED)


@pytest.mark.parametrize("seed", [696, 4200, 15566, 18384])
def test_runs_in_which_checks_once_saw_what_was_not_there(seed: int) -> None:
    """Courses of the run that were left, and messages that nobody reads any more."""
    Simulation(seed).run()


def test_a_seed_is_one_run() -> None:
    for seed in (3, 18, 44):
        first, second = Simulation(seed), Simulation(seed)
        first.run()
        second.run()
        assert first.diary.lines() == second.diary.lines()


def test_a_seed_is_the_same_run_in_another_process() -> None:
    """Whatever the order in which sets and maps of that process are walked through."""
    lines = (
        f"from {MODULE} import Simulation",
        "for seed in range(12):",
        "    played = Simulation(seed)",
        "    played.run()",
        # What comes later in a line may be a set, which is written in any order.
        "    print(*(line[:60] for line in played.diary.lines()), sep='\\n')",
    )
    told = [printed("\n".join(lines), PYTHONHASHSEED=hashing) for hashing in ("1", "2")]
    assert told[0] == told[1]
    assert "controller 1 hears" in told[0]


def printed(program: str, **environment: str) -> str:
    """What a program prints that runs in a process of its own."""
    played = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True, text=True, check=True, timeout=60, env={**os.environ, **environment},
    )  # fmt: skip
    return played.stdout


def test_a_simulation_loads_neither_torch_nor_ray() -> None:
    program = f"import sys, {MODULE}; print(*({{'torch', 'ray', 'numpy'}} & set(sys.modules)))"
    assert printed(program).strip() == ""


def test_a_seed_is_played_again_with_its_story(capsys: pytest.CaptureFixture[str]) -> None:
    assert replay(3)
    told = capsys.readouterr().out
    assert "controller 1 hears" in told
    assert told.splitlines()[-1].startswith("seed 3 ends as ")


def test_an_interrupted_campaign_goes_on_where_it_was(tmp_path: Path) -> None:
    kept = Parts(tmp_path / "parts.jsonl", "this code")
    played = [
        Outcome(2, Counter({"woke": place}), Counter({("crash", "vote"): place}), {place: "told"}, 0.5)
        for place in range(3)
    ]
    kept.write(range(2), played[0])
    Parts(tmp_path / "parts.jsonl", "another code").write(range(2, 4), played[1])
    kept.write(range(4, 6), played[2])
    with (tmp_path / "parts.jsonl").open("a") as file:
        file.write('{"code": "this code", "fi')
    assert kept.read() == {range(2): played[0], range(4, 6): played[2]}
    goes_on = campaign(0, 1, kept, chunk=2)
    first, second, third = (next(goes_on) for _ in range(3))
    goes_on.close()
    assert (first, third) == (played[0], played[2])
    assert second.hits == play(range(2, 4)).hits
    assert kept.read()[range(2, 4)] == second


def test_a_verdict_counts_in_its_course_of_the_run() -> None:
    """After everybody else went back and died, a rank goes on that was left behind: with what it had decided before."""
    evaluation, step = Work(WorkKind.EVALUATION, 3), Work(WorkKind.TRAINING, 3)
    first, anew, later = (Generation(term, 1) for term in (1, 2, 3))
    checks, store = Checks(Loop(0, 3), exact=True), StoreAddress("host", 1, "run")
    for generation, old, sources in ((first, None, {}), (anew, first, {"a": "a"}), (later, first, {})):
        world = World(generation, (Member("a", Seat(0)),))
        checks.sent(Open(world, Position(1), {}, store, sources=sources), old)

    def decide(generation: Generation, work: Work) -> None:
        rank = SimpleNamespace(
            training=SimpleNamespace(position=Position(1), work=work),
            ledger=SimpleNamespace(transaction=SimpleNamespace(generation=generation)),
        )
        checks.verdict(cast(Rank, rank), Verdict.COMMIT)

    decide(first, evaluation)
    decide(anew, step)
    with pytest.raises(Violation, match="is decided"):
        decide(later, step)
    decide(later, evaluation)


def test_a_later_controller_must_go_on_with_the_newest_world_it_heard_of() -> None:
    checks, generation = Checks(Loop(0, 3), exact=True), Generation(1, 1)
    world = World(generation, (Member("a", Seat(0)),))
    checks.adopted(world, [])
    checks.adopted(world, [generation])
    with pytest.raises(Violation, match=r"after 1\.2 was heard of"):
        checks.adopted(world, [generation, generation.next()])


def test_only_the_newest_controller_may_act() -> None:
    checks = Checks(Loop(0, 3), exact=True)
    checks.acts(2, newest=2)
    with pytest.raises(Violation, match="term 1 acts"):
        checks.acts(1, newest=2)


def test_code_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "actors").mkdir()
    code = tmp_path / "actors" / "rank.py"
    seen = set()
    for text in ("one = 1", "one = 2"):
        code.write_text(text)
        seen.add(fingerprint(tmp_path))
    code.rename(tmp_path / "actors" / "other.py")
    assert len(seen | {fingerprint(tmp_path)}) == 3
    assert fingerprint() == fingerprint()


@pytest.mark.parametrize("bug", [bug for bug in BUGS if not bug.rare], ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug: Bug) -> None:
    """The rare ones, which take longer, are looked for by the benchmark."""
    assert find(bug, range(500)) is not None
