"""Who is slow again and again is named, with what it is slow at; who paused once is not."""

import pytest
from everstep.monitors.consensus import Agree, Attributed, Inconclusive
from everstep.monitors.stragglers import (
    CONFIRM,
    FEWEST,
    ROUNDS,
    Finding,
    Part,
    Rules,
    Seen,
    Times,
    observe,
    renewed,
    slow,
)
from hypothesis import given
from hypothesis import strategies as st

# Uneven to a hundredth, as healthy ranks are.
JITTER = (0.100, 0.101, 0.099, 0.1005, 0.0995, 0.102)


def round_of(
    compute: dict[int, float] | None = None, scale: float = 1.0, **parts: dict[int, float]
) -> dict[int, Times]:
    """Times of six ranks; ``compute`` and others say how many times as long some of them take."""
    held = {part: parts.get(part, {}) for part in ("data", "communication")}
    return {
        rank: Times(
            seconds * scale * (compute or {}).get(rank, 1.0),
            0.02 * held["data"].get(rank, 1.0),
            0.03 * held["communication"].get(rank, 1.0),
        )
        for rank, seconds in enumerate(JITTER)
    }


def after(*rounds: dict[int, Times], rules: Rules | None = None) -> tuple[Seen, Finding]:
    seen, found = Seen(), Finding({})
    for times in rounds:
        seen, found = observe(seen, times, rules)
    return seen, found


@pytest.mark.parametrize(
    ("seconds", "late"),
    [
        ([0.100, 0.101, 0.099, 0.150], (3,)),
        # Far from the median, in the right direction, and still not a tenth more than it.
        ([0.1000, 0.1001, 0.0999, 0.1090], None),
        # A third more, which is less than two milliseconds.
        ([0.0030, 0.0030, 0.0031, 0.0040], None),
        # Nobody is blamed for being quick.
        ([0.100, 0.101, 0.099, 0.020], None),
        ([0.100, 0.200], None),
    ],
)
def test_one_sided(seconds: list[float], late: tuple[int, ...] | None) -> None:
    found = slow(dict(enumerate(seconds)))
    assert isinstance(found, Attributed) if late else isinstance(found, Agree)
    assert late is None or found.ranks == late  # type: ignore[union-attr]


def test_a_single_pause_is_no_straggler() -> None:
    pause = round_of({2: 6.0})
    usual = round_of()
    for rounds in ([pause], [usual, pause], [pause, pause, usual], [pause, pause, usual, pause, pause]):
        _, found = after(*rounds)
        assert not found.ranks
        assert all(isinstance(verdict, Agree) for verdict in found.verdicts.values())


def test_pauses_of_different_ranks_confirm_nobody() -> None:
    _, found = after(*(round_of({rank: 6.0}) for rank in (0, 1, 2, 3)))
    assert not found.ranks


@pytest.mark.parametrize(
    ("times", "parts"),
    [
        (round_of({2: 1.5}), (Part.COMPUTE,)),
        (round_of(data={2: 9.0}), (Part.DATA,)),
        (round_of(communication={2: 2.0}), (Part.COMMUNICATION,)),
        (round_of({2: 1.5}, communication={2: 2.0}), (Part.COMPUTE, Part.COMMUNICATION)),
    ],
)
def test_confirmed_with_what_it_is_slow_at(times: dict[int, Times], parts: tuple[Part, ...]) -> None:
    _, found = after(*[times] * (CONFIRM - 1))
    assert not found.ranks
    _, found = after(*[times] * CONFIRM)
    assert found.ranks == {2: parts}
    verdict = found.verdicts[parts[0]]
    assert isinstance(verdict, Attributed)
    assert f"in at least {CONFIRM} rounds in a row" in verdict.reason
    assert found.ratios.keys() == {2}
    assert found.ratios[2] > 1.4
    assert not found.groupwide


def test_two_slow_ranks() -> None:
    _, found = after(*[round_of({1: 1.5, 4: 2.5})] * CONFIRM)
    assert found.ranks == {1: (Part.COMPUTE,), 4: (Part.COMPUTE,)}
    assert found.ratios[4] > found.ratios[1]


def test_two_ranks_name_nobody() -> None:
    times = {0: Times(0.1), 1: Times(0.3)}
    _, found = after(*[times] * 5)
    assert not found.ranks


def test_the_whole_group_against_its_past() -> None:
    past = [round_of()] * FEWEST
    _, found = after(*past, *[round_of(scale=1.5)] * (CONFIRM - 1))
    assert not found.groupwide
    seen, found = after(*past, *[round_of(scale=1.5)] * CONFIRM)
    assert found.groupwide == {Part.COMPUTE: pytest.approx(1.5)}
    assert not found.ranks
    # What is slow does not become the past that later rounds are compared with.
    assert max(seen.past[Part.COMPUTE]) < 0.11
    _, found = after(*past, *[round_of(scale=1.2)] * CONFIRM)
    assert not found.groupwide


def test_a_group_without_a_past_is_not_judged_by_it() -> None:
    _, found = after(*[round_of()] * (FEWEST - 1), *[round_of(scale=1.5)] * CONFIRM)
    assert not found.groupwide


def test_the_past_is_that_of_healthy_ranks_and_not_endless() -> None:
    seen, _ = after(*[round_of({1: 1.5, 4: 1.6})] * (ROUNDS + 5))
    # The median of the four others; that of all six is another one.
    assert seen.past[Part.COMPUTE] == (0.1005,) * ROUNDS


def test_another_world_knows_the_past_and_blames_nobody() -> None:
    seen, _ = after(*[round_of({2: 1.5})] * CONFIRM)
    assert renewed(seen).past == seen.past
    _, found = observe(renewed(seen), round_of({2: 1.5}))
    assert not found.ranks


def test_half_of_them_are_slow() -> None:
    found = slow({0: 0.1, 1: 0.1, 2: 0.2, 3: 0.2})
    # A half is no minority: the median itself is slow.
    assert not isinstance(found, Attributed)


@given(st.lists(st.floats(0.001, 10), min_size=0, max_size=9))
def test_whoever_is_named_is_slow_and_in_the_minority(seconds: list[float]) -> None:
    found = slow(dict(enumerate(seconds)))
    if isinstance(found, Attributed):
        middle = sorted(seconds)[len(seconds) // 2]
        assert 2 * len(found.ranks) < len(seconds)
        assert all(seconds[rank] > max(1.1 * middle, middle + 0.002) for rank in found.ranks)
    else:
        assert not isinstance(found, Inconclusive)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"factor": 1.0}, "rules.factor=1.0 must be above 1"),
        ({"baseline_factor": float("nan")}, "rules.baseline_factor=nan"),
        ({"seconds": -1.0}, "rules.seconds=-1.0"),
        ({"confirm": 0}, "rules.confirm=0"),
        ({"factor": 1.5}, "rules.factor=1.5 is above rules.baseline_factor=1.25"),
    ],
)
def test_rules_that_contradict_each_other(wrong: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said) as raised:
        Rules(**wrong)  # type: ignore[arg-type]
    assert "\n" not in str(raised.value)


def test_times_that_are_none() -> None:
    with pytest.raises(ValueError, match="rank 1 took -1"):
        observe(Seen(), {0: Times(0.1), 1: Times(-1.0), 2: Times(0.1)})
    with pytest.raises(ValueError, match="rank 0 took nan s for loading data"):
        observe(Seen(), {0: Times(0.1, float("nan"))})
