"""What of a recovery passed while nobody computed."""

import json

import pytest
from everstep.benchmarks import timeline
from everstep.benchmarks.timeline import RankTrace, read_trace, uncovered
from hypothesis import given
from hypothesis import strategies as st

SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=12)


@pytest.mark.parametrize(
    ("covers", "left"),
    [
        ([], 10),
        ([(0, 10)], 0),
        ([(-5, 15)], 0),
        ([(2, 4)], 8),
        ([(2, 4), (3, 5)], 7),
        ([(2, 8), (3, 5)], 4),
        ([(6, 7), (1, 2)], 8),
        ([(-3, 1), (9, 20)], 8),
        ([(-3, -1), (11, 20)], 10),
        ([(4, 4), (7, 5)], 10),
    ],
)
def test_what_no_span_covers(covers: list[tuple[float, float]], left: float) -> None:
    assert uncovered((0, 10), covers) == left


@given(begin=st.integers(0, 50), length=st.integers(0, 50), covers=SPANS)
def test_it_is_as_if_counted_second_by_second(begin: int, length: int, covers: list[tuple[int, int]]) -> None:
    seconds = range(begin, begin + length)
    free = [second for second in seconds if not any(low <= second < high for low, high in covers)]
    assert uncovered((begin, begin + length), covers) == len(free)


def line(event: str, step: int, **facts: object) -> str:
    return json.dumps({"event": event, "step": step, **facts})


def test_reading_keeps_committed_attempts_only() -> None:
    trace = read_trace(
        [
            line("computed", 0, index=1, span=[1.0, 2.0]),
            line("decided", 0, verdict="void", generation="1.1", at=3.0),
            line("computed", 0, index=1, span=[3.0, 4.0]),
            line("decided", 0, verdict="commit", generation="1.1", at=5.0),
            line("applied", 0, loss=1.0, at=6.0),
        ]
    )
    assert trace == RankTrace({0: [(1.0, 2.0), (3.0, 4.0)]}, {0: 5.0}, {0: 6.0}, {0: "1.1"})


def rank(
    *steps: tuple[int, list[tuple[float, float]], float, str],
) -> RankTrace:
    """(step, microbatches, committed at, in which generation)."""
    trace = RankTrace()
    for step, spans, at, generation in steps:
        trace.computed[step], trace.decided[step], trace.generations[step] = spans, at, generation
    return trace


# A peer dies at 14 in step 1; both survivors finish their own, take one more each, and reduce.
ONE = rank((0, [(0, 8)], 10, "1.1"), (1, [(11, 15), (18, 22)], 25, "1.2"), (2, [(26, 34)], 36, "1.2"))
TWO = rank((0, [(0, 9)], 10.5, "1.1"), (1, [(11, 16), (19, 23)], 26, "1.2"), (2, [(27, 35)], 36, "1.2"))


def test_the_interrupted_step_is_the_first_that_not_all_had_committed() -> None:
    assert timeline.step_committed_after(14, [ONE, TWO]) == 1
    # One survivor has the sum already, but the step is over only when all have it.
    assert timeline.step_committed_after(10.2, [ONE, TWO]) == 0
    assert timeline.committed(1, [ONE, TWO]) == 26


def test_idle_time_of_the_recovery() -> None:
    # Nobody computes in 16..18 and in 23..26.
    assert timeline.idle((14, 26), [ONE, TWO]) == 5


def test_final_reduction_begins_with_the_last_microbatch_of_all() -> None:
    assert timeline.final_reduction(1, [ONE, TWO]) == 3
    assert timeline.final_reduction(2, [ONE, TWO]) == 1


def test_undisturbed_are_the_later_steps_of_the_last_generation() -> None:
    assert timeline.undisturbed_reductions([ONE, TWO]) == [1]
    calm = [rank((0, [(0, 1)], 2, "1.1"), (1, [(2, 3)], 5, "1.1"))]
    assert timeline.undisturbed_reductions(calm) == [2]
