"""The rates of the sources, and what a file of failures may say."""

import math
from itertools import takewhile
from pathlib import Path
from statistics import mean, variance

import pytest
from everstep.conf.errors import ConfigError
from everstep.conf.simulation import Flapping, Stragglers
from everstep.orchestrator.simulation.failures import Failure, What, failures

from .worlds import play, traced, world

DAY = 86400.0


def before(seconds: float, **said: object) -> list[Failure]:
    """All failures of a world before this time."""
    seed = int(said.pop("seed", 0))  # type: ignore[call-overload]
    fleet = {"replicas": 64, "ranks_per_node": 8, "nodes_per_rack": 4}
    simulation = world(failures=dict(said), seed=seed, **fleet)  # type: ignore[arg-type]
    return list(takewhile(lambda failure: failure.at < seconds, failures(simulation)))


@pytest.mark.parametrize(
    ("said", "what", "targets", "rate"),
    [
        ({"rank_mtbf": 10 * DAY}, What.RANK, 64, 64 / (10 * DAY)),
        ({"node_mtbf": 10 * DAY}, What.NODE, 8, 8 / (10 * DAY)),
        ({"rack_mtbf": 5 * DAY}, What.RACK, 2, 2 / (5 * DAY)),
        ({"flapping": Flapping(nodes=2, mtbf=3 * DAY)}, What.NODE, 2, 2 / (3 * DAY)),
        ({"stragglers": Stragglers(mtbf=10 * DAY)}, What.SLOW, 64, 64 / (10 * DAY)),
    ],
)
def test_every_source_has_its_rate_and_even_targets(
    said: dict[str, object], what: What, targets: int, rate: float
) -> None:
    seconds = 1000 / rate
    found = before(seconds, **said)
    assert {failure.what for failure in found} == {what}
    assert abs(len(found) - 1000) < 4 * math.sqrt(1000)
    assert {failure.target for failure in found} == set(range(targets))
    assert [failure.at for failure in found] == sorted(failure.at for failure in found)


def test_llama_3s_interruptions() -> None:
    """419 unexpected interruptions in 54 days on 16,384 GPUs: counts of a Poisson process with that mean."""
    gpus, days, published = 16_384, 54, 419
    mtbf = gpus * days * DAY / published
    counts = []
    for seed in range(40):
        simulation = world(replicas=gpus // 8, ranks_per_replica=8, failures={"rank_mtbf": mtbf}, seed=seed)
        counts.append(sum(1 for _ in takewhile(lambda failure: failure.at < days * DAY, failures(simulation))))
    error = math.sqrt(published / len(counts))
    assert abs(mean(counts) - published) < 4 * error
    assert 0.4 < variance(counts) / published < 2.0


def test_sources_are_merged_in_the_order_of_time_and_each_has_a_seed_of_its_own() -> None:
    both = before(20 * DAY, rank_mtbf=10 * DAY, node_mtbf=10 * DAY)
    assert {failure.what for failure in both} == {What.RANK, What.NODE}
    assert [failure.at for failure in both] == sorted(failure.at for failure in both)
    alone = before(20 * DAY, rank_mtbf=10 * DAY)
    assert [failure for failure in both if failure.what is What.RANK] == alone
    assert before(20 * DAY, rank_mtbf=10 * DAY, seed=1) != alone


def test_a_rack_takes_its_nodes_and_a_node_its_ranks(tmp_path: Path) -> None:
    fleet = {"replicas": 8, "ranks_per_node": 2, "nodes_per_rack": 2}
    outcome = play(traced(tmp_path, "1.0,rack,0", **fleet))
    assert outcome.fewest == 4
    outcome = play(traced(tmp_path, "1.0,node,3", "30,rank,0", **fleet))
    assert outcome.fewest == 5
    assert outcome.failures == {"trace": 2}


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_trace_may_be_csv_or_json_lines(tmp_path: Path, suffix: str) -> None:
    simulation = traced(tmp_path, "1.5,rank,2,", "3,node,0,60", columns="time,what,target,repair")
    (tmp_path / "trace.jsonl").write_text(
        '{"time": 1.5, "what": "rank", "target": 2}\n\n{"time": 3, "what": "node", "target": 0, "repair": 60}\n'
    )
    said = world(failures={"trace": f"trace.{suffix}"})
    object.__setattr__(said, "folder", simulation.folder)
    found = list(failures(said))
    assert [(one.at, one.what, one.target, one.repair) for one in found] == [
        (1.5, What.RANK, 2, None),
        (3.0, What.NODE, 0, 60.0),
    ]


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (["1,rank,0", "2,rank,8"], "line 3: rank 8 is unknown, there are 0..7"),
        (["1,node,1"], "line 2: node 1 is unknown, there are 0..0"),
        (["5,rank,0", "4,rank,1"], "line 3: time runs backwards, from 5 to 4 s; sort the lines"),
        (["1,switch,0"], "line 2: what=switch is not known; use one of: rank, slow, node, rack"),
        (["x,rank,0"], "line 2: time=x must be a number of at least 0"),
        (["-1,rank,0"], "line 2: time=-1 must be a number of at least 0"),
        (["nan,rank,0"], "line 2: time=nan must be a number of at least 0"),
        (["1,rank,0.5"], "line 2: rank 0.5 is unknown, there are 0..7"),
        (["1,rank"], "line 2: 2 values for 3 columns"),
        (["1,,0"], "line 2: what is missing"),
    ],
)
def test_what_is_wrong_with_a_trace_is_said_in_one_line(tmp_path: Path, lines: list[str], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        play(traced(tmp_path, *lines))
    assert str(caught.value) == f"{tmp_path}/trace.csv, {problem}"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("time,what\n1,rank", "line 1: a header with time, what, target is missing"),
        ("time,what,target,colour\n1,rank,0,red", "line 2: colour is not known; known here: time, what, target"),
    ],
)
def test_the_header_of_a_trace(tmp_path: Path, text: str, problem: str) -> None:
    simulation = traced(tmp_path)
    (tmp_path / "trace.csv").write_text(text)
    with pytest.raises(ConfigError, match=problem):
        play(simulation)


@pytest.mark.parametrize(
    ("text", "problem"),
    [("{", "line 1: no JSON"), ("[1]", r"line 1: \[1\] is no object"), ("\n{}", "line 2: time is missing")],
)
def test_a_line_that_is_no_failure(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "trace.jsonl").write_text(text)
    simulation = world(failures={"trace": "trace.jsonl"})
    object.__setattr__(simulation, "folder", tmp_path)
    with pytest.raises(ConfigError, match=problem):
        play(simulation)


def test_a_trace_that_is_not_there(tmp_path: Path) -> None:
    simulation = world(failures={"trace": "nothing.csv"})
    with pytest.raises(ConfigError, match=r"nothing.csv: cannot be read"):
        play(simulation)
