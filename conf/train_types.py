"""Ray Train's own ``ScalingConfig`` and ``RunConfig``, honoured or refused by name, never ignored.

They are read by their dataclass fields: nothing here imports Ray, and a field that a later Ray adds is
refused once somebody sets it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from .errors import ConfigError
from .scaling import Placement, Scaling, take_gpus

_HONOURED = {
    "ScalingConfig": ("num_workers", "use_gpu", "resources_per_worker", "placement_strategy"),
    "RunConfig": ("name", "storage_path", "worker_runtime_env", "callbacks"),
}

_WHY_NOT = {
    "accelerator_type": "ask for it by resources_per_worker, as in {'accelerator_type:A100': 0.001}",
    "checkpoint_config": "everstep chooses what it keeps",
    "elastic_resize_monitor_interval_s": "everstep hears of failures and of new ranks as they happen",
    "failure_config": "everstep recovers by elastic_config.recovery",
    "label_selector": "ranks must be able to go on wherever there is room",
    "logging_config": "set levels with the logging module",
    "storage_filesystem": "put the scheme into storage_path, as in s3://bucket/folder",
    "topology": "TPUs are not supported",
    "trainer_resources": "the controller reserves nothing",
    "use_tpu": "TPUs are not supported",
}
_UNKNOWN = "everstep does not know it"


@dataclass(frozen=True)
class RunSettings:
    """What everstep takes from a ``RunConfig``.

    Attributes:
        name: of the run; None lets everstep choose.
        storage_path: where durable results go; None keeps none.
        worker_runtime_env: Ray runtime environment of the ranks.
        callbacks: ``ray.train.UserCallback`` each.
    """

    name: str | None = None
    storage_path: str | None = None
    worker_runtime_env: Mapping[str, Any] = field(default_factory=dict)
    callbacks: tuple[Any, ...] = ()


def read_scaling_config(config: Any | None) -> Scaling:
    """Translate a ``ray.train.ScalingConfig``; its workers are our ranks. None is one rank on one CPU.

    Raises:
        ConfigError: it is none, or it sets something that everstep does not honour, in one line.
    """
    if config is None:
        return Scaling()
    _refuse_the_rest(config, "ScalingConfig")
    low, high = _workers(config.num_workers)
    if not isinstance(config.use_gpu, bool):
        raise ConfigError(f"ScalingConfig.use_gpu={config.use_gpu!r} must be True or False")
    given = config.resources_per_worker
    # Ray Train reserves a CPU only if it is asked for nothing else.
    resources = dict(given) if given is not None else {} if config.use_gpu else {"CPU": 1}
    try:
        placement = Placement(config.placement_strategy)
    except ValueError:
        raise ConfigError(
            f"ScalingConfig.placement_strategy={config.placement_strategy!r} is not honoured: a rank must be "
            f"able to come back on another node; use one of: {', '.join(Placement)}"
        ) from None
    return Scaling(
        min_ranks=low,
        max_ranks=high,
        cpus_per_rank=resources.pop("CPU", 0),
        gpus_per_rank=take_gpus("ScalingConfig.resources_per_worker", config.use_gpu, resources),
        resources=resources,
        placement=placement,
    )


def read_run_config(config: Any | None) -> RunSettings:
    """Translate a ``ray.train.RunConfig``. None sets nothing.

    Raises:
        ConfigError: it is none, or it sets something that everstep does not honour, in one line.
    """
    if config is None:
        return RunSettings()
    _refuse_the_rest(config, "RunConfig")
    return RunSettings(
        name=config.name,
        storage_path=config.storage_path,
        worker_runtime_env=dict(config.worker_runtime_env or {}),
        callbacks=_callbacks(config.callbacks),
    )


def _callbacks(given: Any) -> tuple[Any, ...]:
    for index, callback in enumerate(given or ()):
        if not all(callable(getattr(callback, name, None)) for name in ("after_report", "after_exception")):
            raise ConfigError(
                f"RunConfig.callbacks[{index}]={callback!r} is no ray.train.UserCallback: derive it from that class"
            )
    return tuple(given or ())


def _refuse_the_rest(config: Any, kind: str) -> None:
    if not is_dataclass(config) or isinstance(config, type) or not _looks_like(config, kind):
        raise ConfigError(f"a ray.train.{kind} is needed here, not {config!r}")
    # Ray fills values in when it makes one: a fresh one tells what was set, the declared defaults do not.
    fresh = type(config)()
    for item in fields(config):
        if item.name in _HONOURED[kind] or getattr(config, item.name) == getattr(fresh, item.name):
            continue
        raise ConfigError(f"{kind}.{item.name} is not honoured: {_WHY_NOT.get(item.name, _UNKNOWN)}; remove it")


def _looks_like(config: Any, kind: str) -> bool:
    return all(hasattr(config, name) for name in _HONOURED[kind])


def _workers(count: Any) -> tuple[int, int]:
    low, high = count if isinstance(count, tuple | list) and len(count) == 2 else (count, count)
    for value in (low, high):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"ScalingConfig.num_workers={count!r} must be a number of ranks from 1 up, or (min, max)")
    return low, high
