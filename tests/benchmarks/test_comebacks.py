"""From what a run left behind, of which ranks were replaced, to its figures."""

import pytest
from everstep.benchmarks.comebacks import NODE, STORAGE, SWAP, VAULT, comeback_of, phases_of, rows_of
from everstep.benchmarks.killed_run import Kill, KilledRun
from everstep.benchmarks.timeline import RankTrace


def killed_run(decision: str) -> KilledRun:
    """Killed at 100.0 (journal's clock: 5100.0); new ranks are asked for at 0.1, the generation opens at 6.1."""
    newcomer = RankTrace(decided={3: 107.0, 4: 108.0})
    journal = [
        {"what": "rank asked for", "time": 5000.0},
        {"what": "opened", "time": 5003.0},
        {"what": "recovering", "time": 5100.05},
        {"what": "rank asked for", "time": 5100.1},
        {"what": "opened", "time": 5106.1},
        {"what": "rank asked for", "time": 5110.0},
    ]
    return KilledRun(
        metrics={"recoveries": [{"decision": decision}]},
        traces={"new": newcomer, "old": RankTrace(decided={2: 99.0})},
        journal=journal,
        kill=Kill(("old",), at=100.0, wall=5100.0),
    )


def test_the_start_of_processes_is_counted_apart() -> None:
    found = comeback_of(STORAGE, killed_run("restore from storage"), True)
    assert (found.first_sign, found.decide) == (pytest.approx(0.05), pytest.approx(0.05))
    assert (found.start, found.restore) == (pytest.approx(6.0), pytest.approx(0.9))
    assert (found.total, found.resume) == (pytest.approx(7.0), pytest.approx(1.0))
    assert sum(seconds[0] for seconds in list(phases_of([found]).values())[:4]) == pytest.approx(7.0)
    rows = {row.name: row.value for row in rows_of([found], seed=0)}
    assert rows["all_dead_resume_s"] == pytest.approx(1.0)
    assert rows["all_dead_start_s"] == pytest.approx(6.0)


@pytest.mark.parametrize(("kind", "name"), [(SWAP, "swap_recovery_ms"), (NODE, "node_swap_recovery_ms")])
def test_a_spare_has_started_before(kind: str, name: str) -> None:
    found = comeback_of(kind, killed_run("4 of 4 replicas go on, 1 of them completed by spares"), False)
    rows = {row.name: row.value for row in rows_of([found], seed=0)}
    assert rows[name] == pytest.approx(7000)
    assert (found.start, rows[f"{kind.replace(' ', '_')}_identical"]) == (0.0, 0.0)


def test_a_loss_that_was_answered_otherwise_is_no_figure() -> None:
    with pytest.raises(RuntimeError, match="restore from vault"):
        comeback_of(VAULT, killed_run("restore from storage"), True)
