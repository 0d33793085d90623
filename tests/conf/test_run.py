"""Reading a file: real values for a good one, one line with the file and the key for any bad one."""

from pathlib import Path
from typing import Any

import pytest
from everstep.conf.chaos import Fault, FaultPoint
from everstep.conf.elastic import ElasticConfig, Reduction, Timeouts
from everstep.conf.errors import ConfigError
from everstep.conf.run import ClusterKind, RunFile, check, dump, load, parse
from everstep.conf.scaling import Scaling
from hypothesis import given, settings
from hypothesis import strategies as st

GOOD = """
name: gpt
train: model.py:train
config: {steps: 40, lr: 1e-3, sizes: [1, 2], seed: "${elastic.seed}"}
scaling: {ranks: [1, 4], cpus_per_rank: 2}
elastic:
  microbatches_per_step: 8
  chaos: [{step: 3, replica: 1, point: in_vote}]
  timeouts: {heartbeat: 4}
cluster: local
weight_unit: tokens
"""


def test_a_file_becomes_real_values(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(GOOD)
    run = load(path, ["elastic.seed=3", "elastic.chaos[0].step=7"])
    assert run == RunFile(
        name="gpt",
        train="model.py:train",
        config={"steps": 40, "lr": 1e-3, "sizes": [1, 2], "seed": 3},
        scaling=Scaling(1, 4, cpus_per_rank=2),
        elastic=ElasticConfig(
            microbatches_per_step=8,
            seed=3,
            chaos=(Fault(step=7, replica=1, point="in_vote"),),
            timeouts=Timeouts(heartbeat=4),
        ),
        cluster="local",
        weight_unit="tokens",
    )
    assert type(run.elastic) is ElasticConfig
    assert isinstance(run.elastic.chaos[0].point, FaultPoint)
    assert run.elastic.reduction is Reduction.EXACT
    assert run.cluster is ClusterKind.LOCAL
    assert type(run.config["sizes"]) is list
    assert run.folder == str(tmp_path)


def test_overrides_create_what_the_file_left_out() -> None:
    run = parse(GOOD, overrides=["storage_path=s3://a/b", "elastic.timeouts.probe=1", "config.model.width=64"])
    assert run.storage_path == "s3://a/b"
    assert run.elastic.timeouts == Timeouts(heartbeat=4, probe=1)
    assert run.config["model"] == {"width": 64}


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (["nmae=x"], "nmae is not known; did you mean name?"),
        (["elastic.sed=3"], "elastic.sed is not known; did you mean seed?"),
        (["elastic.timeouts.hartbeat=3"], "elastic.timeouts.hartbeat is not known; did you mean heartbeat?"),
        (["elastic.chaos[0].stp=3"], "elastic.chaos[0].stp is not known; did you mean step?"),
        (["scaling.zzz=1"], "scaling.zzz is not known; known here: ranks, "),
        (["elastic.seed=x"], "elastic.seed='x' must be a whole number"),
        (["elastic.seed="], "elastic.seed=null must be a whole number"),
        (["elastic.bucket_mib=big"], "elastic.bucket_mib='big' must be a number"),
        (["elastic.reduction=3"], "elastic.reduction=3 must be one of exact, float"),
        (["elastic.reduction=exakt"], "elastic.reduction='exakt' is not known"),
        (["elastic.chaos=3"], "elastic.chaos=3 must be a list"),
        (["elastic.chaos=[3]"], "elastic.chaos[0]=3 must be a mapping"),
        (["elastic.chaos=[{step: 3}]"], "elastic.chaos[0].replica is missing; give a whole number"),
        (["elastic.chaos[0].step=-3"], "elastic.chaos[0]: Fault.step=-3"),
        (["elastic.chaos[0].point=on_moon"], "elastic.chaos[0]: Fault.point='on_moon' is not known"),
        (
            ["elastic.chaos[0].replica=4"],
            "elastic.chaos[0].replica=4 does not exist; the first world has replicas 0..3",
        ),
        (
            ["elastic.chaos[0].target=spare"],
            "elastic.chaos[0]: spare 1.0 does not exist; spares are numbered from 4 on, and their coordinate is 0",
        ),
        (["elastic.check_every=-1"], "elastic.check_every=-1 must be a whole number of at least 0"),
        (["elastic.chaos=[{step: 3, replica: 1, kind: flip}]"], "Fault.bit=None must be a whole number in 0..63"),
        (
            ["elastic.chaos=[{step: 3, replica: 1, kind: flip, bit: 3, point: in_vote}]"],
            "Fault.point='in_vote' has no number for a flip: in_forward, in_backward, in_optimizer",
        ),
        (
            ["elastic.chaos=[{step: 3, replica: 1, recurring: true}]"],
            "Fault.bit and Fault.recurring are only for flip, flip_moment, not sigkill",
        ),
        (
            ["elastic.chaos=[{step: 3, replica: 1, kind: flip, bit: 3, microbatch: 1, recurring: true}]"],
            "Fault.microbatch must be null in a recurring flip",
        ),
        (["elastic.spares=-1"], "elastic.spares=-1 must be a whole number of at least 0"),
        (
            ["elastic.recovery=prayer"],
            "elastic.recovery='prayer' is not known; use one of: auto, swap, shrink, restart",
        ),
        (["elastic.recovery_horizon=-1"], "elastic.recovery_horizon=-1.0 must be a number of seconds, at least 0"),
        (["elastic.patience=.inf"], "elastic.patience=inf must be a number of seconds, at least 0"),
        (["elastic.replace=perhaps"], "elastic.replace='perhaps' must be true or false"),
        (["elastic.timeouts=3"], "elastic.timeouts=3 must be a mapping"),
        (["elastic.timeouts.heartbeat=999"], "timeouts.heartbeat=999 must be shorter"),
        (["elastic=null"], "elastic=null must be a mapping"),
        (["config=[1]"], "override 'config=[1]' does not fit the file"),
        (["config={1: x}"], "config.1: the name 1 is not a text"),
        (["config.x=${elastic.sed}"], "config.x: Interpolation key 'elastic.sed' not found"),
        (["compare=ja"], "compare='ja' must be true or false"),
        (["name=a/b"], "name='a/b' must be made of"),
        (["train=model"], "train='model' must be module:function"),
        (["cluster=k8s"], "cluster='k8s' is not known; use one of: ray, local"),
        (["address=auto"], "address is of a Ray cluster"),
        (["scaling.ranks=[9, 9]"], "leaves some of the minimum of 9 replicas without work"),
        (["elastic.seed"], "override 'elastic.seed' is not of the form key=value"),
        (["=3"], "override '=3' is not of the form key=value"),
        (["elastic.seed=[1"], "override 'elastic.seed=[1' is bad YAML"),
        (["elastic.chaos[9].step=1"], "override 'elastic.chaos[9].step=1' does not fit the file"),
    ],
)
def test_a_bad_value_is_one_line_with_its_key(overrides: list[str], text: str) -> None:
    line = refusal(GOOD, overrides)
    assert line.startswith(f"run.yaml with {overrides[0]}: ")
    assert text in line


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("", "must be a mapping of keys"),
        ("3", "must be a mapping of keys"),
        ("[1]", "must be a mapping of keys"),
        ("name: a: b", "bad YAML: line 1: "),
        ("name: a\nname: b", "bad YAML: line 2: found duplicate key name"),
        ("name: \x00", "bad YAML: "),
        ("name: a", "elastic is missing; give a mapping"),
        ("name: a\nconfig: [1]", "config is a list; it must be a mapping"),
        ("elastic: {}", "name is missing; give a text"),
        (
            "name: a\ntrain: 'm:f'\nelastic: {}",
            "elastic.microbatches_per_step is missing; give a value",
        ),
    ],
)
def test_a_bad_file_is_one_line(file: str, text: str) -> None:
    assert text in refusal(file)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read: No such file"):
        load(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load(tmp_path)
    (tmp_path / "latin.yaml").write_bytes("name: ä".encode("latin-1"))
    with pytest.raises(ConfigError, match="not UTF-8"):
        load(tmp_path / "latin.yaml")


@given(st.text() | st.from_regex(r"(elastic|config|scaling|[a-z\[\]0-9]){1,2}(\.|\[)?[a-z0-9\]]*=.*"))
def test_any_override_is_taken_or_refused_in_one_line(override: str) -> None:
    taken_or_refused(GOOD, [override])


@settings(max_examples=50)
@given(st.text() | st.text("ab1:{}[]-,&*!|>'\"#%?$\n .", max_size=12))
def test_any_text_is_taken_or_refused_in_one_line(text: str) -> None:
    taken_or_refused(text)
    taken_or_refused(GOOD.replace("[1, 4]", text))


names = st.text("abcz_019", min_size=1, max_size=4).filter(str.isidentifier)
plain: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text().filter(lambda text: text != "???" and "\\" not in text),
    lambda part: st.lists(part, max_size=3) | st.dictionaries(names, part, max_size=3),
    max_leaves=8,
)


