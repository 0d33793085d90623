"""Workload policies by name, which of them keep every step whole, and which want speeds."""

import pytest
from everstep.conf.elastic import ElasticConfig, Reduction
from everstep.conf.errors import ConfigError
from everstep.policies.workload import AdaptiveWorld, Balanced, Versatile, Weighted, suited, workload_policy
from everstep.policies.world import WorkKind

NAMES = {"balanced": Balanced, "versatile": Versatile, "weighted": Weighted, "adaptive_world": AdaptiveWorld}


@pytest.mark.parametrize(("name", "kind"), NAMES.items())
def test_policies_by_name(name: str, kind: type) -> None:
    assert type(workload_policy(name)) is kind
    assert ElasticConfig(4, workload=name, reduction=Reduction.FLOAT).workload == name


@pytest.mark.parametrize("name", ["fair", "", "Balanced"])
def test_others_are_refused(name: str) -> None:
    names = "balanced, versatile, weighted, adaptive_world"
    with pytest.raises(ValueError, match=f"unknown workload policy '{name}'; use one of: {names}"):
        workload_policy(name)
    with pytest.raises(ConfigError, match=f"elastic.workload='{name}' is not known; use one of: {names}"):
        ElasticConfig(4, workload=name)


def test_only_the_strawman_is_not_exact_and_is_told_how_many_there_were() -> None:
    assert [name for name in NAMES if not workload_policy(name).exact] == ["adaptive_world"]
    assert workload_policy("adaptive_world", 4).plan([0, 1, 2], 8).dropped == (6, 7)
    with pytest.raises(ConfigError, match="adaptive_world drops microbatches, which reduction=exact rules out"):
        ElasticConfig(4, workload="adaptive_world")


def test_only_one_goes_by_speeds() -> None:
    assert [name for name in NAMES if workload_policy(name).by_speed] == ["weighted"]
    speeds = {0: 1.0, 1: 3.0}
    for name in NAMES:
        policy = workload_policy(name)
        if not policy.by_speed:
            assert policy.given(speeds) is policy
    given = workload_policy("weighted").given(speeds)
    assert isinstance(given, Weighted)
    assert given.speeds == speeds
    assert given.given({}).plan([0, 1], 8) == Weighted().plan([0, 1], 8)


def test_an_evaluation_is_whole_whatever_becomes_of_training_steps() -> None:
    strawman, exact = AdaptiveWorld(), Versatile()
    assert suited(strawman, WorkKind.TRAINING) is strawman
    assert type(suited(strawman, WorkKind.EVALUATION)) is Balanced
    assert suited(exact, WorkKind.TRAINING) is suited(exact, WorkKind.EVALUATION) is exact
