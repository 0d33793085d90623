"""A minute of the soak: ranks, spares, vaults, sentinels, nodes and the controller are struck from outside, on Ray."""

import pytest
from everstep.benchmarks.soak.__main__ import rows_of, soak
from everstep.benchmarks.soak.plan import Kind

# Beside other work it takes several times as long as alone.
pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]


def test_a_run_that_is_struck_by_every_kind_of_fault_ends_with_the_same_bits() -> None:
    soaked = soak(seed=0, faults=len(Kind))
    assert soaked.struck.total() == len(Kind)
    assert soaked.differences == []
    assert soaked.leftovers == []
    rows = {row.name: row.value for row in rows_of(soaked)}
    assert (rows["soak_faults"], rows["soak_identical"], rows["soak_leftovers"]) == (len(Kind), 1, 0)
