"""The envelope of healthy runs as a file: made once from their records, read by every rank of the runs to come."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .envelope import Band, Envelope, Rule


@dataclass(frozen=True)
class Calibrated:
    """By what a run is judged.

    Attributes:
        envelope: of other runs; None for that of the run's own past.
    """

    rule: Rule = Rule()
    envelope: Envelope | None = None


def save(path: str | Path, held: Calibrated) -> None:
    """Write it.

    Raises:
        OSError: it cannot be written.
    """
    bands = [[*place, band.low, band.high] for place, band in _sorted(held.envelope or {})]
    Path(path).write_text(json.dumps({"rule": asdict(held.rule), "bands": bands}), encoding="utf-8")


def load(path: str | Path) -> Calibrated:
    """Read it.

    Raises:
        ValueError: there is no such file, or it is none of these, in one line.
    """
    try:
        said: Mapping[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
        bands = {
            ((str(monitor), str(layer), str(number)), int(place)): Band(float(low), float(high))
            for monitor, layer, number, place, low, high in said["bands"]
        }
        return Calibrated(Rule(**said["rule"]), bands)
    except OSError as error:
        raise ValueError(f"it cannot be read: {error.strerror or error}") from None
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"it is no envelope that monitors.calibration has written: {error}") from None


def _sorted(envelope: Envelope) -> list[tuple[tuple[str, str, str, int], Band]]:
    return sorted(((*place, bin_), band) for (place, bin_), band in envelope.items())