@settings(max_examples=30)
@given(st.dictionaries(names, plain, max_size=4), st.integers(0, 2**63 - 1))
def test_what_is_dumped_is_read_back(config: dict[str, Any], seed: int) -> None:
    run = RunFile(
        name="gpt",
        train="a:b",
        config=config,
        elastic=ElasticConfig(8, seed=seed, chaos=(Fault(1, 2),)),
        scaling=Scaling(2, 3),
    )
    assert parse(dump(run)) == run


def test_a_config_that_no_file_can_hold_is_refused() -> None:
    run = RunFile(name="gpt", train="a:b", config={"x": object()}, elastic=ElasticConfig(1))
    with pytest.raises(ConfigError, match="config cannot be written to a file"):
        dump(run)


def test_check_asks_for_work_for_the_minimum_only() -> None:
    check(ElasticConfig(2), min_ranks=2, max_ranks=64)
    with pytest.raises(ConfigError, match="without work"):
        check(ElasticConfig(2), min_ranks=3, max_ranks=64)
    with pytest.raises(ConfigError, match="exceeds the maximum"):
        check(ElasticConfig(8), min_ranks=3, max_ranks=2)


def test_check_asks_for_whole_replicas() -> None:
    elastic = ElasticConfig(4)
    object.__setattr__(elastic, "ranks_per_replica", 2)
    check(elastic, min_ranks=2, max_ranks=6)
    with pytest.raises(ConfigError, match="minimum of 1 ranks is not a multiple"):
        check(elastic, min_ranks=1, max_ranks=6)
    with pytest.raises(ConfigError, match="maximum of 7 ranks is not a multiple"):
        check(elastic, min_ranks=2, max_ranks=7)


