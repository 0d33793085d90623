"""From what a killed run left behind to its figures."""

import pytest
from everstep.benchmarks import recovery
from everstep.benchmarks.killed_run import Kill, KilledRun
from everstep.benchmarks.peers import torchft
from everstep.benchmarks.peers.common import PeerRecovery
from everstep.benchmarks.recovery import beyond_compute, peer_rows, recovery_of, rows_of
from everstep.benchmarks.timeline import RankTrace


def killed_run() -> KilledRun:
    """Killed at 100.0 (journal's clock: 5100.0); first sign after 20 ms; nobody computes from 100.1 on."""
    survivor = RankTrace(
        computed={3: [(99.5, 100.1), (100.15, 100.3)], 4: [(100.5, 101.0)], 5: [(101.1, 101.6)]},
        decided={3: 100.37, 4: 101.05, 5: 101.65},
        generations={3: "1.2", 4: "1.2", 5: "1.2"},
    )
    victim = RankTrace(computed={3: [(99.5, 100.0)]})
    phases = {"notice and report": 0.03, "plan": 0.01, "rebuild": 0.06, "recompute": 0.2, "total": 0.3}
    return KilledRun(
        metrics={"recoveries": [{"phases": phases}]},
        traces={"a": survivor, "b": victim},
        journal=[{"what": "opened", "time": 5000.0}, {"what": "recovering", "time": 5100.02}],
        kills=[Kill(("b",), at=100.0, wall=5100.0)],
    )


def test_one_recovery() -> None:
    found = recovery_of(killed_run())
    assert found.first_sign == pytest.approx(0.02)
    assert found.coordination == pytest.approx(0.03 + 0.01 + 0.06)
    # The group is built from 100.06 to 100.12; the survivor computes until 100.1.
    assert found.rebuild_idle == pytest.approx(0.02)
    assert found.coordination_idle == pytest.approx(0.02)
    assert found.idle == pytest.approx(0.05 + 0.07)
    assert found.total == pytest.approx(0.37)
    assert found.reductions == (pytest.approx(0.05), pytest.approx(0.05))


def test_what_every_step_pays_is_not_charged_to_the_recovery() -> None:
    assert beyond_compute([recovery_of(killed_run())]) == [pytest.approx(0.07)]


def test_headline_rows() -> None:
    rows = {row.name: row for row in rows_of([recovery_of(killed_run())] * 3, identical=True, seed=0)}
    assert rows["shrink_recovery_ms"].value == pytest.approx(70)
    assert rows["coordination_p95_ms"].value == pytest.approx(100)
    assert rows["kill_to_rebuilt_p95_ms"].value == pytest.approx(120)
    assert rows["kill_to_rebuilt_idle_p95_ms"].value == pytest.approx(20)
    assert rows["identical"].value == 1
    assert "coordination" in recovery.phases_of([recovery_of(killed_run())])


def test_peers_are_named_as_their_measurements_name_them() -> None:
    assert set(torchft.SETTINGS) <= set(recovery.PEERS)
    of_peers = [PeerRecovery(name, 1000.0 + number, 2, 1) for number, name in enumerate(recovery.PEERS)]
    rows = {row.name: row.value for row in peer_rows(of_peers, seed=0)}
    assert rows["torchrun_restart_ms"] == 1000
    assert rows["ray_train_restart_ms"] == 1001
    assert rows["torchft_tuned_ms"] == 1002
    assert rows["torchft_default_ms"] == 1003
    assert rows["torchrun_restart_steps_redone"] == 2
