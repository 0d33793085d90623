"""Workload policies by name, and which of them keep every step whole."""

import pytest
from everstep.policies.workload import AdaptiveWorld, Balanced, Versatile, Weighted, workload_policy


@pytest.mark.parametrize(
    ("name", "kind"), [("balanced", Balanced), ("versatile", Versatile), ("adaptive_world", AdaptiveWorld)]
)
def test_policies_by_name(name: str, kind: type) -> None:
    assert type(workload_policy(name)) is kind


@pytest.mark.parametrize("name", ["fair", "weighted", "", "Balanced"])
def test_others_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"unknown workload policy '{name}'; use one of: balanced, versatile, adapt"):
        workload_policy(name)


def test_only_the_strawman_is_not_exact() -> None:
    assert workload_policy("balanced").exact
    assert workload_policy("versatile").exact
    assert Weighted({}).exact
    assert not workload_policy("adaptive_world").exact
