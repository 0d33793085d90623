"""Ray Train's callbacks: one report for each committed step, with numbers that hold for the whole world."""

from collections.abc import Mapping, Sequence
from typing import Any

from ...actors.messages import StepRecord
from .flat import flat


class Callback:
    """Calls a ``ray.train.UserCallback`` where the controller runs, as Ray Train does.

    ``after_exception`` is called once, if the run fails: what everstep recovers from is no exception of the run.

    Args:
        callback: the user's.
        run_context: handed to it; see ``run_context``.
    """

    again = False

    def __init__(self, callback: Any, run_context: Any) -> None:
        self.name = f"callback {type(callback).__name__}"
        self._callback = callback
        self._run_context = run_context

    def write(self, records: Sequence[StepRecord]) -> None:
        for record in records:
            self._callback.after_report(run_context=self._run_context, metrics=[flat(record)], checkpoint=None)

    def close(self, failures: Mapping[int, Exception]) -> None:
        if failures:
            self._callback.after_exception(run_context=self._run_context, worker_exceptions=dict(failures))


def run_context(run_config: Any, scaling_config: Any, train_loop_config: Mapping[str, Any]) -> Any:
    """The ``TrainRunContext`` of Ray Train for these configurations."""
    from ray.train import BackendConfig, DataConfig, ScalingConfig
    from ray.train.v2._internal.execution.context import TrainRunContext

    return TrainRunContext(
        run_config=run_config,
        train_loop_config=dict(train_loop_config),
        scaling_config=scaling_config or ScalingConfig(),
        backend_config=BackendConfig(),
        dataset_config=DataConfig(),
    )
