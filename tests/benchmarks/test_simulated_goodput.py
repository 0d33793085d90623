"""The simulated table: what must hold whatever the machine is that it is made on."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
from everstep.benchmarks import simulated_goodput as goodput
from everstep.benchmarks import simulated_goodput_arms as arms
from everstep.benchmarks.common import Row
from everstep.benchmarks.simulated_goodput_plot import plot
from everstep.benchmarks.simulated_goodput_regret import FIXED, duel, duels, regret_table, where_auto_wins
from everstep.benchmarks.simulated_goodput_scale import plan_after_a_loss


def test_the_dearer_a_restart_the_better_it_is_to_go_on() -> None:
    factors = [goodput.versatile_against_restart(32, seconds) for seconds in (0, 60, 600)]
    # Half an interval is done again at every loss, however quick the restart.
    assert 1.2 < factors[0] < factors[1] < factors[2]


def test_the_restart_at_which_a_factor_comes_out() -> None:
    seconds = goodput.restart_that_gives(1.749, 32)
    assert seconds is not None
    below, above = (goodput.versatile_against_restart(32, seconds + change) for change in (-5, 5))
    assert below < 1.76
    assert above > 1.74
    assert goodput.restart_that_gives(1.01, 32) is None


def test_the_step_is_calibrated_to_the_published_tokens() -> None:
    """102 million tokens are 74.9 % more: 238 million."""
    outcome = arms.VERSATILE.play(arms.recover_3d(32, 8))
    assert outcome.tokens == pytest.approx(238e6, rel=0.03)
    assert outcome.gpu_hours == pytest.approx(234)


def test_an_adaptive_world_trains_on_less() -> None:
    world = replace(arms.recover_trajectory(), steps=40)
    exact, adaptive = arms.VERSATILE.play(world), arms.ADAPTIVE.play(world)
    assert exact.steps == adaptive.steps == 40
    assert exact.tokens == 40 * 8192 * 4096
    assert adaptive.tokens < exact.tokens


def test_a_large_fleet_shrinks_and_grows_again() -> None:
    world = arms.large(1024, 1800.0, 3 * 3600.0)
    outcome = arms.auto(0).play(world)
    assert sum(outcome.remedies.values()) >= 2
    assert outcome.goodput > arms.restart(35, 300.0, minimum=8, spares=16).play(world).goodput


def test_a_duel_is_fought_over_the_same_failures_by_all() -> None:
    first, again = (duel(random.Random(3)) for _ in range(2))
    assert first == again
    assert set(first.goodput) == {*FIXED, "auto", "auto, true costs"}
    assert first.regret(first.best) == 0
    assert all(0 < value <= 1 for value in first.goodput.values())


def test_where_auto_wins_counts_every_world_once_for_each_policy() -> None:
    fought = duels(3, seed=1)
    tables = regret_table(fought), where_auto_wins(fought)
    assert [next(iter(table.columns[0].cells)) for table in tables] == ["auto", "all"]
    for column in tables[1].columns[2:]:
        counts = [int(count) for count in next(iter(column.cells)).split(" / ")]  # type: ignore[union-attr]
        assert sum(counts) == len(counts) == 3


@pytest.mark.parametrize(("ranks", "size"), [(64, 8), (48, 1)])
def test_a_plan_opens_to_all_that_are_left(ranks: int, size: int) -> None:
    planned = plan_after_a_loss(ranks, size, 4)
    assert planned.opened == ranks - size
    assert planned.total == planned.notice + planned.reports + planned.plan > 0
    assert 0 < planned.peak_gib < 8


def test_the_picture(tmp_path: Path) -> None:
    worlds = {"16k": {"restart": 0.9, "auto": 0.99}, "100k": {"restart": 0.7, "auto": 0.98}}
    plot(tmp_path / "table.png", {"2 steps": [(30, 1.1), (60, 1.3)]}, 2.23, worlds, [0.0, 0.01])
    assert (tmp_path / "table.png").read_bytes().startswith(b"\x89PNG")


def test_all_of_it_in_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["simulated_goodput", "--quick"])
    # Both are looked at above.
    monkeypatch.setattr(goodput, "large_worlds", lambda *, quick: {})
    monkeypatch.setattr(goodput, "restart_that_gives", lambda factor, interval: None)
    published: list[Row] = []
    monkeypatch.setattr(goodput, "publish", lambda title, rows, options: published.extend(rows))
    goodput.main()
    names = {row.name for row in published}
    assert {"versatile_vs_restart_tokens", "auto_regret", "plan_2k_ranks_s"} <= names
