"""Numbers that a policy cannot work with are refused when it is made."""

from math import isfinite


def refuse_below(low: float, **numbers: float) -> None:
    """Refuse what is not finite or below ``low``.

    Raises:
        ValueError: one line that names the number.
    """
    for name, value in numbers.items():
        if not (isfinite(value) and value >= low):
            raise ValueError(f"{name}={value!r} must be a finite number of at least {low:g}")


def refuse_nonpositive(**numbers: float) -> None:
    """Refuse what is not finite and positive.

    Raises:
        ValueError: one line that names the number.
    """
    for name, value in numbers.items():
        if not (isfinite(value) and value > 0):
            raise ValueError(f"{name}={value!r} must be a finite, positive number")
