"""Cases that were played, a line of JSON each: a launch that is there whole is not played again."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from everstep.benchmarks.localisation.judge import Outcome
from everstep.benchmarks.localisation.plan import Family, Kind, Launch


def load(path: Path, seed: int) -> list[Outcome]:
    """All whole lines; a last one that was cut is left out.

    Raises:
        ValueError: for a line of another seed.
    """
    if not path.exists():
        return []
    found = []
    for line in path.read_text(encoding="utf-8").split("\n")[:-1]:
        held = json.loads(line)
        if held.pop("seed") != seed:
            raise ValueError(f"{path} holds cases of another seed; give another file with --runs")
        named = tuple(held.pop("named"))
        found.append(Outcome(**held | {"family": Family(held["family"]), "kind": Kind(held["kind"]), "named": named}))
    return found


def append(path: Path, seed: int, outcomes: Iterable[Outcome]) -> None:
    """All cases of one launch, after the last whole line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = path.read_bytes().rpartition(b"\n") if path.exists() else (b"", b"", b"")
    if whole[2]:
        path.write_bytes(whole[0] + whole[1])
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps({"seed": seed, **asdict(outcome)}) + "\n" for outcome in outcomes)


def missing(launches: Sequence[Launch], outcomes: Iterable[Outcome], cluster: str) -> list[Launch]:
    """Launches of which some case is not there."""
    there = {(outcome.launch, outcome.place) for outcome in outcomes if outcome.cluster == cluster}
    return [
        launch for launch in launches if not all((launch.name, place) in there for place in range(len(launch.cases)))
    ]
