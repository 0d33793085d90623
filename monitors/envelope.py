"""Is a reading what a healthy run would show? Pure: what has been seen so far is a value, and judging returns the next.

No number is sick by itself: an alarm is a departure from a healthy course, the median and its MAD, taken from other
runs at the same steps or from this run's own past. It comes only when the departure lasts.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, inf, isfinite, isnan, log
from statistics import median
from typing import Any

from .reading import Reading
from .signs import SIGNS, Sign

# A MAD times this is the standard deviation of a normal distribution.
_NORMAL = 1.4826
# (monitor, layer, head, number); no rank is in it, so a change of members changes nothing.
Key = tuple[str, str, int | None, str]


@dataclass(frozen=True)
class Rule:
    """How an envelope is made and left.

    Attributes:
        distance: how many scales from the median are still healthy.
        persistence: readings in a row outside before an alarm.
        enough: readings without which an envelope abstains.
        window: newest healthy readings that make the envelope of a run's own past.
        floor: the least scale, as a share of the median's magnitude, so that a number that hardly moves is no trap; for
            one that departs by factors, a difference of logarithms, which is the same if it is small.
        bin: steps that share an envelope of other runs.

    Raises:
        ValueError: for numbers out of range.
    """

    distance: float = 6.0
    persistence: int = 3
    enough: int = 8
    window: int = 32
    floor: float = 0.02
    bin: int = 500

    def __post_init__(self) -> None:
        if not self.distance > 0 or self.floor < 0 or min(self.persistence, self.bin) < 1 or self.enough < 2:
            raise ValueError(f"{self}: distance, persistence, bin must be above 0, enough above 1, floor not below 0")
        if self.window < self.enough:
            raise ValueError(f"window={self.window} can never hold enough={self.enough} readings")


@dataclass(frozen=True)
class Band:
    """Healthy values: from ``low`` to ``high``."""

    low: float
    high: float


@dataclass(frozen=True)
class Alarm:
    """A number that has left its envelope and stays outside.

    Attributes:
        since: step of the first reading outside.
        sentence: all of it, for people.
    """

    step: int
    since: int
    monitor: str
    layer: str
    head: int | None
    number: str
    value: float
    healthy: Band
    fault: str
    sentence: str


@dataclass(frozen=True)
class Watch:
    """What has been seen: by key, (step, value) of healthy readings and of the newest ones in a row outside."""

    inside: Mapping[Key, tuple[tuple[int, float], ...]] = field(default_factory=dict)
    outside: Mapping[Key, tuple[tuple[int, float], ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Judgement:
    """What came of readings: the next watch, alarms, and for which keys there was no envelope yet."""

    watch: Watch
    alarms: tuple[Alarm, ...]
    abstained: tuple[Key, ...]


# By (monitor, layer, number) and bin of steps; not by head, since heads of other seeds have nothing in common.
Envelope = Mapping[tuple[tuple[str, str, str], int], Band]


def calibrate(runs: Sequence[Iterable[Reading]], rule: Rule) -> Envelope:
    """The envelope of healthy runs that differ in their seed, by layer and bin of steps; short bins are left out."""
    values: dict[tuple[tuple[str, str, str], int], list[float]] = {}
    signs: dict[tuple[str, str, str], Sign] = {}
    for run in runs:
        for reading in run:
            for key, value, sign in _judged(reading):
                place = _place(key, reading.step, rule)
                signs[place[0]] = sign
                if _counts(value, sign):
                    values.setdefault(place, []).append(value)
    return {
        place: band_of(held, rule, signs[place[0]].factors)
        for place, held in values.items()
        if len(held) >= rule.enough
    }


def judge(watch: Watch, readings: Iterable[Reading], rule: Rule, envelope: Envelope | None = None) -> Judgement:
    """The next watch, and the alarms that begin with these readings.

    Args:
        readings: later than those before; say first if the run went back.
        envelope: of other runs; without it, that of the run's own past.

    Raises:
        ValueError: for a reading that is not later than the one before it of the same place and number.
    """
    inside, outside = dict(watch.inside), dict(watch.outside)
    alarms, abstained = [], []
    for reading in readings:
        for key, value, sign in _judged(reading):
            kept, odd = inside.get(key, ()), outside.get(key, ())
            newest = max((step for step, _ in (*kept[-1:], *odd[-1:])), default=None)
            if newest is not None and reading.step <= newest:
                raise ValueError(f"{_named(key)}: step {reading.step} after step {newest}; say first that it went back")
            band = _band(key, reading.step, kept, rule, envelope, sign)
            if band is None:
                abstained.append(key)
            if band is None or not _sick(value, band, sign):
                outside.pop(key, None)
                if _counts(value, sign):
                    inside[key] = (*kept, (reading.step, value))[-rule.window :]
                continue
            # What is outside is no part of the past: else a collapse would become healthy by lasting.
            outside[key] = (*odd, (reading.step, value))[-rule.persistence - 1 :]
            if len(outside[key]) == rule.persistence:
                alarms.append(_alarm(key, outside[key], band, sign))
    return Judgement(Watch(inside, outside), tuple(alarms), tuple(abstained))


def rolled_back(watch: Watch, step: int) -> Watch:
    """The watch of a run that goes on from the state after ``step``: what came later has not happened."""
    held = (watch.inside, watch.outside)
    inside, outside = (
        {key: kept for key, seen in side.items() if (kept := tuple(one for one in seen if one[0] <= step))}
        for side in held
    )
    return Watch(inside, outside)


def band_of(values: Sequence[float], rule: Rule, factors: bool = False) -> Band:
    """Median and MAD of finite values.

    Args:
        factors: of their logarithms; values are above 0 then.
    """
    held = [log(value) for value in values] if factors else values
    middle = median(held)
    least = rule.floor if factors else rule.floor * abs(middle)
    scale = rule.distance * max(_NORMAL * median(abs(value - middle) for value in held), least)
    low, high = middle - scale, middle + scale
    return Band(_raised(low), _raised(high)) if factors else Band(low, high)


def saved(watch: Watch) -> dict[str, Any]:
    """The watch as lists and numbers, as JSON has them."""
    sides = (("inside", watch.inside), ("outside", watch.outside))
    return {name: [[list(key), [list(one) for one in seen]] for key, seen in side.items()] for name, side in sides}


def loaded(state: Mapping[str, Any]) -> Watch:
    """The watch that was saved.

    Raises:
        ValueError: for anything that ``saved`` did not make.
    """
    try:
        inside, outside = (
            {
                (str(monitor), str(layer), None if head is None else int(head), str(number)): tuple(
                    (int(step), float(value)) for step, value in seen
                )
                for (monitor, layer, head, number), seen in state[name]
            }
            for name in ("inside", "outside")
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"this is no saved watch of a stability monitor: {error!r}") from error
    return Watch(inside, outside)


def _judged(reading: Reading) -> Iterable[tuple[Key, float, Sign]]:
    for number, value in reading.numbers.items():
        sign = SIGNS.get((reading.monitor, number))
        if sign is not None:
            yield (reading.monitor, reading.layer, reading.head, number), value, sign


def _band(
    key: Key, step: int, kept: tuple[tuple[int, float], ...], rule: Rule, envelope: Envelope | None, sign: Sign
) -> Band | None:
    if envelope is not None:
        return envelope.get(_place(key, step, rule))
    return band_of([value for _, value in kept], rule, sign.factors) if len(kept) >= rule.enough else None


def _counts(value: float, sign: Sign) -> bool:
    """Whether it can be a part of an envelope."""
    return isfinite(value) and (value > 0 or not sign.factors)


def _raised(logarithm: float) -> float:
    try:
        return exp(logarithm)
    except OverflowError:
        return inf


def _place(key: Key, step: int, rule: Rule) -> tuple[tuple[str, str, str], int]:
    monitor, layer, _, number = key
    return (monitor, layer, number), step // rule.bin


def _sick(value: float, band: Band, sign: Sign) -> bool:
    return isnan(value) or (value < band.low if sign.side == "low" else value > band.high)


def _alarm(key: Key, outside: tuple[tuple[int, float], ...], band: Band, sign: Sign) -> Alarm:
    since, (step, value) = outside[0][0], outside[-1]
    monitor, layer, head, number = key
    limit = f"below {band.low:.4g}" if sign.side == "low" else f"above {band.high:.4g}"
    state = "is not a number" if isnan(value) else f"is {value:.4g}, {limit}"
    sentence = f"{_named(key)} {state}, since step {since}: {sign.meaning}; it fits {sign.fault}"
    return Alarm(step, since, monitor, layer, head, number, value, band, sign.fault, sentence)


def _named(key: Key) -> str:
    monitor, layer, head, number = key
    place = " ".join(filter(None, (layer, "" if head is None else f"head {head}")))
    return f"{place + ': ' if place else ''}{monitor} {number}"
