"""A record as one flat mapping: the form of callbacks, data frames and plots."""

from dataclasses import asdict

from ...actors.messages import StepRecord


def flat(record: StepRecord) -> dict[str, float | str | None]:
    """The fields of a record, its learning rates as ``lr/name``, and its numbers under their own names.

    A number that goes by the name of a field is found as ``numbers/name``.
    """
    fields = asdict(record)
    rates, numbers = fields.pop("lr"), fields.pop("numbers")
    fields.update({f"lr/{name}": rate for name, rate in rates.items()})
    taken = frozenset(fields)
    fields.update({f"numbers/{name}" if name in taken else name: value for name, value in numbers.items()})
    return fields
