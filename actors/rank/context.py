"""What the user's function is given: where it runs, and the door to the step loop."""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ...conf.elastic import Buffers as BufferMode
from ...conf.elastic import ElasticConfig, OnTrouble, Reduction
from ...conf.errors import LoopError
from ...policies.changes import switches
from ...policies.world import Generation, Seat
from ..messages import Heartbeat, Ready
from . import rehearsal
from .audits import Audits
from .buffers import Buffers
from .census import Wish
from .checks import Checks, equal_on_peers
from .course import Course
from .data import Loader, Microbatches
from .engine import Engine
from .entrance import enter
from .gradients import GradientSum
from .history import History
from .loop import Machinery, Step
from .order import mix
from .portable import Portable, State
from .recorder import Recorder, estimated_flops
from .replay import Replay
from .rng import seed_everything, set_streams, streams
from .run import Run
from .signature import state_sha256, tensor_sha256, weights_sha256
from .snapshots import Saved
from .stability import Stability
from .state import guard, named_objects, named_tensors, refuse_running_statistics, summed
from .training import Training

if TYPE_CHECKING:
    from .process import RankProcess


class RankContext:
    """One rank's view of the run.

    Attributes:
        config: ``train_loop_config``, as the user gave it.
        device: where this rank computes.
    """

    def __init__(
        self,
        process: "RankProcess",
        config: Any,
        elastic: ElasticConfig,
        seat: Seat | None,
        device: torch.device,
        before: "RankContext | None" = None,
    ):
        self._process = process
        self._elastic = elastic
        self._run: Run | None = None
        self._engine: Engine | None = None
        self._gradients: GradientSum | None = None
        self._portable: Portable | None = None
        self._buffers: Buffers | None = None
        self._models: dict[str, nn.Module] = {}
        self._kept: dict[str, Any] = {}
        self._recorder: Recorder | None = None
        self._checks: Checks | None = None
        self._stability: Stability | None = None
        self._course = Course()
        self._loss = math.nan
        self._began_in: Generation | None = None
        self._streams: Mapping[str, Any] | None = None
        # Written by the training thread, read by the control thread, and from outside.
        self.progress = process.board
        self.progress.stage = "user code before begin"
        # Of the calls of the training function before this one.
        self._computed, self._busy = (before.computed, before.busy) if before else (0, 0.0)
        self.history: History = before.history if before else History()
        self.config = config
        self.device = device
        self._seat = seat

    def begin(
        self,
        *,
        model: nn.Module | Mapping[str, nn.Module],
        optimizer: torch.optim.Optimizer | Mapping[str, torch.optim.Optimizer],
        scheduler: Any = None,
        data: Microbatches,
        extra: Mapping[str, Any] | None = None,
        steps: int,
        flops_per_weight: float | None = None,
    ) -> Run:
        """Agree with all peers on the initial state and enter the step loop; blocks until every rank is here.

        Args:
            model: built from the seed alone, so that it is the same on every rank; or several, by name.
            optimizer: over the model's parameters; or several, by name.
            scheduler: whatever the user steps, alike on every rank; or several, by name.
            data: the microbatches.
            extra: other objects with ``state_dict`` that the user changes alike on every rank, by name.
            steps: optimizer steps in all, at least 1.
            flops_per_weight: model FLOPs of one unit of weight, forward and backward, for the throughput that is
                shown. If the unit of weights is tokens, the default is the usual estimate of six for each trained
                parameter; see ``recorder.estimated_flops``.

        Raises:
            LoopError: called twice, ``steps`` or ``flops_per_weight`` that is no positive number, nothing to train,
                or a model whose buffers a forward changes.
        """
        if self._run is not None:
            raise LoopError("ctx.begin was called twice: one run has one step loop")
        if not isinstance(steps, int) or steps < 1:
            raise LoopError(f"steps={steps!r} must be a whole number of at least 1")
        if flops_per_weight is not None and not 0 < flops_per_weight < math.inf:
            raise LoopError(f"flops_per_weight={flops_per_weight!r} must be a positive number")
        if not isinstance(data, Microbatches):
            raise LoopError(f"data must be everstep.Microbatches, got {type(data).__name__}")
        elastic, process = self._elastic, self._process
        schedule = elastic.schedule
        self._models = named_objects(model, "model", nn.Module)
        optimizers = named_objects(optimizer, "optimizer", torch.optim.Optimizer)
        self._kept = {
            **{f"optimizer {name}".strip(): held for name, held in optimizers.items()},
            **{f"scheduler {name}".strip(): held for name, held in named_objects(scheduler, "scheduler").items()},
            **{f"extra {name}": held for name, held in named_objects(extra or {}, "extra").items()},
        }
        if elastic.buffers is BufferMode.REFUSE:
            refuse_running_statistics(self._models)
        buffers = self._buffers = Buffers(self._models, BufferMode(elastic.buffers))
        parameters = summed(self._models, buffers)
        gradients = GradientSum(
            parameters,
            Reduction(elastic.reduction),
            schedule.largest,
            int(elastic.bucket_mib * 2**20),
            process.max_world,
        )
        stability = self._stability = Stability(self._models, self._course, elastic, process.incarnation)
        self._course.watch_rates(optimizers.values(), lambda: self._under_way)
        loader = Loader(data, schedule, elastic.seed, passes_over=lambda step: self._course.passed_over(schedule, step))
        engine = Engine(
            process.ledger,
            process.groups,
            self.device,
            elastic.timeouts,
            process.chaos,
            process.trace,
            process.say,
            process.wishes,
            process.board,
        )
        chaos, everything = process.chaos, (self._models, list(optimizers.values()))
        flips = rehearsal.arm(chaos, engine, *everything) if chaos else None
        guard(optimizers.values(), gradients, lambda: self._run.current if self._run else None)
        self._portable = Portable(self._models, self._kept, buffers, gradients, self._course)
        self._portable.refuse_unsendable()
        process.say(
            Ready(
                process.incarnation,
                {name: tensor_sha256(tensor) for name, tensor in self._state().items()},
                steps,
                {
                    "length of the data set": str(loader.order.length),
                    "microbatch size": str(data.size),
                    "trained parameters": str(len(parameters)),
                    "optimizers, schedulers and extra": state_sha256(self._kept),
                    "seed": str(elastic.seed),
                    # Only who may go on later wants to know whether it is the same one then.
                    **({"data": loader.sample_sha256()} if process.storage else {}),
                },
                self._portable.nbytes,
            )
        )
        process.expect(self._portable.nbytes)
        entered = enter(process, self._portable, self.history, self._seat is None, elastic.timeouts)
        self._loss = self._loss if entered.loss is None else entered.loss
        self._streams, self._began_in = entered.streams, entered.generation
        self.progress.stage = "training"
        if flops_per_weight is None and process.weight_unit == "tokens":
            flops_per_weight = estimated_flops(parameters.values())
        self._recorder = Recorder(optimizers, flops_per_weight)
        seed_everything(mix(elastic.seed))
        self._engine, self._gradients = engine, gradients
        self._checks = Checks(
            process.incarnation,
            elastic.check_every,
            steps,
            lambda: equal_on_peers(self._models, self._kept, gradients.known),
            process.say,
            Replay(self._models, self._kept, elastic.seed, flips)
            if elastic.check_every and elastic.repeatable
            else None,
        )

        def training(step: int) -> Training:
            return Training(
                step,
                schedule.at(step),
                gradients,
                lambda: summed(self._models, buffers),
                OnTrouble(elastic.on_nonfinite),
                process.chaos,
                lambda: process.ledger.await_end(elastic.timeouts.recovery),
                lambda: stability.due(step),
            )

        machinery = Machinery(
            engine,
            loader,
            gradients,
            buffers,
            process.chaos,
            elastic.seed,
            training,
            Audits(process.ledger, elastic.check_every if elastic.repeatable else 0, process.say),
            process.settle,
        )
        self._run = Run(
            process.ledger,
            machinery,
            self._models,
            self.device,
            steps,
            elastic.repeatable,
            self._applied,
            self._enter_stage,
            entered.first,
            entered.evaluations,
            self._resume_streams,
        )
        return self._run

    def _resume_streams(self) -> None:
        """What is drawn before the first step goes on where it was when the state was saved."""
        if self._streams is not None:
            set_streams(self._streams)

    def portable_state(self) -> State:
        """What a newcomer takes over, as of the position that training is at."""
        assert self._portable is not None
        assert self._run is not None
        return self._portable.read(self._run.before)

    @property
    def replica(self) -> int | None:
        """Which model copy this rank belongs to; None while it has no place, as a spare in front of ``begin``."""
        return self._place.replica if self._place else None

    @property
    def coordinate(self) -> int | None:
        """Its place inside the replica; None likewise."""
        return self._place.coordinate if self._place else None

    @property
    def _place(self) -> Seat | None:
        world = self._process.ledger.transaction.world
        member = world.member(self._process.incarnation) if world else None
        return member.seat if member else self._seat

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Tell those who watch what a long pause is, as in ``with ctx.stage("export")``."""
        before = self.progress.stage
        self.progress.stage = name
        try:
            yield
        finally:
            self.progress.stage = before

    @property
    def run(self) -> Run | None:
        """The step loop, once ``begin`` was called."""
        return self._run

    @property
    def computed(self) -> int:
        """Microbatches that this rank has computed."""
        return self._computed + (self._engine.computed if self._engine else 0)

    @property
    def busy(self) -> float:
        """Seconds that these took."""
        return self._busy + (self._engine.busy if self._engine else 0.0)

    def weights_sha256(self) -> str:
        """Of the consolidated state dict of all models."""
        return weights_sha256(self._state())

    def metrics(self) -> dict[str, float]:
        """Figures of this rank for the result."""
        if self._gradients is None:
            return {}
        own = {"extra_bytes_per_parameter": self._gradients.extra_bytes_per_parameter}
        return {**own, **{name: value for saver in self._process.savers for name, value in saver.metrics.items()}}

    def heartbeat(self, last: bool = False) -> Heartbeat:
        """Sign of life with progress, and with the records that the controller wants; all of them if ``last``."""
        transaction = self._process.ledger.transaction
        held = self.history.held
        records = self.history.rest() if last else self.history.answer()
        return Heartbeat(
            self._process.incarnation,
            transaction.position,
            self.progress.stage,
            self.computed,
            held,
            records,
            transaction.work,
            self.busy,
            transaction.generation,
            self.progress.record(),
            None if self._stability is None else self._stability.told,
            self.progress.tally.spent,
        )

    def _applied(self, step: Step) -> None:
        assert self._recorder is not None
        world = self._process.ledger.transaction.world
        ranks = len(world.members) if world else 0
        self.history.add(self._recorder.record(step, ranks), self._began_in)
        self._loss = step.loss
        if self._checks is not None and self._engine is not None and self._engine.voted_in is not None:
            self._checks.at(step.number + 1, self._engine.voted_in, lambda: step.contributed)
        if self._stability is not None and self._engine is not None:
            self._stability.after(step, self._engine.voted_in)
        self._save(step.number + 1, step.wishes)
        if self._process.trace:
            self._process.trace.write("applied", step=step.number, loss=step.loss, at=time.monotonic())

    def _save(self, step: int, wishes: tuple[Wish, ...]) -> None:
        """Begin to save the state after ``step`` steps, wherever it is due."""
        run, engine = self._run, self._engine
        assert run is not None
        assert engine is not None
        world = engine.voted_in
        if world is None:
            return

        def state() -> Saved:
            assert self._portable is not None
            assert self._buffers is not None
            self._buffers.begin()
            return Saved(step, self._portable.read(run.before), self._loss, streams())

        self._process.save(step, run.finished, world, state, wishes)

    @property
    def _under_way(self) -> int:
        return self._run.current.number if self._run is not None and self._run.current is not None else 0

    @property
    def switches(self) -> dict[str, str]:
        """Texts by name from ``elastic.remedy.switches``, once everybody has gone back because of an alarm; else none.

        Read them in the step loop: a rank that comes in later learns them with the state that it is given.
        """
        return switches(self._course.changes, self._under_way)

    @property
    def loss(self) -> float:
        """Of the last step that was applied, be it in an earlier life of the run."""
        return self._loss

    def close(self) -> None:
        """The training function is called once more, with another context."""
        if self._run is not None:
            self._run.close()

    def state_sha256(self) -> str:
        """Of optimizers, schedulers and extra."""
        return state_sha256(self._kept)

    def _enter_stage(self, name: str) -> None:
        self.progress.stage = name

    def _state(self) -> dict[str, torch.Tensor]:
        return dict(named_tensors(self._models, "state_dict"))
