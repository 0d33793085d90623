"""From what runs left behind to figures; and files of runs that were cut."""

from dataclasses import replace
from pathlib import Path

import pytest
from everstep.benchmarks.instability import figures, plots, store
from everstep.benchmarks.instability.outcomes import Outcome, calibrated, divergence, outcome
from everstep.benchmarks.instability.plan import Run, part_of, runs
from everstep.benchmarks.instability.training import Course, Trained
from everstep.monitors.envelope import Rule, calibrate
from everstep.monitors.reading import Reading
from everstep.monitors.signs import HYPER, PRECISION

COURSE = Course(steps=300, onset=100)
RULE = Rule(persistence=2, enough=8, window=8, floor=0.02, bin=50)


def trained(seed: int, fall: int = 999, grow: int = 999, rise: int = 999, steep: int = 999) -> Trained:
    """Entropy falls, the update ratio grows, the loss rises, the gradient gets steep at these steps."""
    readings = []
    for step in range(0, 300, 5):
        wiggle = 0.01 * ((step + 3 * seed) % 7)
        entropies = {"delta2.entropy": (0.2 if step >= fall else 3.0) + wiggle}
        readings += [Reading("attention", step, "a", head, entropies) for head in (0, 1)]
        numbers = {"update_ratio": (9 if step >= grow else 1) + wiggle}
        numbers["gradient_norm"] = (5 if step >= steep else 1) + wiggle
        readings.append(Reading("baseline", step, "", None, numbers))
    return Trained(tuple(4.0 if step >= rise else 3.0 for step in range(300)), tuple(readings))


def judged(run: Run, one: Trained) -> Outcome:
    envelope = calibrated([trained(seed) for seed in range(3)], RULE)
    return outcome(run, one, COURSE, envelope, RULE)


def test_the_loss_shows_it_when_its_mean_has_risen() -> None:
    assert divergence([3.0] * 150, 100) is None
    # A rise of 1 over a mean of 20 steps is more than 0.2 with the fifth.
    assert divergence([3.0] * 120 + [4.0] * 30, 100) == 124
    assert divergence([3.0] * 50 + [4.0] * 20 + [3.0] * 80, 100) is None
    assert divergence([3.0] * 120 + [float("nan")], 100) == 120


def test_a_fault_is_alarmed_of_named_and_led() -> None:
    one = judged(Run("low_precision", 0), trained(7, fall=110, rise=150))
    assert (one.alarm, one.baseline, one.divergence, one.lead) == (115, None, 154, 39)
    assert one.first == (("attention", "delta2.entropy"),)
    assert (one.faults, one.right, one.false_alarms) == ({PRECISION}, True, 0)
    both = judged(Run("combined", 0), trained(7, fall=120, grow=105, rise=112))
    assert (both.alarm, both.baseline, both.lead) == (125, 110, 116 - 125)
    assert both.faults == {PRECISION, HYPER}
    assert (one.departure, one.share) == (None, 39 / 54)
    late = judged(Run("combined", 0), trained(7, fall=250, grow=105))
    assert (late.faults, late.right, late.lead) == ({HYPER}, False, None)


