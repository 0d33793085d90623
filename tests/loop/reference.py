"""What everstep promises, done plainly: one process, one microbatch after another, none of its machinery.

A training function runs with ``plain_run`` as it runs on a rank. Only what defines the streams and the grid is taken
from everstep: the order of samples, the seeds, and the rule for exponents.
"""

import math
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import everstep
import numpy as np
import torch
from everstep.actors.rank import grid
from everstep.actors.rank.data import order_of
from everstep.actors.rank.order import SampleOrder, mix
from everstep.actors.rank.rng import seed_everything
from everstep.conf.schedule import BatchSchedule
from torch import Tensor, nn
from torch.utils.data import default_collate

Train = Callable[[Any], object]
# By name: value and weight.
Numbers = dict[str, tuple[float, float]]


def plain_run(train: Train, config: Mapping[str, Any], microbatches: Any = 4, seed: int = 0) -> None:
    """Run a training function to its end in this process, with the settings of a rank."""
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    filled = torch.utils.deterministic.fill_uninitialized_memory
    try:
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False
        with streams_kept():
            seed_everything(mix(seed))
            train(PlainContext(config, BatchSchedule.of(microbatches), seed))
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(deterministic)
        torch.utils.deterministic.fill_uninitialized_memory = filled


@contextmanager
def streams_kept() -> Iterator[None]:
    """What is drawn inside does not show outside."""
    held = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.set_rng_state(held[0])
        np.random.set_state(held[1])
        random.setstate(held[2])


class PlainContext:
    """Stands for a ``RankContext``."""

    def __init__(self, config: Mapping[str, Any], schedule: BatchSchedule, seed: int) -> None:
        self.config = config
        self.device = torch.device("cpu")
        self.replica = self.coordinate = 0
        self._schedule = schedule
        self._seed = seed

    def begin(self, *, model: Any, data: Any, steps: int, **_: Any) -> "PlainRun":
        models = dict(model) if isinstance(model, Mapping) else {"": model}
        seed_everything(mix(self._seed))
        return PlainRun(models, data, steps, self._schedule, self._seed)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        yield


class PlainRun:
    """Stands for a ``Run``."""

    is_leader = True

    def __init__(self, models: dict[str, nn.Module], data: Any, steps: int, schedule: BatchSchedule, seed: int) -> None:
        self.models = models
        self.steps = steps
        self.schedule = schedule
        self.seed = seed
        self.exponents: dict[str, int] = {}
        self._data = data
        at = order_of(data.dataset, seed, data.shuffle)
        self._order = SampleOrder(len(data.dataset), data.size, schedule, seed, data.shuffle, at)
        self._step: PlainStep | None = None
        self._stop = False
        self._decided = 0
        self._evaluations = 0

    def __iter__(self) -> Iterator["PlainStep"]:
        for number in range(self.steps):
            self._step = PlainStep(self, number, self.schedule.at(number))
            last = self._stop
            yield self._step
            if last or self._step.stopped:
                return

    def stop(self) -> None:
        self._stop = True
        if self._step is not None and self._step.skipped == "undecided":
            self._step.stopped = True

    def decided(self) -> None:
        self._decided += 1
        self._evaluations = 0

    def load(self, step: int, index: int) -> Any:
        return _load(self._data, self._order.samples(step, index), mix(self.seed, step, index, 1))

    def trained(self) -> dict[str, nn.Parameter]:
        """Each parameter once, by its first name."""
        found: dict[int, tuple[str, nn.Parameter]] = {}
        for prefix, model in self.models.items():
            for name, parameter in model.named_parameters():
                found.setdefault(id(parameter), (f"{prefix}.{name}", parameter))
        return {name: parameter for name, parameter in found.values() if parameter.requires_grad}

    def evaluate(self, data: everstep.Microbatches, eval_fn: Callable[[Any], Mapping[str, Any]]) -> dict[str, float]:
        length, size = len(data.dataset), data.size
        modes = [(module, module.training) for model in self.models.values() for module in model.modules()]
        found: list[Numbers] = []
        with streams_kept(), torch.no_grad():
            for module, _ in modes:
                module.training = False
            for index in range(math.ceil(length / size)):
                samples = range(index * size, min(length, (index + 1) * size))
                batch = _load(data, samples, mix(mix(self.seed, 2), 0, index, 1))
                seed_everything(mix(self.seed, self._decided, self._evaluations, index, 2))
                said = eval_fn(batch)
                pairs = {name: held if isinstance(held, tuple) else (held, 1) for name, held in said.items()}
                found.append({name: (float(value), float(weight)) for name, (value, weight) in pairs.items()})
        for module, mode in modes:
            module.training = mode
        self._evaluations += 1
        return means(found)


