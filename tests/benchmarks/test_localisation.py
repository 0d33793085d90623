"""A campaign of faults: what is drawn, what is flipped, who counts as named; and a small one for real."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from everstep.benchmarks.localisation import figures, numbers, store
from everstep.benchmarks.localisation.judge import Outcome, judged
from everstep.benchmarks.localisation.launch import pace_of, play
from everstep.benchmarks.localisation.plan import (
    BITS,
    HANG_STEPS,
    KINDS,
    RANKS,
    Case,
    Family,
    Kind,
    Launch,
    Size,
    draw,
)
from everstep.orchestrator.drivers import LocalDriver
from hypothesis import given
from hypothesis import strategies as st

HANG = Launch(
    "hang-16-0",
    Family.HANG,
    16,
    (Case(Kind.LOCK, 3, 1), Case(Kind.COLLECTIVE, 3 + HANG_STEPS, 2)),
    3 + 2 * HANG_STEPS,
)
NUMERIC = replace(HANG, family=Family.NUMERIC, cases=(Case(Kind.WEIGHT, 3, 1), Case(Kind.GRADIENT, 9, 2)))
OPENED = [100.0, 110.0]
HITS = [{"time": 100.5, "replica": 1}, {"time": 110.5, "replica": 2}]


def standstill(time: float, *ranks: str) -> dict[str, object]:
    return {"what": "standstill", "time": time, "ranks": list(ranks), "reason": "it is stuck"}


def verdict(time: float, step: int, *ranks: str) -> dict[str, object]:
    return {"what": "verdict", "time": time, "step": step, "who": list(ranks), "kind": "corruption", "reason": "bits"}


def outcomes(launch: Launch, *journal: dict[str, object]) -> list[Outcome]:
    # Other lines, and the first one of a file, say nothing.
    entries = [{"version": 1}, {"what": "opened"}, *journal]
    return judged(launch, HITS, entries, OPENED, pace_of(Family.HANG, "local").limits, "local")


# --- what is drawn


@given(st.integers(0, 1000), st.integers(1, 60))
def test_a_seed_says_what_will_happen(seed: int, most: int) -> None:
    launches = draw(seed, Size().cut(most))
    assert launches == draw(seed, Size().cut(most))
    for launch in launches:
        steps = [case.step for case in launch.cases]
        assert steps == sorted(set(steps))
        assert all(0 <= case.replica < RANKS and case.kind in KINDS[launch.family] for case in launch.cases)
        assert launch.cases[-1].step < launch.steps
    assert len({launch.name for launch in launches}) == len(launches)
    for family in (Family.HANG, Family.STRAGGLER, Family.HEALTHY):
        cases = sum(len(launch.cases) for launch in launches if launch.family is family)
        assert cases == min(most, {"hang": 104, "straggler": 60, "healthy": 32}[family])


def test_the_whole_campaign_is_as_large_as_the_published_one() -> None:
    cases = [(launch, case) for launch in draw(0, Size()) for case in launch.cases]
    assert sum(launch.family is Family.NUMERIC and case.recurs for launch, case in cases) >= 300
    assert sum(launch.family is Family.HANG for launch, _ in cases) >= 100
    assert sum(launch.family is Family.HEALTHY for launch, _ in cases) >= 30


# --- what is flipped


@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=20),
    st.floats(0, 1, exclude_max=True),
    st.sampled_from(BITS),
)
def test_one_bit_of_one_number_is_flipped_and_sticks(held: list[float], place: float, bit: int) -> None:
    tensor = torch.tensor(held)
    before = tensor.clone()
    index = numbers.chosen(tensor, place)
    value = numbers.flip(tensor, index, bit)
    different = (tensor.view(torch.int32) ^ before.view(torch.int32)).tolist()
    assert [entry for place, entry in enumerate(different) if place != index] == [0] * (len(held) - 1)
    assert different[index] & 0xFFFFFFFF == 1 << bit
    spoiled = tensor.clone()
    numbers.stick(tensor, index, bit, value)
    assert torch.equal(tensor.view(torch.int32), spoiled.view(torch.int32))
    numbers.stick(before, index, bit, value)
    assert torch.equal(before.view(torch.int32), spoiled.view(torch.int32))


# --- who counts as named


def test_only_the_right_rank_and_nobody_else_counts() -> None:
    first, second = outcomes(HANG, standstill(101.7, "rank 1.0"), standstill(111.0, "rank 3.0"))
    assert (first.localised, first.false_alarms) == (True, 0)
    # A second after the hit it may be called a hang.
    assert first.seconds == pytest.approx(0.2)
    assert (second.localised, second.false_alarms, second.named) == (False, 1, ("rank 3.0",))


def test_a_name_too_many_is_a_false_alarm() -> None:
    first, second = outcomes(HANG, standstill(101.7, "rank 1.0", "rank 2.0"))
    assert (first.localised, first.false_alarms) == (False, 1)
    assert (second.localised, second.false_alarms, second.named) == (False, 0, ())


def test_a_suspect_that_answers_was_not_named() -> None:
    suspected = {"what": "suspected", "time": 102.0, "rank": "0001-a", "silent_s": 1.5}
    fenced = {"what": "fenced", "time": 102.5, "rank": "rank 1.0", "incarnation": "0001-a", "reason": "silent"}
    assert outcomes(HANG, suspected)[0].named == ()
    assert outcomes(HANG, suspected, fenced)[0].seconds == pytest.approx(0.5)


def test_a_verdict_on_numbers_belongs_to_the_case_in_whose_steps_the_state_is() -> None:
    # The last check of the first case is judged when the second one has begun.
    first, second = outcomes(NUMERIC, verdict(104.0, 4, "rank 1.0"), verdict(110.7, 8, "rank 1.0"),
                             verdict(112.0, 12, "rank 2.0"))  # fmt: skip
    assert first.localised
    assert second.localised


def test_what_did_not_happen_is_not_found() -> None:
    limits = pace_of(Family.HANG, "local").limits
    found = judged(HANG, [None, HITS[1]], [standstill(101.7, "rank 1.0")], OPENED, limits, "local")
    assert (found[0].fired, found[0].localised, found[0].false_alarms) == (False, False, 1)


def test_rows_and_misses() -> None:
    found = outcomes(HANG, standstill(101.7, "rank 1.0"), standstill(111.0, "rank 3.0"))
    once = replace(found[0], family=Family.NUMERIC, kind=Kind.GRADIENT, recurs=False, named=())
    slow = replace(found[0], family=Family.STRAGGLER, kind=Kind.COMPUTING, percent=20)
    five = replace(slow, percent=5, named=())
    healthy = replace(found[0], family=Family.HEALTHY, kind=Kind.HEALTHY, hit="", named=())
    rows = {row.name: row.value for row in figures.rows_of([*found, once, slow, five, healthy])}
    assert (rows["hangs"], rows["hangs_localised"], rows["false_alarms"]) == (2, 1, 1)
    assert (rows["numeric_faults"], rows["numeric_once"], rows["numeric_once_localised"]) == (0, 1, 0)
    assert (rows["stragglers"], rows["stragglers_localised"], rows["stragglers_5_percent_share"]) == (1, 1, 0)
    assert rows["hang_named_after_threshold_s"] == pytest.approx(0.2)
    wrong, gone, little = figures.misses_of([*found, once, slow, five, healthy])
    assert "of rank 2.0: named rank 3.0: it is stuck" in wrong
    assert gone.endswith("it was gone again when the next check came")
    assert "slow is above 1.1 times the median" in little
    assert figures.table_of([*found, once, slow, five, healthy]).row_count == 6


def test_what_was_played_is_not_played_again(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    found = outcomes(HANG, standstill(101.7, "rank 1.0"))
    store.append(file, 7, found)
    # A line that was cut is left out, and the next one does not grow onto it.
    file.write_text(file.read_text() + '{"seed": 7, "laun')
    assert store.load(file, 7) == found
    store.append(file, 7, found[:1])
    assert store.load(file, 7) == [*found, found[0]]
    assert store.missing([HANG], found, "local") == []
    assert store.missing([HANG], found[:1], "local") == [HANG]
    assert store.missing([HANG], found, "ray") == [HANG]
    with pytest.raises(ValueError, match="holds cases of another seed"):
        store.load(file, 8)
    assert json.loads(file.read_text().splitlines()[0])["kind"] == "lock held for ever"


# --- a small one


def test_a_lock_and_another_collective_are_named_one_after_the_other() -> None:
    found = play(HANG, LocalDriver(), "local")
    assert [outcome.localised for outcome in found] == [True, True], found
    assert found[0].said.startswith("rank 1 is dead-locked in forward and backward at microbatch")
    assert "entered other collectives" in found[1].said or "entered all-gather" in found[1].said