def refusal(text: str, overrides: list[str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(text, source="run.yaml", overrides=overrides or [])
    line = str(caught.value)
    assert "\n" not in line
    assert line.startswith("run.yaml")
    return line


def taken_or_refused(text: str, overrides: list[str] | None = None) -> None:
    line = ""
    try:
        parse(text, source="run.yaml", overrides=overrides or [])
    except ConfigError as error:
        line = str(error)
    assert len(line.splitlines()) <= 1


def test_b_may_be_a_schedule_and_survives_the_file() -> None:
    text = "name: a\ntrain: 'm:f'\nelastic: {microbatches_per_step: {0: 8, 100: 16}}\n"
    run = parse(text)
    assert run.elastic.microbatches_per_step == {0: 8, 100: 16}
    assert [run.elastic.schedule.at(step) for step in (0, 99, 100)] == [8, 8, 16]
    assert parse(dump(run)) == run


@pytest.mark.parametrize("bad", ["many", "{5: 8}", "{0: 0}", "{0: 4, x: 2}", "-1", "null", "[1]", "true", "2.5"])
def test_what_is_no_schedule_is_one_line(bad: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(f"name: a\ntrain: 'm:f'\nelastic: {{microbatches_per_step: {bad}}}\n")
    assert "elastic.microbatches_per_step" in str(caught.value)
    assert "\n" not in str(caught.value)
