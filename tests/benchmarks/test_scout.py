"""What a check costs is found from the ends of steps."""

from itertools import accumulate

import pytest
from everstep.benchmarks.scout import EVERY, WARM_UP, progress_seconds, times_of


def test_what_a_check_adds() -> None:
    """Steps take 1 s, those that begin with a check 1.75 s, the ones before these 1.25 s."""
    steps = WARM_UP + 5 * EVERY + 2
    took = [1.75 if step % EVERY == 0 else 1.25 if step % EVERY == EVERY - 1 else 1.0 for step in range(steps)]
    plain, added = times_of(list(accumulate(took)))
    assert plain == pytest.approx([1.0] * 5)
    assert added == pytest.approx([1.0] * 5)


def test_a_write_of_progress_is_timed() -> None:
    assert 0 < progress_seconds() < 1e-3
