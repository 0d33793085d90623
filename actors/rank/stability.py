"""The stability monitors in a rank: weights are sampled between steps, and compared while the next ones compute.

Every rank looks at its share of the heads and tells all others with the gradients of a step, ``lag`` steps after the
comparison. So all hold the same readings, and come to the same judgement at the same step.
"""

import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass

from torch import nn

from ...conf.elastic import ElasticConfig
from ...conf.errors import LoopError
from ...monitors.attention import Sample, Schedule, compare, take
from ...monitors.baselines import read_scalars, update_ratios
from ...monitors.calibration import Calibrated
from ...monitors.calibration import load as load_envelope
from ...monitors.discovery import Router
from ...monitors.health import looked
from ...monitors.reading import Reading
from ...monitors.router import read_routers
from ...monitors.shares import looks_at
from ...monitors.watched import Watched, watched
from ...policies.changes import following
from ...policies.world import World
from ..stability_messages import StabilityTold
from .course import Course
from .loop import Step

Readings = tuple[Reading, ...]


@dataclass(frozen=True)
class _Comparison:
    """One that is made, or is waiting to be told of."""

    step: int
    readings: "Future[Readings]"


class Stability:
    """Of one rank, and one call of its training function.

    Args:
        models: by name.
        course: what is seen is kept there.
        elastic: how often, by what envelope.
        incarnation: of this rank.

    Raises:
        LoopError: monitors are asked for and no heads are found, or the envelope cannot be read.
    """

    def __init__(
        self, models: Mapping[str, nn.Module], course: Course, elastic: ElasticConfig, incarnation: str
    ) -> None:
        self._course = course
        self._incarnation = incarnation
        self._what = watched(models) if elastic.monitors else Watched(nn.Module(), without="elastic.monitor_every is 0")
        if self._what.without and elastic.watched:
            raise LoopError(f"stability monitors are asked for, but {self._what.without}")
        try:
            self._by = Calibrated() if elastic.envelope is None else load_envelope(elastic.envelope)
            self._schedule = Schedule(max(1, elastic.monitors), min(elastic.monitor_lag, max(1, elastic.monitors)))
        except ValueError as error:
            raise LoopError(f"elastic.envelope={elastic.envelope}: {error}") from None
        what = str(self._what)
        self._said = what if self._what.nothing else f"every {self._schedule.every} steps {what}"
        self._problem = ""
        self._base: Sample | None = None
        self._pending: _Comparison | None = None

    @property
    def told(self) -> StabilityTold:
        """What the controller hears."""
        health = self._course.health
        return StabilityTold(
            self._said, following(self._course.changes) - 1, health.trust, health.alarms, self._problem
        )

    def after(self, step: Step, world: World | None) -> None:
        """The update of a step is in the weights: judge what was told with it, and take samples if they are due.

        Args:
            world: that committed the step.
        """
        if self._what.nothing:
            return
        try:
            self._after(step, world)
        except Exception as error:
            self._failed(error)

    def _after(self, step: Step, world: World | None) -> None:
        schedule, number, taken = self._schedule, step.number, step.number + 1
        if schedule.ends(taken - schedule.lag):
            self._pending = None
            if step.readings:
                about, by = number - schedule.lag, self._by
                told = (*step.readings, read_scalars(about, {"loss": step.loss}))
                self._course.health = looked(self._course.health, about, told, by.rule, by.envelope)
        if world is None:
            return
        place, peers = world.incarnations.index(self._incarnation), len(world.members)
        if schedule.ends(taken) and self._base is not None:
            base, self._base = self._base, None
            if base.step == number - schedule.lag:
                routers = looks_at(self._what.routers, place, peers, taken // schedule.every)
                self._pending = _Comparison(number, self._compared(base, number, routers))
        if schedule.begins(taken):
            heads = looks_at(self._what.heads, place, peers, (taken + schedule.lag) // schedule.every)
            self._base = take(self._what.root, self._what.where, number, heads)

    def due(self, step: int) -> Readings:
        """What this rank has to tell with the gradients of this step."""
        held = self._pending
        if held is None or held.step != step - self._schedule.lag:
            return ()
        try:
            # Ended by the thread that compares, which sets it whatever happens.
            return held.readings.result()
        except Exception as error:
            self._failed(error)
            return ()

    def _failed(self, error: Exception) -> None:
        """A monitor never ends a run: it is said once, and there are no readings."""
        self._problem = self._problem or f"{type(error).__name__}: {' '.join(str(error).split())}"

    def _compared(self, base: Sample, step: int, routers: tuple[Router, ...]) -> "Future[Readings]":
        """Copy what is needed now; the rest is done on a thread of its own, in the shadow of the next steps."""
        later = take(self._what.root, self._what.where, step, list(base.heads))
        read = read_routers(self._what.root, routers, step)
        future: Future[Readings] = Future()

        def work() -> None:
            try:
                future.set_result((*compare(base, later), *update_ratios(base, later), *read))
            except Exception as error:
                future.set_exception(error)

        threading.Thread(target=work, name="everstep-stability", daemon=True).start()
        return future
