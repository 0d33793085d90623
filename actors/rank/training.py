"""A training step as a unit of work: gradients are summed, judged by the census, and published as ``.grad``."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from ...conf.elastic import OnTrouble
from ...conf.errors import LoopError, NonFiniteError, ProbeError
from ...monitors.reading import Reading
from ...policies.world import Work, WorkKind, World
from ..faults import Chaos
from .census import Census, Contribution, Part, Statement
from .communicator import Communicator
from .gradients import GradientSum
from .transaction import Verdict


class Training:
    """One step, or one attempt at it after another.

    Args:
        step: its number.
        microbatches: B of this step.
        gradients: the sum.
        trained: what is summed from now on, by name; it may change from step to step.
        on_nonfinite: what a loss or gradient that is not finite means.
        chaos: planned faults.
        await_end: blocks until this process is ended from outside, or until that does not happen.
        readings: what the stability monitors have to tell the others with this step.
    """

    def __init__(
        self,
        step: int,
        microbatches: int,
        gradients: GradientSum,
        trained: Callable[[], Mapping[str, Tensor]],
        on_nonfinite: OnTrouble,
        chaos: Chaos,
        await_end: Callable[[], None],
        readings: Callable[[], tuple[Reading, ...]] = tuple,
    ) -> None:
        self.work = Work(WorkKind.TRAINING, microbatches)
        self._step = step
        self._gradients = gradients
        self._trained = trained
        self._on_nonfinite = on_nonfinite
        self._chaos = chaos
        self._await_end = await_end
        self._readings = readings
        self._contributions: dict[int, Contribution] = {}
        self.signature: int | None = None
        self.probed = False
        self.stop = False

    def begin(self) -> None:
        self._contributions = {}
        self._gradients.reset(self._trained())

    def add(self, index: int, weight: float, loss: Tensor | None, peak: Tensor) -> None:
        """A microbatch whose gradient is folded."""
        self._contributions[index] = Contribution(weight, None if loss is None else loss.detach(), peak)

    def note(self, index: int, numbers: dict[str, tuple[float | Tensor, float]]) -> None:
        """What the user recorded in it."""
        self._contributions[index] = replace(self._contributions[index], numbers=numbers)

    @property
    def norm(self) -> float:
        """The largest |gradient| of the microbatches that count; 0 if there is none."""
        told = (one for one in self._contributions.values() if one.weight and one.peak is not None)
        return max((float(one.peak) for one in told if one.peak is not None), default=0.0)

    def reduce(self, communicator: Communicator, part: Part) -> Census:
        gradients = self._gradients
        touched = gradients.touched()
        held = {**dict.fromkeys(part.poison, Contribution()), **self._told()}
        if not gradients.finite():
            spoiled = torch.tensor(torch.inf)
            held = {index: replace(one, peak=spoiled) for index, one in held.items()}
        gradients.exchange(communicator, self._chaos, silent=part.shadow)
        statement = Statement(
            held, self.work.microbatches, touched, gradients.maxima(), self.stop, self.signature, part, self.probed
        )
        census = statement.begin(communicator).finish(communicator)
        gradients.gather(communicator, census.weight)
        device = gradients.maxima().device
        if device.type == "cuda":
            # NCCL only waits on the stream: the vote must not be entered before the sums are really there.
            torch.cuda.synchronize(device)
        return census

    def _told(self) -> dict[int, Contribution]:
        """What this rank contributes; its first microbatch carries what the monitors have to tell."""
        held = dict(self._contributions)
        if held and (readings := self._readings()):
            held[min(held)] = replace(held[min(held)], readings=readings)
        return held

    def forget(self) -> None:
        self._gradients.forget()

    def judge(self, census: Census) -> Verdict:
        if _unlike(census):
            return Verdict.VOID if majority(census.signatures) is not None else Verdict.STOP
        if census.nonfinite or census.weight == 0:
            return Verdict.SKIP if self._on_nonfinite is OnTrouble.SKIP else Verdict.STOP
        return Verdict.VOID if self._gradients.misfits(census.maxima) else Verdict.COMMIT

    def conclude(self, verdict: Verdict, census: Census, world: World) -> None:
        if _unlike(census):
            self._refuse_unlike(census, world)
        # Only the first decision compares: whoever is left computes alike.
        self.signature, self.probed = None, False
        if verdict is Verdict.STOP:
            raise self._reason_to_stop(census)
        if verdict is Verdict.COMMIT:
            self._gradients.publish(census.touched)
        if verdict is Verdict.SKIP:
            self._gradients.reset()
        else:
            self._gradients.advance(census.maxima, committed=verdict is Verdict.COMMIT)

    def skipped(self, census: Census) -> str:
        """Why a step was skipped."""
        if not census.nonfinite:
            return "all of its microbatches have weight 0"
        return f"its microbatches {', '.join(map(str, census.nonfinite))} are not finite"

    def _reason_to_stop(self, census: Census) -> Exception:
        if census.weight == 0 and not census.nonfinite:
            return LoopError(f"all microbatches of step {self._step} have weight 0: there is nothing to average")
        for index in census.nonfinite:
            held = self._contributions.get(index)
            if held is not None:
                loss = "unknown" if held.loss is None else f"{float(held.loss):g}"
                peak = 0.0 if held.peak is None else float(held.peak)
                return NonFiniteError(
                    f"microbatch {index} of step {self._step} is not finite: its loss is {loss}, its largest "
                    f"gradient {peak:g}; nothing of it was applied (elastic.on_nonfinite=skip would leave the step out)"
                )
        # The rank that computed it says so and ends the run; this one waits to be told.
        self._await_end()
        culprit = f"microbatch {census.nonfinite[0]} of step {self._step}"
        return NonFiniteError(f"{culprit} is not finite, and the rank that computed it is gone")

    def _refuse_unlike(self, census: Census, world: World) -> None:
        """Members compute one microbatch alike to the bit, or they may not train together."""
        seats = [str(member.seat) for member in world.members]
        common = majority(census.signatures)
        unlike = [seat for seat, held in zip(seats, census.signatures, strict=False) if held not in (0, common)]
        if common is None:
            raise LoopError(
                f"ranks {', '.join(seats)} compute different gradients for the same microbatch, and no majority says "
                "which are right: are models, kernels and the loop deterministic? elastic.probe=false trains all the "
                "same, reduction=float does not promise equal bits"
            )
        if self.signature not in (None, common):
            raise ProbeError(
                f"ranks {', '.join(unlike)} compute other gradients than the majority for the same microbatch"
            )


def _unlike(census: Census) -> bool:
    """Whether members compute the probe microbatch differently; who came in later has not computed it."""
    return len(set(census.signatures) - {0}) > 1


def majority(signatures: tuple[int, ...]) -> int | None:
    """The signature of more than half of those that have one; None if there is none."""
    told = [held for held in signatures if held]
    value, count = Counter(told).most_common(1)[0]
    return value if 2 * count > len(told) else None
