"""Every field of Ray Train's own configuration is honoured or refused by name; none is ignored."""

from dataclasses import dataclass, fields
from typing import Any

import pyarrow.fs
import pytest
import ray.train
from everstep.conf.errors import ConfigError
from everstep.conf.scaling import Placement, Scaling
from everstep.conf.train_types import RunSettings, read_run_config, read_scaling_config


class Callback(ray.train.UserCallback):
    """Does nothing."""


SCALING: dict[str, tuple[Any, Scaling | str]] = {
    "num_workers": ((2, 8), Scaling(2, 8)),
    "use_gpu": (True, Scaling(cpus_per_rank=0, gpus_per_rank=1)),
    "resources_per_worker": ({"CPU": 2, "disk": 3}, Scaling(cpus_per_rank=2, resources={"disk": 3})),
    "placement_strategy": ("SPREAD", Scaling(placement=Placement.SPREAD)),
    "trainer_resources": ({"CPU": 1}, "the controller reserves nothing"),
    "accelerator_type": ("A100", "ask for it by resources_per_worker"),
    "label_selector": ({"zone": "a"}, "wherever there is room"),
    "use_tpu": (True, "TPUs are not supported"),
    "topology": ("2x2", "TPUs are not supported"),
    "elastic_resize_monitor_interval_s": (5.0, "as they happen"),
}
RUN: dict[str, tuple[Any, str | None]] = {
    "name": ("gpt", None),
    "storage_path": ("s3://a/b", None),
    "worker_runtime_env": ({"env_vars": {"A": "1"}}, None),
    "storage_filesystem": (pyarrow.fs.LocalFileSystem(), "put the scheme into storage_path"),
    "failure_config": (ray.train.FailureConfig(max_failures=3), "recovers by elastic_config.recovery"),
    "checkpoint_config": (ray.train.CheckpointConfig(num_to_keep=2), "everstep chooses what it keeps"),
    "callbacks": ((Callback(),), None),
    "logging_config": (ray.train.LoggingConfig(log_level="DEBUG"), "logging module"),
    "sync_config": ("x", "everstep does not know it; remove it"),
    "verbose": ("x", "everstep does not know it; remove it"),
    "stop": ("x", "everstep does not know it; remove it"),
    "progress_reporter": ("x", "everstep does not know it; remove it"),
    "log_to_file": ("x", "everstep does not know it; remove it"),
}


def test_the_tables_hold_every_field() -> None:
    assert {item.name for item in fields(ray.train.ScalingConfig)} == set(SCALING)
    assert {item.name for item in fields(ray.train.RunConfig)} == set(RUN)


@pytest.mark.parametrize("name", SCALING)
def test_each_field_of_scaling_config(name: str) -> None:
    value, expected = SCALING[name]
    config = ray.train.ScalingConfig()
    # Set afterwards: Ray itself refuses some of them alone.
    setattr(config, name, value)
    if isinstance(expected, Scaling):
        assert read_scaling_config(config) == expected
    else:
        refused(read_scaling_config, config, f"ScalingConfig.{name} is not honoured: ", expected)


@pytest.mark.parametrize("name", RUN)
def test_each_field_of_run_config(name: str) -> None:
    value, why_not = RUN[name]
    config = ray.train.RunConfig()
    setattr(config, name, value)
    if why_not is None:
        assert getattr(read_run_config(config), name) == value
    else:
        refused(read_run_config, config, f"RunConfig.{name} is not honoured: ", why_not)


def test_a_callback_that_ray_train_would_not_call_is_refused() -> None:
    config = ray.train.RunConfig()
    config.callbacks = [Callback(), print]
    refused(read_run_config, config, "RunConfig.callbacks[1]=", "ray.train.UserCallback")


def test_defaults_are_taken() -> None:
    assert read_scaling_config(None) == read_scaling_config(ray.train.ScalingConfig()) == Scaling()
    assert read_run_config(None) == RunSettings()
    config = ray.train.RunConfig(failure_config=ray.train.FailureConfig())
    assert read_run_config(config).name == config.name


def test_gpus_may_be_counted() -> None:
    config = ray.train.ScalingConfig(num_workers=2, use_gpu=True, resources_per_worker={"GPU": 2, "CPU": 4})
    assert read_scaling_config(config) == Scaling(2, 2, cpus_per_rank=4, gpus_per_rank=2)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("num_workers", 0, "ScalingConfig.num_workers=0 must be a number of ranks from 1 up"),
        ("num_workers", None, "ScalingConfig.num_workers=None must be"),
        ("placement_strategy", "STRICT_SPREAD", "come back on another node; use one of: PACK, SPREAD"),
        ("placement_strategy", None, "placement_strategy=None is not honoured"),
        ("use_gpu", {"grid_search": [True]}, "ScalingConfig.use_gpu="),
        (
            "resources_per_worker",
            {"GPU": 2},
            "resources_per_worker.GPU=2 contradicts use_gpu=false",
        ),
    ],
)
def test_values_that_cannot_work_are_refused(name: str, value: Any, text: str) -> None:
    config = ray.train.ScalingConfig()
    setattr(config, name, value)
    refused(read_scaling_config, config, text)


def test_a_field_of_a_later_ray_is_refused_once_it_is_set() -> None:
    @dataclass
    class RunConfig(ray.train.RunConfig):
        shiny: bool = False

    assert read_run_config(RunConfig(name="gpt")).name == "gpt"
    refused(read_run_config, RunConfig(shiny=True), "RunConfig.shiny is not honoured: everstep does not")


@pytest.mark.parametrize("read", [read_scaling_config, read_run_config])
@pytest.mark.parametrize("config", [3, {"name": "gpt"}, ray.train.RunConfig, ray.train.CheckpointConfig()])
def test_another_type_is_refused(read: Any, config: Any) -> None:
    refused(read, config, "a ray.train.", "is needed here, not ")


def test_one_config_for_the_other_is_refused() -> None:
    refused(read_scaling_config, ray.train.RunConfig(), "a ray.train.ScalingConfig is needed here")
    refused(read_run_config, ray.train.ScalingConfig(), "a ray.train.RunConfig is needed here")


def refused(read: Any, config: Any, *texts: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(config)
    line = str(caught.value)
    assert "\n" not in line
    assert all(text in line for text in texts), line
