"""The figures of the loop: what counts as a line, as a wait, and as a read."""

import time
from collections import Counter

import pytest
from everstep.actors.rank.data import Loader, Microbatches
from everstep.benchmarks.loop import WARM_UP, Counted, Waits, code_lines, data_rows, lines_added, resume

PLAIN = '''"""A script."""

import torch


def train(config):
    """In one process."""
    for batch in batches:  # the data
        loss(batch).backward()

    save()
'''

ELASTIC = '''"""The script, made elastic.

With more to say about it.
"""

import everstep
import torch


def train(ctx):
    """On ranks."""
    # A comment.
    for step in run:
        for batch in step:
            step.backward(loss(batch))

    save()
'''


def test_only_lines_of_code_that_are_new_or_changed_count() -> None:
    assert code_lines(PLAIN) == [
        "import torch",
        "def train(config):",
        "    for batch in batches:",
        "        loss(batch).backward()",
        "    save()",
    ]
    assert lines_added(PLAIN, ELASTIC) == 5
    assert lines_added(PLAIN, PLAIN) == 0
    assert lines_added(PLAIN, PLAIN.replace("# the data", "# data, batch by batch")) == 0
    assert lines_added(ELASTIC, PLAIN) == 3


def test_a_hash_in_a_text_is_no_comment() -> None:
    assert code_lines('color = "#fff"  # white\n') == ['color = "#fff"']


def test_a_line_that_only_moved_to_the_right_counts() -> None:
    assert lines_added("save()\n", "if leader:\n    save()\n") == 2


def test_waits_are_part_of_the_step_that_asks() -> None:
    waits = Waits(began={step: 10.0 * step for step in range(WARM_UP + 3)}, waited=Counter())
    waits.waited.update({WARM_UP - 1: 5, WARM_UP: 1, WARM_UP + 1: 2, WARM_UP + 2: 3})
    assert waits.shares() == [0.1, 0.2]


def test_every_load_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Loader, "load", Loader.load)
    waits = Waits()
    waits.watch()

    class Slow(list[int]):
        def __getitem__(self, sample: int) -> int:  # type: ignore[override]
            time.sleep(0.01)
            return sample

    loader = Loader(Microbatches(Slow(range(8)), 2, collate_fn=list, shuffle=False), 2, seed=0)
    assert [loader.load(step, index) for step in (0, 1) for index in (0, 1)] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert all(waits.waited[step] >= 0.04 for step in (0, 1))
    assert waits.began[1] - waits.began[0] >= 0.04


def test_the_headline_is_the_example_as_it_is() -> None:
    rows = {row.name: row.value for row in data_rows({0: [0.1, 0.3], 2: [0.5, 0.5]}, seed=0)}
    assert rows["data_cost_share"] == rows["data_cost_share_0_workers"] == pytest.approx(0.2)
    assert rows["data_cost_share_2_workers"] == 0.5


def test_a_late_rank_reads_its_quota() -> None:
    found = resume(list(range(1000)), microbatches=7, size=3, ranks=2, seed=1)
    assert [(rank.reads, rank.owed) for rank in found] == [(12, 12), (9, 9)]
    counted = Counted([5, 6])
    assert [counted[0], counted[1], counted[1]] == [5, 6, 6]
    assert counted.reads == 3
