"""The trajectory: where ranks are lost, what is counted, and the whole of it on a small scale."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from everstep.benchmarks.trajectory import __main__ as trajectory
from everstep.benchmarks.trajectory import cpu_time
from everstep.benchmarks.trajectory.course import IN_REDUCTION, Course, Outcome
from everstep.benchmarks.trajectory.figures import REFERENCES, ByArm, gaps, identical, rows_of

COURSE = Course(seed=3, ranks=8, steps=21, every=5)
BURN = "import time\nwhile time.process_time() < 0.2: pass"


def test_half_of_the_ranks_are_lost_one_by_one_in_a_reduction() -> None:
    assert [fault.step for fault in COURSE.faults] == [5, 10, 15, 20]
    assert len({fault.replica for fault in COURSE.faults}) == 4
    assert all(fault.replica < 8 and fault.point in IN_REDUCTION for fault in COURSE.faults)
    assert COURSE.faults == replace(COURSE).faults
    assert COURSE.faults != replace(COURSE, seed=4).faults
    assert {fault.point for seed in range(10) for fault in replace(COURSE, seed=seed).faults} == set(IN_REDUCTION)


def test_a_loss_that_would_never_come_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        trajectory.main(["--steps", "20"])
    assert "20 steps end before the last loss, which is in step 20" in capsys.readouterr().err


def test_cpu_time_of_the_living_and_of_the_dead(tmp_path: Path) -> None:
    child = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BURN!r}])"
    family = f"{child}\n{BURN}\nprint(flush=True)\ninput()"
    cpu_time.note(tmp_path, os.getpid())
    with subprocess.Popen([sys.executable, "-c", family], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        started.stdout.readline()
        alive = cpu_time.since_noted(tmp_path, os.getpid())
        started.communicate(b"\n")
    dead = cpu_time.since_noted(tmp_path, os.getpid())
    # Twice 0.2, counted in ticks of 10 ms.
    assert 0.35 < alive <= dead < 1.5


def outcome(*losses: float, computed: int = 8, cpu_s: float = 2.0, starts_cpu_s: float = 0.0) -> Outcome:
    return Outcome(losses, summed=8, computed=computed, cpu_s=cpu_s, starts_cpu_s=starts_cpu_s, weights=str(losses))


def arms(**others: Outcome) -> ByArm:
    plain = {arm: outcome(3.0, 2.0) for arm in (*trajectory.ARMS, *REFERENCES)}
    return {**plain, **others}


def test_a_gap_is_the_largest_of_all_seeds_at_the_same_step() -> None:
    seeds = [arms(exact=outcome(3.5, 2.0)), arms(exact=outcome(3.25, 1.0), restart=outcome(3.0, 2.125))]
    assert gaps("exact", seeds) == [0.5, 1.0]
    assert gaps("restart", seeds) == [0.0, 0.125]
    assert gaps("float_versatile", seeds) == [0.0, 0.0]
    assert not identical(seeds)
    assert identical([arms()])


def test_each_arm_is_compared_with_the_run_that_sums_alike() -> None:
    drifted = [arms(undisturbed_float=outcome(3.0, 2.5))]
    assert {arm: max(gaps(arm, drifted)) for arm in REFERENCES} == {
        "exact": 0.0,
        "float_versatile": 0.5,
        "adaptive_world": 0.5,
        "restart": 0.5,
    }


def test_rows() -> None:
    seeds = [arms(restart=outcome(3.0, 2.0, computed=10, cpu_s=8.0, starts_cpu_s=7.0)), arms(undisturbed=outcome(4, 2))]
    rows = {row.name: row.value for row in rows_of(seeds[:1], tokens=10, seed=0)}
    assert rows["identical"] == 1
    assert rows["exact_tokens_per_cpu_s"] == 40
    assert rows["restart_tokens_per_cpu_s"] == 10
    assert rows["everstep_vs_restart_tokens_per_cpu_s"] == 4
    assert rows["everstep_vs_restart_tokens_per_cpu_s_starts_free"] == 0.5
    assert "loss_gap_of_two_seeds" not in rows
    assert seeds[0]["restart"].wasted == 2
    assert {row.name: row.value for row in rows_of(seeds, 10, 0)}["loss_gap_of_two_seeds"] == 1


def test_the_whole_of_it_on_a_small_scale(tmp_path: Path) -> None:
    trajectory.main(["--quick", "--json", str(tmp_path / "figures.json"), "--plot", str(tmp_path / "curves.png")])
    rows = {row["name"]: row["value"] for row in json.loads((tmp_path / "figures.json").read_text())["rows"]}
    assert rows["identical"] == 1
    assert rows["exact_loss_gap"] == 0
    assert rows["float_versatile_loss_gap"] < 1e-4
    assert 0 < rows["restart_loss_gap"] < 1e-4
    # A batch that shrinks is seen in the loss.
    assert rows["adaptive_world_loss_gap"] > 1e-3
    assert rows["everstep_vs_restart_tokens_per_cpu_s"] > 1
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
