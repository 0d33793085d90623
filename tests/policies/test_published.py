"""The published arithmetic of roles: its own examples come out, and so do its two faults."""

from collections.abc import Iterator
from itertools import product

import pytest
from everstep.policies.workload.published import Adjustment, Extension, Layout, Role, adjust, advance, extension

from .recover_table import KNOWN, SHARED, Row, published_run, shared_rows


@pytest.mark.parametrize("row", KNOWN, ids=lambda row: f"{row.initial_replicas}x{row.initial_quota}-{row.survivors}")
def test_known_rows_come_out(row: Row) -> None:
    assert row in published_run(row.initial_replicas, row.initial_quota)


@pytest.mark.skipif(not SHARED.exists(), reason="the table of 140 rows does not lie beside this checkout")
def test_every_row_of_the_table_comes_out() -> None:
    table = shared_rows()
    runs = dict.fromkeys((row.initial_replicas, row.initial_quota) for row in table)
    assert [row for replicas, quota in runs for row in published_run(replicas, quota)] == table
    assert len(table) == 140


def test_the_worked_example() -> None:
    """Figure 5: 32 replicas of 8, one dies; then a minor dies and its spare stands in."""
    lost = adjust(Layout(8, 0, 32), {Role.MAJOR: 1}, 256)
    assert lost == Adjustment(Layout(8, 0, 31), 248, Extension(31, 1, 23))
    assert (lost.contributed, lost.extension.added if lost.extension else 0, lost.total) == (248, 8, 256)
    after = advance(31, 256, 8)
    assert after == Layout(9, 4, 28, 1, 1, 1)
    assert adjust(after, {Role.MINOR: 1}, 256) == Adjustment(Layout(9, 4, 28, 1, 1, 0), 256, None)
    assert adjust(after, {Role.MAJOR: 1}, 256) == Adjustment(Layout(9, 4, 28, 1, 0, 1), 256, None)
    both = adjust(after, {Role.MAJOR: 1, Role.MINOR: 1}, 256)
    assert both == Adjustment(Layout(9, 4, 28, 1, 0, 0), 256, None)


def test_a_dead_spare_takes_no_work_with_it() -> None:
    assert adjust(Layout(9, 4, 28, 1, 1, 1), {Role.MAJOR_SPARE: 1, Role.MINOR_SPARE: 1}, 256) == Adjustment(
        Layout(9, 4, 28, 1, 0, 0), 256, None
    )


def test_the_last_spare_dies_with_its_major() -> None:
    lost = adjust(Layout(9, 4, 28, 1, 1, 0), {Role.MAJOR: 1, Role.MAJOR_SPARE: 1}, 256)
    assert lost.extension == Extension(28, 1, 19)
    assert lost.total == 256


def test_extensions_stack() -> None:
    """A second boundary inside the first extra pass counts what that pass contributed."""
    first = extension(15, 120, 128)
    assert (first, first.added) == (Extension(15, 1, 7), 8)
    # One of the 15 dies after it has added one to its 8.
    second = extension(14, 128 - 9, 128)
    assert (second, second.added) == (Extension(14, 1, 5), 9)


def test_an_extension_reaches_the_batch_exactly() -> None:
    for replicas in range(1, 9):
        for contributed in range(40):
            passed = extension(replicas, contributed, 40)
            assert contributed + passed.added == 40
            assert 0 <= passed.boundary_minors < replicas
            assert passed.extra == 1 or contributed + replicas * (passed.extra - 1) < 40


def test_the_roles_are_a_function_of_survivors_and_batch() -> None:
    for replicas in range(1, 40):
        for microbatches in range(1, 80):
            layout = advance(replicas, microbatches)
            assert layout.replicas == replicas
            assert layout.contributed == microbatches
            assert layout.minors <= 1
            assert layout.minors == (layout.minor_quota > 0)
            assert layout.minor_quota < layout.quota
            assert replicas * (layout.quota - 1) < microbatches <= replicas * layout.quota
            # The quota of any earlier, larger world would not have changed them.
            for larger in range(replicas, 40):
                assert advance(replicas, microbatches, advance(larger, microbatches).quota) == layout


@pytest.mark.parametrize(
    ("microbatches", "survivors", "layout", "total"),
    [(8, 5, Layout(2, 0, 4, 0, 1), 6), (256, 17, Layout(16, 0, 16, 0, 1), 240)],
)
def test_fault_more_die_than_there_are_spares(microbatches: int, survivors: int, layout: Layout, total: int) -> None:
    """One spare is left, so this is called no boundary: one is promoted, and the step commits too small."""
    assert advance(survivors, microbatches) == layout
    lost = adjust(layout, {Role.MAJOR: 2}, microbatches)
    assert lost.extension is None
    assert lost.total == total < microbatches


@pytest.mark.parametrize(
    ("microbatches", "survivors", "layout", "total"),
    [(16, 7, Layout(3, 1, 5, 1, 1), 18), (256, 21, Layout(13, 9, 19, 1, 1), 260)],
)
def test_fault_spares_are_counted_at_a_boundary(microbatches: int, survivors: int, layout: Layout, total: int) -> None:
    """The minor dies without a spare; the spare of the majors is counted, and the step commits too large."""
    assert advance(survivors, microbatches) == layout
    lost = adjust(layout, {Role.MINOR: 1}, microbatches)
    assert lost.extension is not None
    assert lost.extension.boundary_minors > lost.extension.replicas, "a negative number of full contributors"
    assert lost.extension.added == 0
    assert lost.total == total > microbatches


def test_spares_that_are_counted_below_the_batch_do_no_harm() -> None:
    """A major dies without a spare while there is one of the minor: that one's four microbatches are used."""
    lost = adjust(Layout(9, 4, 28, 1, 0, 1), {Role.MAJOR: 1}, 256)
    assert lost == Adjustment(Layout(9, 4, 27, 1, 0, 1), 251, Extension(29, 1, 24))
    assert lost.total == 256


def test_the_rule_is_right_but_for_the_two_faults() -> None:
    """Whoever dies of any layout of up to eight replicas."""
    wrong = 0
    for replicas in range(1, 9):
        for microbatches in range(1, 20):
            layout = advance(replicas, microbatches)
            for dead in losses(layout):
                lost = adjust(layout, dead, microbatches)
                if lost.extension is None:
                    short = (lost.survivors.majors, lost.survivors.minors) != (layout.majors, layout.minors)
                    assert (lost.total < microbatches) == short
                else:
                    assert lost.total == max(microbatches, lost.contributed)
                wrong += lost.total != microbatches
    assert wrong > 0


def losses(layout: Layout) -> Iterator[dict[Role, int]]:
    """Every number of dead of each role that leaves somebody."""
    counts = (layout.majors, layout.minors, layout.major_spares, layout.minor_spares)
    for dead in product(*(range(count + 1) for count in counts)):
        if sum(dead) < layout.replicas:
            yield dict(zip(Role, dead, strict=True))


@pytest.mark.parametrize(
    ("layout", "dead"),
    [(Layout(2, 0, 4), {Role.MINOR: 1}), (Layout(2, 0, 4), {Role.MAJOR: 5}), (Layout(2, 0, 4), {Role.MAJOR: 4})],
)
def test_losses_that_cannot_be_are_refused(layout: Layout, dead: dict[Role, int]) -> None:
    with pytest.raises(ValueError, match="cannot die of"):
        adjust(layout, dead, 8)


def test_a_step_without_microbatches_has_roles_as_well() -> None:
    assert advance(2, 0) == Layout(quota=1, minor_quota=0, majors=0, major_spares=2)
