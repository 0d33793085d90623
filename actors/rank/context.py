"""What the user's function is given: where it runs, and the door to the step loop."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ...conf.elastic import ElasticConfig, Reduction
from ...conf.errors import LoopError
from ...policies.world import Position, Seat
from ..messages import Heartbeat, Ready
from . import rehearsal
from .data import Loader, Microbatches
from .engine import Engine
from .gradients import GradientSum
from .history import History
from .loop import Run, Step
from .order import mix
from .recorder import Recorder, estimated_flops
from .rng import seed_everything
from .signature import tensor_sha256, weights_sha256

if TYPE_CHECKING:
    from .process import RankProcess


@dataclass
class Progress:
    """What the heartbeat tells of the training thread; written there, read by the control thread."""

    stage: str = "user code before begin"


class RankContext:
    """One rank's view of the run.

    Attributes:
        config: ``train_loop_config``, as the user gave it.
        device: where this rank computes.
        replica: which model copy this rank belongs to.
        coordinate: its place inside the replica.
    """

    def __init__(self, process: "RankProcess", config: Any, elastic: ElasticConfig, seat: Seat, device: torch.device):
        self._process = process
        self._elastic = elastic
        self._run: Run | None = None
        self._engine: Engine | None = None
        self._gradients: GradientSum | None = None
        self._models: dict[str, nn.Module] = {}
        self._recorder: Recorder | None = None
        self.progress = Progress()
        self.history = History()
        self.config = config
        self.device = device
        self.replica = seat.replica
        self.coordinate = seat.coordinate

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
            model: built from the seed alone, so that it is the same on every rank.
            optimizer: over the model's parameters.
            scheduler: whatever the user steps; everstep only keeps it with the state.
            data: the microbatches.
            extra: other objects with ``state_dict``.
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
        self._models = dict(model) if isinstance(model, Mapping) else {"": model}
        optimizers = dict(optimizer) if isinstance(optimizer, Mapping) else {"": optimizer}
        _refuse_running_statistics(self._models)
        parameters = {
            name: parameter for name, parameter in _named(self._models, "named_parameters") if parameter.requires_grad
        }
        gradients = GradientSum(
            parameters,
            Reduction(elastic.reduction),
            elastic.microbatches_per_step,
            int(elastic.bucket_mib * 2**20),
            process.max_world,
        )
        loader = Loader(data, elastic.microbatches_per_step, elastic.seed)
        engine = Engine(
            process.ledger,
            process.groups,
            gradients,
            elastic.microbatches_per_step,
            elastic.timeouts,
            process.chaos,
            process.trace,
            process.link.send,
        )
        if process.chaos:
            rehearsal.arm(process.chaos, engine, list(self._models.values()), list(optimizers.values()))
        process.ledger.steps = steps
        process.link.send(
            Ready(
                process.incarnation,
                {name: tensor_sha256(tensor) for name, tensor in self._state().items()},
                steps,
                {
                    "length of the data set": str(loader.order.length),
                    "microbatch size": str(data.size),
                    "trained parameters": str(len(parameters)),
                },
            )
        )
        self.progress.stage = "waiting for the first generation"
        process.ledger.await_open(elastic.timeouts.start)
        self.progress.stage = "training"
        if flops_per_weight is None and process.weight_unit == "tokens":
            flops_per_weight = estimated_flops(parameters.values())
        self._recorder = Recorder(optimizers, flops_per_weight)
        seed_everything(mix(elastic.seed))
        self._engine, self._gradients = engine, gradients
        self._run = Run(
            process.ledger, engine, loader, gradients, process.chaos, elastic.seed, steps, on_applied=self._applied
        )
        return self._run

    @property
    def run(self) -> Run | None:
        """The step loop, once ``begin`` was called."""
        return self._run

    @property
    def computed(self) -> int:
        """Microbatches that this rank has computed."""
        return self._engine.computed if self._engine else 0

    def weights_sha256(self) -> str:
        """Of the consolidated state dict of all models."""
        return weights_sha256(self._state())

    def metrics(self) -> dict[str, float]:
        """Figures of this rank for the result."""
        if self._gradients is None:
            return {}
        return {"extra_bytes_per_parameter": self._gradients.extra_bytes_per_parameter}

    def heartbeat(self, last: bool = False) -> Heartbeat:
        """Sign of life with progress, and with the records that the controller wants; all of them if ``last``."""
        position: Position = self._process.ledger.transaction.position
        held = self.history.held
        records = self.history.rest() if last else self.history.answer()
        return Heartbeat(self._process.incarnation, position, self.progress.stage, self.computed, held, records)

    def _applied(self, step: Step) -> None:
        assert self._recorder is not None
        world = self._process.ledger.transaction.world
        ranks = len(world.members) if world else 0
        self.history.add(self._recorder.record(step, self._elastic.microbatches_per_step, ranks))
        if self._process.trace:
            self._process.trace.write("applied", step=step.number, loss=step.loss, at=time.monotonic())

    def _state(self) -> dict[str, torch.Tensor]:
        return dict(_named(self._models, "state_dict"))


def _named(models: Mapping[str, nn.Module], kind: str) -> list[tuple[str, Any]]:
    """Parameters or state of all models, with the model's name in front."""
    found = []
    for prefix, model in models.items():
        items = model.state_dict().items() if kind == "state_dict" else model.named_parameters()
        found += [(f"{prefix}.{name}" if prefix else name, value) for name, value in items]
    return found


def _refuse_running_statistics(models: Mapping[str, nn.Module]) -> None:
    """A buffer that a forward changes would depend on who computed what."""
    for model in models.values():
        for name, module in model.named_modules():
            if getattr(module, "running_mean", None) is not None and getattr(module, "track_running_stats", False):
                raise LoopError(
                    f"{name} ({type(module).__name__}) changes its buffers in every forward: use a norm without "
                    "running statistics (LayerNorm, GroupNorm, RMSNorm) or track_running_stats=False"
                )
