"""Numbers that cannot work are refused where they come in."""

from math import isfinite


def refuse_below(low: float, error: type[Exception] = ValueError, /, **numbers: float) -> None:
    """Refuse what is not finite or below ``low``.

    Raises:
        ValueError, or the ``error`` that is given: one line that names the number.
    """
    for name, value in numbers.items():
        if not (isfinite(value) and value >= low):
            raise error(f"{name}={value!r} must be a finite number of at least {low:g}")


def refuse_nonpositive(error: type[Exception] = ValueError, /, **numbers: float) -> None:
    """Refuse what is not finite and positive.

    Raises:
        ValueError, or the ``error`` that is given: one line that names the number.
    """
    for name, value in numbers.items():
        if not (isfinite(value) and value > 0):
            raise error(f"{name}={value!r} must be a finite, positive number")
