"""JSON that every reader understands: numbers that are not finite are written as strings."""

import json
import math
from collections.abc import Mapping
from typing import Any


def dumps(value: Any, indent: int | None = None) -> str:
    """The text of a value; what JSON does not know is written as its string.

    >>> dumps({"loss": float("nan"), "best": 0.5})
    '{"loss": "NaN", "best": 0.5}'
    """
    return json.dumps(_finite(value), indent=indent, default=str, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        # As protobuf writes them; Python's float() reads them back.
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
