"""Layouts that the published rule leads to, one loss after the other, and a dozen of them to compare with."""

from itertools import starmap
from pathlib import Path
from typing import NamedTuple

from everstep.policies.workload.published import Layout, Role, adjust, advance

# All 140 of them, computed independently; not part of a checkout.
SHARED = Path(__file__).resolve().parents[3] / "shared" / "reference" / "recover_quotas.tsv"


class Row(NamedTuple):
    """One loss: what the extension was, and the layout of the next step."""

    initial_replicas: int
    initial_quota: int
    microbatches: int
    survivors: int
    previous_quota: int
    contributed: int
    extra: int
    boundary_minors: int
    next_quota: int
    majors: int
    minors: int
    minor_quota: int
    major_spares: int
    minor_spares: int
    redundant: int


KNOWN = tuple(
    starmap(
        Row,
        (
            (32, 8, 256, 31, 8, 248, 1, 23, 9, 28, 1, 4, 1, 1, 23),
            (32, 8, 256, 30, 9, 256, 0, 0, 9, 28, 1, 4, 1, 0, 14),
            (32, 8, 256, 28, 9, 252, 1, 24, 10, 25, 1, 6, 1, 1, 24),
            (32, 8, 256, 16, 16, 256, 0, 0, 16, 16, 0, 0, 0, 0, 0),
            (32, 8, 256, 2, 86, 172, 42, 0, 128, 2, 0, 0, 0, 0, 0),
            (64, 128, 8192, 63, 128, 8064, 3, 61, 131, 62, 1, 70, 0, 0, 61),
            (64, 128, 8192, 33, 241, 7953, 8, 25, 249, 32, 1, 224, 0, 0, 25),
            (64, 128, 8192, 1, 4096, 4096, 4096, 0, 8192, 1, 0, 0, 0, 0, 0),
            (4, 4, 16, 3, 4, 12, 2, 2, 6, 2, 1, 4, 0, 0, 2),
            (5, 3, 15, 2, 5, 10, 3, 1, 8, 1, 1, 7, 0, 0, 1),
            (8, 1, 8, 7, 1, 7, 1, 6, 2, 4, 0, 0, 3, 0, 6),
            (8, 1, 8, 5, 2, 8, 0, 0, 2, 4, 0, 0, 1, 0, 2),
            (8, 2, 16, 7, 2, 14, 1, 5, 3, 5, 1, 1, 1, 0, 5),
            (6, 4, 24, 4, 5, 20, 1, 0, 6, 4, 0, 0, 0, 0, 0),
        ),
    )
)


def shared_rows() -> list[Row]:
    _, *lines = SHARED.read_text().splitlines()
    return [Row(*map(int, line.split("\t"))) for line in lines]


def published_run(replicas: int, quota: int) -> list[Row]:
    """One replica after the other dies, spares before minors before majors, down to one."""
    microbatches = replicas * quota
    layout = Layout(quota, 0, replicas)
    rows = []
    for survivors in range(replicas - 1, 0, -1):
        before = layout.quota
        adjustment = adjust(layout, {last_role(layout): 1}, microbatches)
        assert adjustment.total == microbatches
        extension = adjustment.extension
        layout = adjustment.survivors if extension is None else advance(survivors, microbatches, before)
        assert layout.replicas == survivors
        assert layout.contributed == microbatches
        rows.append(
            Row(
                replicas,
                quota,
                microbatches,
                survivors,
                before,
                adjustment.contributed,
                extension.extra if extension else 0,
                extension.boundary_minors if extension else 0,
                layout.quota,
                layout.majors,
                layout.minors,
                layout.minor_quota,
                layout.major_spares,
                layout.minor_spares,
                survivors * layout.quota - microbatches,
            )
        )
    return rows


def last_role(layout: Layout) -> Role:
    if layout.minor_spares:
        return Role.MINOR_SPARE
    if layout.major_spares:
        return Role.MAJOR_SPARE
    return Role.MINOR if layout.minors else Role.MAJOR
