"""From what a run left behind, of which ranks were replaced, to its figures."""

import pytest
from everstep.benchmarks.comebacks import NODE, STORAGE, SWAP, VAULT, comebacks_of, phases_of, rows_of
from everstep.benchmarks.killed_run import Kill, KilledRun
from everstep.benchmarks.timeline import RankTrace


def killed_run(decision: str) -> KilledRun:
    """Killed at 100.0 (journal's clock: 5100.0); new ranks are asked for at 0.1, the generation opens at 6.1."""
    steps = {3: 107.0, 4: 108.0, 5: 109.0}
    computed = {3: [(106.4, 106.6)], 4: [(107.0, 107.7)], 5: [(108.0, 108.7)]}
    newcomer = RankTrace(computed, decided=steps, generations=dict.fromkeys(steps, "1.2"))
    journal = [
        {"what": "rank asked for", "time": 5000.0},
        {"what": "opened", "time": 5003.0, "generation": "1.1"},
        {"what": "recovering", "time": 5100.05},
        {"what": "rank asked for", "time": 5100.1},
        {"what": "opened", "time": 5106.1, "generation": "1.2"},
        {"what": "rank asked for", "time": 5110.0},
    ]
    return KilledRun(
        metrics={"recoveries": [{"decision": decision}]},
        traces={"new": newcomer, "old": RankTrace(decided={2: 99.0}, generations={2: "1.1"})},
        journal=journal,
        kills=[Kill(("old",), at=100.0, wall=5100.0)],
    )


def test_the_start_of_processes_is_counted_apart() -> None:
    (found,) = comebacks_of(STORAGE, killed_run("restore from storage"), True)
    assert (found.first_sign, found.decide) == (pytest.approx(0.05), pytest.approx(0.05))
    assert (found.start, found.restore) == (pytest.approx(6.0), pytest.approx(0.9))
    assert (found.total, found.resume) == (pytest.approx(7.0), pytest.approx(1.0))
    # A microbatch of 0.2 s, and 0.3 s that every step takes from its last one to the commit.
    assert found.beyond == pytest.approx(7.0 - 0.2 - 0.3)
    assert sum(seconds[0] for seconds in list(phases_of([found]).values())[:4]) == pytest.approx(7.0)
    rows = {row.name: row.value for row in rows_of([found], seed=0)}
    assert rows["all_dead_resume_s"] == pytest.approx(1.0)
    assert rows["all_dead_start_s"] == pytest.approx(6.0)


@pytest.mark.parametrize(("kind", "name"), [(SWAP, "swap_recovery_ms"), (NODE, "node_swap_recovery_ms")])
def test_a_spare_has_started_before(kind: str, name: str) -> None:
    (found,) = comebacks_of(kind, killed_run("4 of 4 replicas go on, 1 of them completed by spares"), False)
    rows = {row.name: row.value for row in rows_of([found], seed=0)}
    assert rows[name] == pytest.approx(7000)
    assert rows[name.replace("_ms", "_beyond_compute_ms")] == pytest.approx(6500)
    assert (found.start, rows[f"{kind.replace(' ', '_')}_identical"]) == (0.0, 0.0)


def test_a_loss_that_was_answered_otherwise_is_no_figure() -> None:
    with pytest.raises(RuntimeError, match="restore from vault"):
        comebacks_of(VAULT, killed_run("restore from storage"), True)


def test_a_run_may_be_hit_again() -> None:
    first, second = Kill(("a",), at=10.0, wall=5010.0), Kill(("c",), at=20.0, wall=5020.0)
    survivor = RankTrace(
        decided={0: 5.0, 1: 12.0, 2: 18.0, 3: 23.0, 4: 28.0, 5: 33.0},
        computed={step: [(5.0 * step, 5.0 * step + 1)] for step in range(6)},
        generations={0: "1.1", 1: "1.2", 2: "1.2", 3: "1.3", 4: "1.3", 5: "1.3"},
    )
    # It came in for the first one, and is the second one's victim.
    victim = RankTrace(decided={1: 12.5, 2: 18.0}, generations={1: "1.2", 2: "1.2"})
    journal = [
        {"what": "recovering", "time": 5010.25},
        {"what": "opened", "time": 5010.5, "generation": "1.2"},
        {"what": "recovering", "time": 5020.5},
        {"what": "opened", "time": 5021.0, "generation": "1.3"},
    ]
    decisions = [{"decision": "4 of 4 replicas go on, 1 of them completed by spares"}] * 2
    traces = {"b": survivor, "c": victim, "d": RankTrace(decided={3: 23.5}, generations={3: "1.3"})}
    found = comebacks_of(SWAP, KilledRun({"recoveries": decisions}, traces, journal, [first, second]), True)
    assert [(one.first_sign, one.decide, one.total) for one in found] == [(0.25, 0.25, 2.5), (0.5, 0.5, 3.5)]
    with pytest.raises(RuntimeError, match="completed by spares"):
        comebacks_of(SWAP, KilledRun({"recoveries": decisions[:1]}, traces, journal, [first, second]), True)
