"""The trainer that a user calls, in the shape of Ray Train's."""

import dataclasses
import os
import uuid
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..actors.saved.storage import Storage
from ..conf.elastic import ElasticConfig
from ..conf.errors import ConfigError, TrainingFailedError
from ..conf.run import ClusterKind, RunFile, check
from ..conf.scaling import Scaling
from ..conf.train_types import RunSettings, read_run_config, read_scaling_config
from . import strict_json
from .connect import join_ray, start_ray
from .drivers import Driver, LocalDriver, OnState, RayDriver
from .export import newest
from .places import Place, place_of, remember
from .plan import RunPlan
from .records import json_lines
from .records.callbacks import run_context
from .records.copies import copy_all, fetch
from .records.flat import flat
from .view import Phase, RunState


class ElasticTrainer:
    """Trains a function on replicas that may die.

    Args:
        train_fn: called on every rank with a ``RankContext``.
        train_loop_config: handed to it as ``ctx.config``.
        scaling_config: ``ray.train.ScalingConfig``; ``num_workers=(min, max)`` counts ranks.
        run_config: ``ray.train.RunConfig``.
        elastic_config: how the run keeps its steps whole.
        weight_unit: what the weights of losses count; with "tokens" the model FLOPs of a step can be estimated.

    Raises:
        ConfigError: a field that is not honoured, or values that cannot work together.
    """

    def __init__(
        self,
        train_fn: Callable[[Any], object],
        *,
        train_loop_config: Mapping[str, Any] | None = None,
        scaling_config: Any = None,
        run_config: Any = None,
        elastic_config: ElasticConfig,
        weight_unit: str = "weight",
    ) -> None:
        settings = read_run_config(run_config)
        loop_config = dict(train_loop_config or {})
        self._set_up(
            train_fn,
            loop_config,
            read_scaling_config(scaling_config),
            settings,
            elastic_config,
            ClusterKind.RAY,
            address=None,
            weight_unit=weight_unit,
            context=run_context(run_config, scaling_config, loop_config) if settings.callbacks else None,
        )

    @classmethod
    def from_run_file(cls, run: RunFile, train_fn: Callable[[Any], object]) -> "ElasticTrainer":
        """The same from one typed configuration."""
        trainer = cls.__new__(cls)
        settings = RunSettings(name=run.name, storage_path=run.storage_path)
        kind = ClusterKind(run.cluster)
        trainer._set_up(
            train_fn, dict(run.config), run.scaling, settings, run.elastic, kind, run.address, run.weight_unit
        )
        return trainer

    def _set_up(
        self,
        train_fn: Callable[[Any], object],
        config: dict[str, Any],
        scaling: Scaling,
        settings: RunSettings,
        elastic: ElasticConfig,
        kind: ClusterKind,
        address: str | None,
        weight_unit: str,
        context: Any = None,
    ) -> None:
        check(elastic, scaling.min_ranks, scaling.max_ranks)
        if not callable(train_fn):
            raise ConfigError(f"train_fn must be a function, got {type(train_fn).__name__}")
        if settings.callbacks:
            _refuse_what_cannot_travel((settings.callbacks, context))
        self._train_fn = train_fn
        self._config = config
        self._scaling = scaling
        self._settings = settings
        self._elastic = elastic
        self._kind = kind
        self._address = address
        self._weight_unit = weight_unit
        self._run_context = context
        self._name = settings.name or f"everstep-{uuid.uuid4().hex[:8]}"
        if elastic.checkpoint_every != 0 and settings.storage_path is None:
            raise ConfigError(
                f"elastic.checkpoint_every={elastic.checkpoint_every} needs a storage_path to keep checkpoints in; set "
                "one, or set it to 0"
            )
        self._place = place_of(settings.storage_path, self._name, elastic.timeouts.storage)

    def fit(self, on_state: OnState | None = None) -> Any:
        """Run to the end.

        Args:
            on_state: called a few times a second with the newest ``RunState``.

        Returns:
            ``ray.train.Result``; its metrics hold ``weights_sha256``, ``loss``, ``steps``, ``numbers`` of the last
            step, ``microbatches_computed``, ``recoveries``, ``verdicts`` and ``faults_fired``. Its
            ``metrics_dataframe`` has a row for every step, if the run has a ``storage_path``.

        Raises:
            RunAliveError: a run of this name is alive.
            TrainingFailedError: the run ended without success; its ``traceback`` is the user's first.
        """
        place = self._place
        if place is not None:
            remember(self._name, place)
            if place.remote:
                fetch(Path(place.folder), self._storage(place))
        plan = RunPlan(
            run=self._name,
            elastic=self._elastic,
            scaling=self._scaling,
            train=self._pickled(),
            config=self._config,
            folder=place.folder if place else None,
            storage=place.storage if place and place.remote else None,
            trace=os.environ.get("EVERSTEP_TRACE"),
            runtime_env=dict(self._settings.worker_runtime_env or {}),
            weight_unit=self._weight_unit,
            callbacks=self._settings.callbacks,
            run_context=self._run_context,
        )
        state = self._driver().drive(plan, on_state or (lambda _: None))
        if state.phase is not Phase.SUCCEEDED:
            raise TrainingFailedError(state.error or f"the run ended as {state.phase}", traceback=state.traceback)
        return self._result(state)

    def _storage(self, place: Place) -> Storage:
        return Storage(place.storage, self._elastic.timeouts.storage)

    def _result(self, state: RunState) -> Any:
        from ray.train import Result

        metrics = {
            **state.metrics,
            "recoveries": [dataclasses.asdict(record) for record in state.recoveries],
            "verdicts": [dataclasses.asdict(record) for record in state.verdicts],
            "faults_fired": list(state.faults_fired),
            "resumed": state.resumed,
        }
        place, checkpoint = self._place, None
        if place is not None:
            text = strict_json.dumps(metrics, indent=2) + "\n"
            Path(place.folder, "metrics.json").write_text(text, encoding="utf-8")
            if place.remote and (trouble := copy_all(Path(place.folder), self._storage(place))):
                warnings.warn(f"the records of run {self._name!r} are in {place.folder} only: {trouble}", stacklevel=3)
            checkpoint = newest(self._storage(place))
        return Result(
            metrics=metrics,
            checkpoint=checkpoint,
            error=None,
            path=place.folder if place else "",
            metrics_dataframe=_steps_of(place),
        )

    def _driver(self) -> Driver:
        if self._kind is ClusterKind.LOCAL:
            return LocalDriver()
        connect_ray(self._scaling, self._address, self._elastic.spares)
        return RayDriver()

    def _pickled(self) -> bytes:
        from ray import cloudpickle

        try:
            return bytes(cloudpickle.dumps(self._train_fn))
        except Exception as error:
            raise ConfigError(f"the training function cannot be sent to ranks: {error}") from error


def _refuse_what_cannot_travel(callbacks: Any) -> None:
    """They are called where the controller runs, in another process."""
    from ray import cloudpickle

    try:
        cloudpickle.dumps(callbacks)
    except Exception as error:
        raise ConfigError(f"RunConfig.callbacks cannot be sent to the controller: {error}") from error


def connect_ray(scaling: Scaling, address: str | None, spares: int = 0) -> None:
    """Connect to Ray: to ``address``, to RAY_ADDRESS, or to a cluster made here with room for every rank.

    What ranks print stays in Ray's logs; call ``ray.init`` before to have it otherwise.
    """
    import ray

    if ray.is_initialized():
        return
    address = address or os.environ.get("RAY_ADDRESS")
    if address:
        join_ray(address)
        return
    start_ray(max(float(os.cpu_count() or 1), (scaling.max_ranks + spares) * scaling.cpus_per_rank))


def _steps_of(place: Place | None) -> Any:
    """A data frame of the records in a run's folder, None if this machine has none."""
    path = Path(place.folder if place else "", json_lines.FILE)
    if place is None or not path.is_file():
        return None
    import pandas as pd

    return pd.DataFrame([flat(record) for record in json_lines.read(path)])
