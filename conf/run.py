"""The one typed configuration of a run, behind the YAML file and the Python call alike."""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from omegaconf import MISSING, OmegaConf

from .chaos import Fault, FaultTarget
from .elastic import ElasticConfig
from .errors import ConfigError
from .files import structured, text_of
from .scaling import Scaling, ScalingKeys


class ClusterKind(StrEnum):
    """Where ranks live: actors of a Ray cluster, or plain processes of this machine."""

    RAY = "ray"
    LOCAL = "local"


@dataclass(frozen=True, kw_only=True)
class _Keys:
    """What a file and a ``RunFile`` spell alike; described there."""

    name: str
    train: str
    config: dict[str, Any] = field(default_factory=dict)
    storage_path: str | None = None
    cluster: ClusterKind | str = ClusterKind.RAY
    address: str | None = None
    compare: bool = False
    weight_unit: str = "weight"


@dataclass(frozen=True, kw_only=True)
class RunFile(_Keys):
    """One run, whole.

    Args:
        name: of the run: letters, digits, ``.``, ``_`` and ``-``.
        train: the user's function: ``module:function``, or ``path.py:function``, the path from ``folder``.
        config: whatever the user's function wants, handed to it as ``ctx.config``.
        storage_path: where durable results go; None keeps none.
        cluster: a ``ClusterKind`` or its name.
        address: of the Ray cluster; None takes ``RAY_ADDRESS`` if that is set, else starts a cluster here.
        compare: also run the undisturbed twin and compare the weights.
        weight_unit: what the weights of losses count, for display; for ``tokens`` the model FLOPs are estimated.
        elastic: how the run keeps its steps whole.
        scaling: how many ranks, and what each reserves.
        folder: where the file lies from which this was read.

    Raises:
        ConfigError: values that cannot work, also together, in one line.
    """

    elastic: ElasticConfig
    scaling: Scaling = field(default_factory=Scaling)
    folder: str = field(default=".", compare=False)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", self.name):
            raise ConfigError(f"name={self.name!r} must be made of letters, digits, '.', '_' and '-'")
        place, colon, function = self.train.rpartition(":")
        if not (place and colon and function.isidentifier()):
            raise ConfigError(f"train={self.train!r} must be module:function or path.py:function")
        try:
            object.__setattr__(self, "cluster", ClusterKind(str(self.cluster)))
        except ValueError:
            raise ConfigError(f"cluster={self.cluster!r} is not known; use one of: {', '.join(ClusterKind)}") from None
        if self.address is not None and self.cluster is ClusterKind.LOCAL:
            raise ConfigError("address is of a Ray cluster, and cluster is local; remove one of them")
        check(self.elastic, self.scaling.min_ranks, self.scaling.max_ranks)


@dataclass(frozen=True)
class _ElasticKeys(ElasticConfig):
    """``ElasticConfig`` as a file spells it: OmegaConf gives no type to the items of a tuple."""

    # A number, or a schedule: OmegaConf knows no such union.
    microbatches_per_step: Any = MISSING
    chaos: list[Fault] = field(default_factory=list)  # type: ignore[assignment]


@dataclass(frozen=True, kw_only=True)
class _FileKeys(_Keys):
    """The schema of a file."""

    elastic: _ElasticKeys
    scaling: ScalingKeys = field(default_factory=ScalingKeys)


def check(elastic: ElasticConfig, min_ranks: int, max_ranks: int) -> None:
    """Whether an elastic configuration and a size of the world can work together.

    Raises:
        ConfigError: they cannot, in one line.
    """
    size = elastic.ranks_per_replica
    for what, ranks in (("minimum", min_ranks), ("maximum", max_ranks)):
        if ranks % size:
            raise ConfigError(
                f"the {what} of {ranks} ranks is not a multiple of elastic.ranks_per_replica={size}; change one of them"
            )
    if min_ranks > max_ranks:
        raise ConfigError(f"the minimum of {min_ranks} ranks exceeds the maximum of {max_ranks}; swap them")
    if elastic.schedule.smallest < min_ranks // size:
        raise ConfigError(
            f"elastic.microbatches_per_step={elastic.schedule} leaves some of the minimum of "
            f"{min_ranks // size} replicas without work; raise it or lower the minimum of ranks"
        )
    for index, fault in enumerate(elastic.chaos):
        if fault.target is FaultTarget.VAULT:
            # How many there are is said by the cluster.
            continue
        if fault.target is FaultTarget.SPARE:
            if fault.replica < max_ranks or fault.coordinate:
                raise ConfigError(
                    f"elastic.chaos[{index}]: spare {fault.replica}.{fault.coordinate} does not exist; spares are "
                    f"numbered from {max_ranks} on, and their coordinate is 0"
                )
            continue
        for what, place, count in (
            ("replica", fault.replica, max_ranks // size),
            ("coordinate", fault.coordinate, size),
        ):
            if place >= count:
                raise ConfigError(
                    f"elastic.chaos[{index}].{what}={place} does not exist; the first world has {what}s 0..{count - 1}"
                )


def load(path: str | Path, overrides: Sequence[str] = ()) -> RunFile:
    """Read a file.

    Args:
        path: a YAML file.
        overrides: ``key=value`` each, for example ``elastic.seed=3`` or ``elastic.chaos[0].step=7``.

    Raises:
        ConfigError: anything that is wrong with either, in one line that names the file and the key.
    """
    return parse(text_of(path), source=str(path), folder=str(Path(path).parent), overrides=overrides)


def parse(text: str, *, source: str = "<text>", folder: str = ".", overrides: Sequence[str] = ()) -> RunFile:
    """Read the text of a file; ``source`` names it in errors. See ``load``."""
    return structured(text, _FileKeys, lambda file: _run_file(file, folder), source, overrides)


def dump(run: RunFile) -> str:
    """The text that ``parse`` reads as ``run``.

    Raises:
        ConfigError: ``run.config`` holds something that a file cannot.
    """
    keys = _FileKeys(
        **_values(run, _Keys),
        elastic=_ElasticKeys(**{**_values(run.elastic, ElasticConfig), "chaos": list(run.elastic.chaos)}),
        scaling=ScalingKeys.of(run.scaling),
    )
    try:
        text = json.dumps(asdict(keys))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"config cannot be written to a file: {error}") from None
    # Through JSON and back, enums are names and tuples are lists; what looks like an interpolation is none.
    return str(OmegaConf.to_yaml(OmegaConf.create(json.loads(text.replace("${", r"\\${")))))


def _run_file(file: Any, folder: str) -> RunFile:
    for index, fault in enumerate(file.elastic.chaos):
        try:
            OmegaConf.to_object(fault)
        except ConfigError as error:
            raise ConfigError(f"elastic.chaos[{index}]: {error}") from None
    keys: Any = OmegaConf.to_object(file)
    return RunFile(
        **_values(keys, _Keys),
        elastic=ElasticConfig(**_values(keys.elastic, ElasticConfig)),
        scaling=keys.scaling.scaling(),
        folder=folder,
    )


def _values(source: object, kind: type) -> dict[str, Any]:
    """The fields of ``kind`` in ``source``, nested values left whole."""
    return {item.name: getattr(source, item.name) for item in fields(kind)}
