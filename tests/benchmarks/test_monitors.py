"""From costs to the power with which they grow."""

import pytest
from everstep.benchmarks.monitors import growth


@pytest.mark.parametrize("power", [0.0, 1.0, 2.5])
def test_the_power_of_a_power_law_is_found(power: float) -> None:
    assert growth([1, 2, 8], [3.0, 3 * 2**power, 3 * 8**power]) == pytest.approx(power)