class PlainStep:
    """Stands for a ``Step``."""

    def __init__(self, run: PlainRun, number: int, microbatches: int) -> None:
        self.number = number
        self.stopped = False
        self.skipped: str | None = "undecided"
        self._run = run
        self._count = microbatches
        self._weights: list[float] = []
        self._losses: list[float] = []
        self._finite: list[bool] = []
        self._numbers: list[Numbers] = []
        self._gradients: dict[str, list[np.ndarray]] = {}

    def __iter__(self) -> Iterator[Any]:
        run = self._run
        self._parameters = run.trained()
        self._gradients = {name: [] for name in self._parameters}
        self._buffers = _Buffers(run.models)
        for index in range(self._count):
            batch = run.load(self.number, index)
            self._clear()
            self._numbers.append({})
            seed_everything(mix(run.seed, self.number, index))
            yield batch
            assert len(self._weights) == index + 1, "a microbatch needs one backward"
            self._buffers.restore()
        self._clear()
        self._decide()
        run.decided()
        seed_everything(mix(run.seed, self.number))

    def backward(self, loss: Tensor, weight: float = 1) -> None:
        seed = torch.tensor(weight, dtype=loss.dtype)
        if weight:
            loss.backward(seed.view_as(loss))
        self._take(seed.item(), 1, loss)

    @contextmanager
    def microbatch(self, weight: float = 1) -> Iterator[Any]:
        class Micro:
            loss: Tensor | None = None

        micro = Micro()
        yield micro
        self._take(float(weight), weight, micro.loss)

    def skip(self, reason: str) -> None:
        self._take(0.0, 1, None)

    def record(self, name: str, value: Any, weight: float = 1) -> None:
        value = value.detach() if isinstance(value, Tensor) else value
        self._numbers[-1][name] = (float(value), float(weight))

    @property
    def weight(self) -> float:
        return math.fsum(self._weights)

    @property
    def loss(self) -> float:
        if self.skipped is not None or self.weight == 0:
            return math.nan
        pairs = zip(self._weights, self._losses, strict=True)
        return math.fsum(weight * loss for weight, loss in pairs if weight) / self.weight

    @property
    def numbers(self) -> dict[str, float]:
        return means(self._numbers)

    def _clear(self) -> None:
        for model in self._run.models.values():
            for parameter in model.parameters():
                parameter.grad = None

    def _take(self, weight: float, factor: float, loss: Tensor | None) -> None:
        """What one microbatch contributes: float32, weighted, not yet rounded."""
        taken = {
            name: parameter.grad.float().numpy() * np.float32(factor)
            for name, parameter in self._parameters.items()
            if parameter.grad is not None
        }
        taken.update(self._buffers.changes(weight, factor))
        value = math.nan if loss is None else loss.detach().item()
        known = loss is None or math.isfinite(value)
        self._weights.append(weight)
        self._losses.append(value)
        self._finite.append(not weight or (known and all(np.isfinite(held).all() for held in taken.values())))
        if weight:
            for name, held in taken.items():
                self._gradients.setdefault(name, []).append(held)

    def _decide(self) -> None:
        spoiled = [index for index, finite in enumerate(self._finite) if not finite]
        if spoiled or not self.weight:
            numbers = ", ".join(map(str, spoiled))
            self.skipped = (
                f"its microbatches {numbers} are not finite" if spoiled else "all of its microbatches have weight 0"
            )
            return
        self.skipped = None
        means_ = self._means()
        for name, parameter in self._parameters.items():
            if name in means_:
                parameter.grad = torch.from_numpy(means_[name]).view(parameter.shape).to(parameter.dtype)
        self._buffers.apply(means_)

    def _means(self) -> dict[str, np.ndarray]:
        """Rounded to the grid that the steps before have set, summed as whole numbers, and divided."""
        run, microbatches = self._run, self._run.schedule.largest
        names = list(self._gradients)
        held = [run.exponents.get(name, grid.first_exponent(microbatches)) for name in names]
        maxima = [max((float(abs(one).max()) for one in self._gradients[name]), default=0.0) for name in names]
        while not all(grid.fits(most, e, microbatches) for most, e in zip(maxima, held, strict=True)):
            held = list(grid.next_exponents(maxima, held, microbatches, committed=False))
        found = {}
        for name, e in zip(names, held, strict=True):
            if self._gradients[name]:
                # A sum that begins with +0 is never -0, whoever adds what.
                total = sum((np.rint(np.ldexp(one.astype(np.float64), -e)) for one in self._gradients[name]), 0.0)
                found[name] = np.asarray(np.ldexp(total, e) / self.weight).astype(np.float32)
        after = grid.next_exponents(maxima, held, microbatches, committed=True)
        run.exponents.update(zip(names, after, strict=True))
        return found


class _Buffers:
    """Every microbatch begins with the value of the step; the weighted mean of the changes is the step's."""

    def __init__(self, models: Mapping[str, nn.Module]) -> None:
        self._held = {
            f"buffer {prefix}.{path}.{key}": (module, key, tensor, tensor.clone())
            for prefix, model in models.items()
            for path, module in model.named_modules()
            for key, tensor in module._buffers.items()
            if tensor is not None
        }

    def changes(self, weight: float, factor: float) -> dict[str, np.ndarray]:
        """Of the microbatch that has just run, weighted; with ``factor`` in float32, as its gradients are."""
        found = {}
        for name, (module, key, _, start) in self._held.items():
            now = module._buffers[key]
            assert now is not None
            if not torch.equal(now, start):
                change = (now.double() - start.double()).numpy() * (weight / factor if weight else 0.0)
                found[name] = change.astype(np.float32) * np.float32(factor)
        return found

    def restore(self) -> None:
        for module, key, tensor, start in self._held.values():
            tensor.copy_(start)
            module._buffers[key] = tensor

    def apply(self, means_: Mapping[str, np.ndarray]) -> None:
        for name, (_, _, tensor, start) in self._held.items():
            if name in means_:
                value = start.double().numpy() + means_[name].astype(np.float64).reshape(start.shape)
                tensor.copy_(torch.as_tensor(value if start.is_floating_point() else np.rint(value)))


def means(numbers: list[Numbers]) -> dict[str, float]:
    """Weighted means over the microbatches that have the number."""
    found = {}
    for name in sorted({name for held in numbers for name in held}):
        pairs = [held[name] for held in numbers if name in held]
        weight = math.fsum(weight for _, weight in pairs)
        found[name] = math.fsum(value * weight for value, weight in pairs if weight) / weight if weight else math.nan
    return found


def _load(data: Any, samples: Any, seed: int) -> Any:
    items = []
    for place, sample in enumerate(samples):
        seed_everything(mix(seed, place))
        items.append(data.dataset[sample])
    return (data.collate_fn or default_collate)(items)
