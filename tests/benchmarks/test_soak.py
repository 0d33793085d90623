"""What a soak is drawn from, and what its figures say."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from everstep.benchmarks.soak.__main__ import Soaked, rows_of
from everstep.benchmarks.soak.plan import Kind, draw
from everstep.benchmarks.soak.training import Left
from everstep.orchestrator.view import Phase, RunState
from hypothesis import given
from hypothesis import strategies as st

LEFT = Left("ab", {0: {(1, 2, 3)}}, {0: {(0.1, 2.0)}})


@given(st.integers(0, 2**32), st.integers(1, 200))
def test_a_seed_says_what_will_happen_and_all_kinds_happen_alike_often(seed: int, faults: int) -> None:
    stages = draw(seed, faults)
    assert stages == draw(seed, faults)
    strikes = [strike for stage in stages for strike in stage.strikes]
    assert len(strikes) == faults
    counts = Counter(strike.kind for strike in strikes)
    assert max(counts.values()) - min(counts[kind] for kind in Kind) <= 1
    steps = [stage.step for stage in stages]
    assert all(after - before >= 2 for before, after in pairwise(steps))


def test_another_seed_is_another_soak() -> None:
    assert draw(1, 50) != draw(2, 50)


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (LEFT, []),
        (replace(LEFT, pids=(7,)), []),
        (replace(LEFT, weights="cd"), ["weights"]),
        (replace(LEFT, samples={0: {(1, 2, 3), (4, 5, 6)}}), ["sample ids"]),
        (replace(LEFT, samples={}), ["sample ids"]),
        (replace(LEFT, rates={0: {(0.1, 2.0), (0.1, 2.5)}}), ["learning rates and losses"]),
    ],
)
def test_what_differs_is_named(other: Left, what: list[str]) -> None:
    assert other.differences(LEFT) == what


def test_figures() -> None:
    state = RunState("soak", Phase.SUCCEEDED, "")
    struck: Counter[str] = Counter({"kill a rank": 3, "ranks join": 1})
    rows = {row.name: row.value for row in rows_of(Soaked(struck, ["weights"], ["process 7"], state))}
    assert rows["soak_faults"] == 4
    assert rows["soak_kill_a_rank"] == 3
    assert (rows["soak_identical"], rows["soak_leftovers"]) == (0, 1)
    assert {row.name: row.value for row in rows_of(Soaked(struck, [], [], state))}["soak_identical"] == 1
