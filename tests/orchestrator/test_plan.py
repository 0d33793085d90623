"""From a typed configuration to what the machine and the ranks are told."""

from everstep.conf.elastic import ElasticConfig
from everstep.conf.scaling import Scaling
from everstep.orchestrator.plan import RunPlan
from everstep.policies.recovery import Auto, Swap


def plan_of(**elastic: object) -> RunPlan:
    return RunPlan("gpt", ElasticConfig(8, **elastic), Scaling(2, 4), b"")  # type: ignore[arg-type]


def test_spares_come_after_the_ranks_and_all_are_numbered() -> None:
    settings = plan_of(spares=2, recovery="swap", patience=3.0, replace=False).settings(term=1)
    assert [int(name.partition("-")[0]) for name in settings.ranks] == list(range(6))
    assert (settings.replicas, settings.spares, settings.minimum, settings.replaces) == (4, 2, 2, False)
    assert settings.recovery == Swap(3.0)


def test_lives_are_told_apart_by_their_names() -> None:
    plan = plan_of()
    one, two = plan.settings(term=1), plan.settings(term=2)
    assert one.lives != two.lives
    assert set(one.ranks).isdisjoint(two.ranks)
    assert one.replaces
    assert one.recovery == Auto(horizon=600.0, patience=600.0)