@pytest.mark.parametrize(("steep", "ahead"), [(112, 0), (120, 5), (140, 25), (160, 39)])
def test_a_lead_counts_while_loss_and_gradient_look_healthy(steep: int, ahead: int) -> None:
    one = judged(Run("low_precision", 0), trained(7, fall=110, rise=150, steep=steep))
    assert (one.alarm, one.divergence) == (115, 154)
    assert one.share == ahead / 54
    # It has left when it is outside for the first time, not when that is alarmed of.
    assert one.departure == 5 * -(-steep // 5)


def test_what_nobody_watches_alarms_of_nothing_and_departs_all_the_same() -> None:
    one = trained(7, fall=110, grow=105, rise=150, steep=120)
    envelope = calibrated([trained(seed) for seed in range(3)], RULE)
    run = Run("combined", 0)
    some = outcome(run, one, COURSE, envelope, RULE, [("attention", "delta2.entropy"), ("baseline", "gradient_norm")])
    whole = outcome(run, one, COURSE, envelope, RULE)
    assert (some.alarm, some.fired) == (None, (("baseline", "update_ratio"),))
    assert some.departure == whole.departure == 120


def test_what_comes_before_the_onset_or_in_a_healthy_run_is_a_false_alarm() -> None:
    healthy = judged(Run("healthy", 0), trained(7, fall=150))
    assert (healthy.alarm, healthy.false_alarms) == (None, 2)
    early = judged(Run("low_precision", 0), trained(7, fall=50))
    assert (early.alarm, early.false_alarms) == (None, 2)


def test_the_distance_is_the_least_at_which_healthy_runs_keep_quiet() -> None:
    healthy = [trained(seed) for seed in range(4)]
    assert calibrated(healthy, RULE) == calibrate([one.readings for one in healthy], replace(RULE, distance=4.0))
    with pytest.raises(ValueError, match="two healthy runs or more"):
        calibrated(healthy[:1], RULE)
    with pytest.raises(ValueError, match="healthy runs differ"):
        calibrated([*healthy, trained(9, fall=150)], RULE)


def test_rows() -> None:
    outcomes = [
        judged(Run("healthy", 0), trained(7, fall=190)),
        judged(Run("low_precision", 0), trained(7, fall=110, rise=150)),
        judged(Run("low_precision", 1), trained(7, fall=110)),
        judged(Run("learning_rate", 0), trained(7, grow=110, rise=150)),
    ]
    assert figures.signatures(outcomes) == {
        ("attention", "delta2.entropy"): {"low_precision": 1.0, "learning_rate": 0.0},
        ("baseline", "update_ratio"): {"low_precision": 0.0, "learning_rate": 1.0},
    }
    found = {row.name: row.value for row in figures.rows(outcomes)}
    assert found["fault_kinds_with_lead"] == found["alarmed_before_share_low_precision"] == 1
    assert found["lead_share_low_precision"] == 39 / 54
    assert found["lead_share_learning_rate"] == found["lead_share_combined"] == 0
    assert found["baseline_lead_share_learning_rate"] == found["fault_kind_named_right_share"] == 1
    assert found["diverged_share_low_precision"] == 0.5
    assert found["lead_low_precision"] == 39
    assert found["false_alarms_per_1000_steps"] == pytest.approx(1000 * 2 / 300)


def test_files_of_runs_lose_a_line_that_was_cut_and_keep_the_others(tmp_path: Path) -> None:
    path, first, second = tmp_path / "a" / "runs.jsonl", Run("healthy", 0), Run("router", 3)
    assert store.load(path, COURSE) == {}
    store.append(path, COURSE, first, trained(0))
    whole = path.read_bytes()
    store.append(path, COURSE, second, trained(1))
    path.write_bytes(path.read_bytes()[: len(whole) + 40])
    assert store.load(path, COURSE) == {first: trained(0)}
    store.append(path, COURSE, second, trained(1))
    assert store.load(path, COURSE) == {first: trained(0), second: trained(1)}
    with pytest.raises(ValueError, match="another course"):
        store.load(path, Course(steps=7))


def test_no_seed_is_calibrated_and_evaluated_on() -> None:
    development, evaluation = list(runs("development")), list(runs("evaluation"))
    assert not {run.seed for run in development} & {run.seed for run in evaluation}
    assert {part_of(run) for run in development} == {"development"}
    assert len({run.fault for run in evaluation if run.kind == "learning_rate"}) == 3


def test_plots_are_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    envelope = calibrated([trained(seed) for seed in range(3)], RULE)
    held = {Run("healthy", 0): trained(7), Run("low_precision", 0): trained(7, fall=110, rise=150)}
    outcomes = [outcome(run, one, COURSE, envelope, RULE) for run, one in held.items()]
    plots.plot(tmp_path, held, outcomes, COURSE, envelope, RULE)
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in ("courses.png", "leads.png"))
