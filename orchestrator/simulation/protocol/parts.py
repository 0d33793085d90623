"""What came of seeds that were played before, in a file, so that a long campaign can be interrupted and goes on."""

import json
from collections import Counter
from hashlib import sha256
from pathlib import Path

from .outcome import Outcome

# Everything that a simulated run is made of lies below these.
_FOLDERS = ("actors", "conf", "monitors", "orchestrator", "policies")
_ROOT = Path(__file__).parents[3]


def fingerprint(root: Path = _ROOT) -> str:
    """Of the code that is played: figures of another one are not mixed with those of this."""
    digest = sha256()
    for path in sorted(path for folder in _FOLDERS for path in (root / folder).rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


class Parts:
    """One line of JSON for each handful of seeds.

    Args:
        path: of the file; it comes into being with the first line.
        code: fingerprint of what is played now.
    """

    def __init__(self, path: Path, code: str) -> None:
        self._path = path
        self._code = code

    def read(self) -> dict[range, Outcome]:
        """What came of which seeds, under this very code. A line that was cut off by an interruption says nothing."""
        found: dict[range, Outcome] = {}
        if not self._path.exists():
            return found
        for line in self._path.read_text(encoding="utf-8").splitlines():
            try:
                said = json.loads(line)
            except ValueError:
                continue
            if said["code"] == self._code:
                found[range(said["first"], said["first"] + said["seeds"])] = Outcome(
                    said["seeds"],
                    Counter(said["seen"]),
                    Counter({(kind, point): number for kind, point, number in said["hits"]}),
                    {int(seed): story for seed, story in said["violations"].items()},
                    said["seconds"],
                )
        return found

    def write(self, seeds: range, outcome: Outcome) -> None:
        """Append what came of these seeds."""
        said = {
            "code": self._code,
            "first": seeds.start,
            "seeds": outcome.seeds,
            "seconds": outcome.seconds,
            "seen": outcome.seen,
            "hits": [[*place, number] for place, number in outcome.hits.items()],
            "violations": outcome.violations,
        }
        cut = self._path.exists() and not self._path.read_bytes().endswith(b"\n")
        with self._path.open("a", encoding="utf-8") as file:
            file.write("\n" * cut + json.dumps(said) + "\n")
