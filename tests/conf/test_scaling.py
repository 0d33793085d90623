"""The size of a run, as a value and as a file spells it."""

import pytest
from everstep.conf.errors import ConfigError
from everstep.conf.scaling import Placement, Scaling, ScalingKeys
from hypothesis import given
from hypothesis import strategies as st

amounts = st.floats(0, 64, allow_nan=False)
scalings = st.builds(
    lambda low, more, cpus, gpus, resources, placement: Scaling(low, low + more, cpus, gpus, resources, placement),
    st.integers(1, 50),
    st.integers(0, 50),
    amounts,
    amounts,
    st.dictionaries(st.text(min_size=1).filter(lambda name: name not in ("CPU", "GPU")), amounts, max_size=3),
    st.sampled_from(Placement),
)


@given(scalings)
def test_a_file_can_spell_every_scaling(scaling: Scaling) -> None:
    assert ScalingKeys.of(scaling).scaling() == scaling


def test_one_number_is_a_fixed_size() -> None:
    assert ScalingKeys(ranks=3).scaling() == Scaling(min_ranks=3, max_ranks=3)


def test_a_gpu_is_one_unless_said_otherwise() -> None:
    assert ScalingKeys(use_gpu=True).scaling().gpus_per_rank == 1
    assert ScalingKeys(use_gpu=True, resources_per_rank={"GPU": 0.5}).scaling().gpus_per_rank == 0.5


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        (ScalingKeys(ranks=0), "scaling.ranks=0 "),
        (ScalingKeys(ranks=True), "scaling.ranks=True "),
        (ScalingKeys(ranks="two"), "scaling.ranks='two' "),
        (ScalingKeys(ranks=[1, 2, 3]), "[min, max]"),
        (ScalingKeys(ranks=[4, 2]), "minimum must not exceed the maximum"),
        (ScalingKeys(cpus_per_rank=-1), "scaling.cpus_per_rank=-1 "),
        (ScalingKeys(resources_per_rank={"CPU": 2}), "use scaling.cpus_per_rank"),
        (ScalingKeys(resources_per_rank={"GPU": 2}), "contradicts use_gpu=false"),
        (ScalingKeys(use_gpu=True, resources_per_rank={"GPU": 0}), "contradicts use_gpu=true"),
        (ScalingKeys(resources_per_rank={"disk": float("inf")}), "scaling.resources.disk=inf "),
        (ScalingKeys(placement="STRICT_PACK"), "use one of: PACK, SPREAD"),
    ],
)
def test_what_cannot_work_is_refused(keys: ScalingKeys, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        keys.scaling()
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)
