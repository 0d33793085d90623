"""What a file of a simulation may say."""

from pathlib import Path

import pytest
from everstep.conf.errors import ConfigError
from everstep.conf.simulation import load, parse

GOOD = """
fleet: {replicas: 4, ranks_per_replica: 2}
batch: {microbatches: 16}
costs: {microbatch: 1.5}
policies: {spares: 1}
steps: 10
"""


def test_what_is_not_said_has_its_default() -> None:
    simulation = parse(GOOD)
    assert simulation.fleet.replicas == 4
    assert simulation.costs.microbatch == 1.5
    assert simulation.costs.restart == 5.0
    assert simulation.seconds is None
    assert (simulation.ranks, simulation.nodes) == (8, 2)


def test_overrides_change_the_file() -> None:
    simulation = parse(GOOD, overrides=["policies.recovery=swap", "failures.flapping.nodes=2", "seconds=1e3"])
    assert simulation.policies.recovery == "swap"
    assert simulation.failures.flapping.nodes == 2
    assert simulation.seconds == 1000


def test_believed_costs_are_factors() -> None:
    simulation = parse(GOOD + "believed: {microbatch: 2.0, restart: 0.5}")
    assert simulation.believed_costs["microbatch"] == 3.0
    assert simulation.believed_costs["restart"] == 2.5
    assert simulation.believed_costs["rebuild"] == simulation.costs.rebuild


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("1.5", "-1", "costs.microbatch=-1.0 must be a finite number of at least 0"),
        ("1.5", "0", "costs.microbatch=0.0 must be a finite, positive number"),
        ("1.5", ".inf", "costs.microbatch=inf must be a finite number of at least 0"),
        (
            "{microbatch: 1.5}",
            "{microbatch: 1, rebuild: -2}",
            "costs.rebuild=-2.0 must be a finite number of at least 0",
        ),
        ("{microbatch: 1.5}", "{}", "costs.microbatch is missing; give seconds, or a measured run as costs_from"),
        ("{microbatch: 1.5}", "{microbach: 1}", "costs.microbach is not known; did you mean microbatch?"),
        ("spares", "spare", "policies.spare is not known; did you mean spares?"),
        (
            "replicas: 4",
            "minimum: 5, replicas: 4",
            "fleet.minimum=5 exceeds fleet.replicas=4: such a world can never train; lower the minimum",
        ),
        ("replicas: 4", "replicas: 0", "fleet.replicas=0 must be a finite number of at least 1"),
        ("steps: 10", "", "the simulation has no end; give seconds, steps or gpu_hours"),
        ("steps: 10", "seconds: 0", "seconds=0.0 must be a finite, positive number"),
        ("steps: 10", "steps: 10\nbelieved: {speed: 2}", "believed.speed is not known; known here: microbatch, step"),
        (
            "steps: 10",
            "steps: 10\nfailures: {rank_mtbf: 0}",
            "failures.rank_mtbf=0.0 must be a finite, positive",
        ),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(old: str, new: str, problem: str) -> None:
    assert old in GOOD
    with pytest.raises(ConfigError) as caught:
        parse(GOOD.replace(old, new))
    assert str(caught.value).startswith(f"<text>: {problem}")
    assert "\n" not in str(caught.value)


def test_an_empty_file() -> None:
    with pytest.raises(ConfigError, match="with fleet and batch at least"):
        parse("")


def test_measured_costs_stand_behind_those_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "file.yaml").write_text(GOOD + "costs_from: run")
    asked = []

    def measure(folder: Path) -> dict[str, float]:
        asked.append(folder)
        return {"microbatch": 9.0, "rebuild": 0.75}

    simulation = load(tmp_path / "file.yaml", measure=measure)
    assert asked == [tmp_path / "run"]
    assert simulation.costs.microbatch == 1.5
    assert simulation.costs.rebuild == 0.75
