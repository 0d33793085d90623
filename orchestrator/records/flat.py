"""A record as one flat mapping: the form of callbacks, data frames and plots."""

import math
from collections.abc import Iterable
from dataclasses import asdict

from ...actors.messages import StepRecord
from ...monitors.reading import Reading
from ...monitors.signs import SIGNS


def flat(record: StepRecord) -> dict[str, float | str | None]:
    """The fields of a record, its learning rates as ``lr/name``, and its numbers under their own names.

    A number that goes by the name of a field is found as ``numbers/name``. Of what the stability monitors judge, there
    is the sickest of each layer, as ``stability/layer/number``.
    """
    fields = asdict(record)
    rates, numbers, _ = fields.pop("lr"), fields.pop("numbers"), fields.pop("readings")
    fields.update({f"lr/{name}": rate for name, rate in rates.items()})
    taken = frozenset(fields)
    fields.update({f"numbers/{name}" if name in taken else name: value for name, value in numbers.items()})
    fields.update(sickest(record.readings))
    return fields


def sickest(readings: Iterable[Reading]) -> dict[str, float]:
    """By layer and number, that of all heads which is furthest on the sick side."""
    found: dict[str, float] = {}
    for reading in readings:
        for number, value in reading.numbers.items():
            sign = SIGNS.get((reading.monitor, number))
            if sign is not None:
                name = f"stability/{reading.layer or reading.monitor}/{number}"
                worse = min if sign.side == "low" else max
                pair = (value, found.get(name, value))
                found[name] = math.nan if any(map(math.isnan, pair)) else worse(pair)
    return found
