"""Numbers that a user records by microbatch, averaged over a whole unit of work, and what monitors have read.

A number belongs to the microbatch in which it was recorded, and travels as the bytes that its one rank wrote. So the
means have the same bits on every rank and for every split.
"""

import json
import math
from collections.abc import Mapping, Sequence
from itertools import accumulate

import torch
import torch.distributed as dist
from torch import Tensor

from ...conf.errors import LoopError
from ...monitors.reading import Reading
from .communicator import Communicator

# By name: value and weight.
Numbers = Mapping[str, tuple[float, float]]


def checked(name: object, value: object, weight: object) -> tuple[str, float | Tensor, float]:
    """A number as a user gives it. What lies on a device is not read yet: that would make the host wait.

    Raises:
        LoopError: a name that is no text, a value that is no number, a weight that is negative or not finite.
    """
    if not isinstance(name, str) or not name:
        raise LoopError(f"a recorded number needs a name, got {name!r}")
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise LoopError(f"{name} has shape {tuple(value.shape)}: record a single number, such as its mean")
        value = value.detach()
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise LoopError(f"{name}={value!r} is no number")
    return name, value, checked_weight(weight, name)


def checked_weight(weight: object, of: str) -> float:
    """A weight as a user gives it.

    Raises:
        LoopError: it is negative, not finite, or no number.
    """
    if isinstance(weight, Tensor) and weight.numel() == 1:
        weight = weight.item()
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not (math.isfinite(weight) and weight >= 0):
        raise LoopError(f"weight={weight!r} must be a finite number that is not negative (of {of})")
    return float(weight)


def encode(numbers: Mapping[str, tuple[float | Tensor, float]], readings: Sequence[Reading] = ()) -> bytes:
    """What one microbatch carries; empty if that is nothing. Floats survive to the bit."""
    if not numbers and not readings:
        return b""
    told = [[one.monitor, one.step, one.layer, one.head, dict(one.numbers)] for one in readings]
    return json.dumps([{name: [float(value), weight] for name, (value, weight) in numbers.items()}, told]).encode()


def decode(payload: bytes) -> tuple[Numbers, tuple[Reading, ...]]:
    """And back."""
    numbers, told = json.loads(payload or b"[{}, []]")
    return {name: (value, weight) for name, (value, weight) in numbers.items()}, tuple(Reading(*one) for one in told)


def share(
    payloads: Mapping[int, bytes], lengths: Sequence[int], communicator: Communicator, device: torch.device
) -> list[tuple[Numbers, tuple[Reading, ...]]]:
    """What everybody carries by microbatch, in one small collective; none at all if nobody has anything.

    Args:
        payloads: of the microbatches of this rank, by index.
        lengths: of the payloads of all microbatches, known to everybody.

    Raises:
        CommunicatorError: the collective failed.
    """
    ends = list(accumulate(lengths))
    if not ends or not ends[-1]:
        return [({}, ()) for _ in lengths]
    starts = [end - length for end, length in zip(ends, lengths, strict=True)]
    held = bytearray(ends[-1])
    for index, payload in payloads.items():
        held[starts[index] : ends[index]] = payload
    summed = torch.frombuffer(held, dtype=torch.uint8).to(device)
    # Each byte has one rank that gives it; the others give zero.
    communicator.all_reduce(summed, dist.ReduceOp.SUM).wait()
    whole = summed.cpu().numpy().tobytes()
    return [decode(whole[start:end]) for start, end in zip(starts, ends, strict=True)]


def means(numbers: Sequence[Numbers]) -> dict[str, float]:
    """Weighted mean of each number over the microbatches that have it; NaN if all of its weights are 0."""
    names = sorted({name for held in numbers for name in held})
    found = {}
    for name in names:
        pairs = [held[name] for held in numbers if name in held]
        weight = math.fsum(weight for _, weight in pairs)
        total = _fsum([value * weight for value, weight in pairs if weight])
        found[name] = total / weight if weight else math.nan
    return found


def _fsum(values: Sequence[float]) -> float:
    """``math.fsum``, which refuses a sum of opposite infinities."""
    try:
        return math.fsum(values)
    except (ValueError, OverflowError):
        return math.nan
