"""What the members of a unit of work tell each other beside the gradients, as small tensors, and what follows from it.

Every number has a slot of its own per microbatch, filled by the one rank that computed it, so sums over ranks are
exact and the result does not depend on who computed what. The census is complete before the vote is entered; so
everybody who entered the vote can tell the verdict, also one whose own vote broke.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from ...monitors.reading import Reading
from . import tally
from .communicator import Communicator, Pending
from .transaction import ProtocolError

_ROWS = 5
# A signature travels as two whole numbers that float64 holds exactly.
_HALF_BITS = 32


@dataclass(frozen=True)
class Contribution:
    """One microbatch that is folded.

    Attributes:
        weight: of its loss in the step's mean.
        loss: scalar, on the device: reading it would make the host wait, so it is read with the census; None if the
            user's loop did not tell it.
        peak: largest |gradient|, scalar, on the device; +inf if one is not finite.
        numbers: that the user recorded: value and weight by name.
        readings: of the stability monitors; they have nothing to do with the microbatch, which only carries them.
    """

    weight: float = 0.0
    loss: Tensor | None = None
    peak: Tensor | None = None
    numbers: Mapping[str, tuple[float | Tensor, float]] = field(default_factory=dict)
    readings: tuple[Reading, ...] = ()

    def row(self, payload: bytes) -> tuple[float, ...]:
        """Count, weight, loss, whether something is not finite, and the length of the numbers.

        Weight 0 contributes nothing, not 0 times NaN.
        """
        if self.weight == 0:
            return 1.0, 0.0, 0.0, 0.0, float(len(payload))
        known = self.loss is not None
        loss = float(self.loss) if self.loss is not None else math.nan
        finite = (not known or math.isfinite(loss)) and (self.peak is None or math.isfinite(float(self.peak)))
        return 1.0, self.weight, loss if finite else 0.0, float(not finite), float(len(payload))


@dataclass(frozen=True)
class Wish:
    """What is said of one of the places where states are saved, by a rank or by all; all ranks save in the same ones.

    Attributes:
        full: the state after this step could not be saved: what was saved before is still on its way.
        every: steps from one save to the next, at most; 0 for no opinion.
    """

    full: bool = False
    every: int = 0


@dataclass(frozen=True)
class Part:
    """The part that a rank takes in a reduction.

    A role comes with a generation, and in every generation everything is reduced anew: so what is said here holds for
    all collectives of one reduction, also for those that were begun early.

    Attributes:
        shadow: it repeats what another rank contributes: what it adds to any sum is nothing. What it has summed stays
            with it, since it may have to take the place of the other one.
        poison: its indices that nobody may compute: they count, and contribute nothing.
        dropped: indices that nobody contributes.
        pace: seconds that one of its microbatches took, 0 if it computed none.
        wishes: by where states are saved.
    """

    shadow: bool = False
    poison: frozenset[int] = frozenset()
    dropped: frozenset[int] = frozenset()
    pace: float = 0.0
    wishes: tuple[Wish, ...] = ()


@dataclass(frozen=True)
class Census:
    """All of a unit of work, as every member sees it.

    Attributes:
        weights: by microbatch.
        losses: by microbatch; NaN where the user's loop did not tell it.
        nonfinite: indices whose contribution is not finite.
        touched: by parameter.
        maxima: by parameter, largest |weighted gradient| of one microbatch.
        stop: whether some rank wants this step to be the last.
        signatures: by place in the world, of the gradients of the probe microbatch, 0 where there was none; empty if
            nobody was to have one.
        numbers: weighted means of what was recorded.
        readings: of the stability monitors of all ranks.
        microbatches: how many it counts.
        pace: seconds per microbatch of the slowest member that contributed any; 0 if nobody knows.
        wishes: by where states are saved: full if it is for some rank, and the shortest interval that one would have.
    """

    weights: tuple[float, ...]
    losses: tuple[float, ...]
    nonfinite: tuple[int, ...]
    touched: list[bool] = field(default_factory=list)
    maxima: list[float] = field(default_factory=list)
    stop: bool = False
    signatures: tuple[int, ...] = ()
    numbers: Mapping[str, float] = field(default_factory=dict)
    microbatches: int = 0
    pace: float = 0.0
    wishes: tuple[Wish, ...] = ()
    readings: tuple[Reading, ...] = ()

    @property
    def weight(self) -> float:
        return math.fsum(self.weights)

    @property
    def loss(self) -> float:
        """Weighted mean over the step; the same bits on every rank and for every split."""
        if self.weight == 0:
            return math.nan
        pairs = zip(self.weights, self.losses, strict=True)
        return math.fsum(weight * loss for weight, loss in pairs if weight) / self.weight


@dataclass(frozen=True)
class Statement:
    """What one rank says in a census.

    Attributes:
        contributions: of the microbatches of this rank, by index.
        microbatches: of all ranks.
        touched: by parameter.
        maxima: by parameter, float64, on the device of the collectives.
        stop: this rank wants the step to be the last.
        signature: of the probe microbatch, 64 bits; None if this rank has none. Shadows compute it like everybody.
        part: that it takes.
        probed: whether any rank may have a signature: the same on all of them, unlike that it has one.
    """

    contributions: Mapping[int, Contribution]
    microbatches: int
    touched: Sequence[bool]
    maxima: Tensor
    stop: bool = False
    signature: int | None = None
    part: Part = Part()
    probed: bool = False

    def begin(self, communicator: Communicator) -> "Taking":
        """Launch the collectives.

        Raises:
            CommunicatorError: the group is broken.
        """
        contributions, touched, maxima, pace = self.contributions, self.touched, self.maxima, self.part.pace
        if self.part.shadow:
            contributions, touched, maxima, pace = {}, [False] * len(touched), torch.zeros_like(maxima), 0.0
        payloads = {index: tally.encode(held.numbers, held.readings) for index, held in contributions.items()}
        rows = torch.zeros(_ROWS, self.microbatches, dtype=torch.float64)
        for index, held in contributions.items():
            rows[:, index] = torch.tensor(held.row(payloads[index]), dtype=torch.float64)
        flags = torch.tensor([float(flag) for flag in (self.stop, *touched)], dtype=torch.float64)
        signatures = torch.zeros(2 * communicator.size if self.probed else 0, dtype=torch.float64)
        if self.signature is not None:
            halves = divmod(self.signature, 2**_HALF_BITS)
            signatures[2 * communicator.rank : 2 * communicator.rank + 2] = torch.tensor(halves, dtype=torch.float64)
        summed = torch.cat([rows.flatten(), flags, signatures]).to(self.maxima.device)
        wishes = [number for wish in self.part.wishes for number in (wish.full, 1 / wish.every if wish.every else 0)]
        highest = torch.cat([maxima, torch.tensor([*wishes, pace], dtype=torch.float64, device=maxima.device)])
        return Taking(
            self.microbatches,
            payloads,
            summed,
            highest,
            [communicator.all_reduce(summed, dist.ReduceOp.SUM), communicator.all_reduce(highest, dist.ReduceOp.MAX)],
            len(touched),
            self.part.dropped,
            len(self.part.wishes),
        )


@dataclass(frozen=True)
class Taking:
    """A census under way."""

    microbatches: int
    payloads: Mapping[int, bytes]
    summed: Tensor
    highest: Tensor
    pending: list[Pending]
    parameters: int
    dropped: frozenset[int]
    places: int

    def finish(self, communicator: Communicator) -> Census:
        """Wait for it and read it.

        Raises:
            CommunicatorError: a collective failed.
            ProtocolError: a microbatch was not summed exactly once, or was summed though it is dropped.
        """
        for collective in self.pending:
            collective.wait()
        rows, rest = self.summed.cpu().tensor_split([_ROWS * self.microbatches])
        flags, signatures = rest.tensor_split([1 + self.parameters])
        counts, weights, losses, nonfinite, lengths = rows.view(_ROWS, self.microbatches).tolist()
        wrong = {index: int(count) for index, count in enumerate(counts) if count != (index not in self.dropped)}
        if wrong:
            raise ProtocolError(f"microbatches were not summed exactly once: {wrong}")
        told = tally.share(self.payloads, [int(length) for length in lengths], communicator, self.summed.device)
        stop, *touched = (flag > 0 for flag in flags.tolist())
        *highest, pace = self.highest.tolist()
        maxima, said = highest[: len(highest) - 2 * self.places], highest[len(highest) - 2 * self.places :]
        wishes = tuple(
            Wish(full > 0, round(1 / often) if often else 0) for full, often in zip(said[::2], said[1::2], strict=True)
        )
        halves = [int(half) for half in signatures.tolist()]
        return Census(
            tuple(weights),
            tuple(losses),
            tuple(index for index, flag in enumerate(nonfinite) if flag),
            touched,
            maxima,
            stop,
            tuple((high << _HALF_BITS) | low for high, low in zip(halves[::2], halves[1::2], strict=True)),
            tally.means([held for held, _ in told]),
            self.microbatches - len(self.dropped),
            pace,
            wishes,
            tuple(reading for _, readings in told for reading in readings),
        )
