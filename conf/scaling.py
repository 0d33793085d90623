"""How many ranks a run has and what each of them reserves, wherever that was said."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from .errors import ConfigError


class Placement(StrEnum):
    """How ranks are laid over nodes, in Ray's words. Strict ones would forbid recovery elsewhere."""

    PACK = "PACK"
    SPREAD = "SPREAD"


@dataclass(frozen=True)
class Scaling:
    """The size of a run and the reservation of each rank.

    Args:
        min_ranks: below it the run waits instead of training.
        max_ranks: what it starts with if the cluster has room.
        cpus_per_rank: logical CPUs that each rank reserves.
        gpus_per_rank: GPUs that each rank reserves.
        resources: further Ray resources by name; ``memory`` is in bytes.
        placement: a ``Placement`` or its name.

    Raises:
        ConfigError: a number out of range, or an unknown placement.
    """

    min_ranks: int = 1
    max_ranks: int = 1
    cpus_per_rank: float = 1.0
    gpus_per_rank: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict)
    placement: Placement | str = Placement.PACK

    def __post_init__(self) -> None:
        for name in ("min_ranks", "max_ranks"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(f"scaling.ranks={value!r} must be a whole number of at least 1, or two: [min, max]")
        if self.min_ranks > self.max_ranks:
            raise ConfigError(
                f"scaling.ranks=[{self.min_ranks}, {self.max_ranks}]: the minimum must not exceed the maximum"
            )
        for name in ("cpus_per_rank", "gpus_per_rank"):
            _check_amount(f"scaling.{name}", getattr(self, name))
        for name, amount in self.resources.items():
            if name in ("CPU", "GPU"):
                raise ConfigError(f"scaling.resources must not hold {name}; use scaling.{name.lower()}s_per_rank")
            _check_amount(f"scaling.resources.{name}", amount)
        try:
            object.__setattr__(self, "placement", Placement(str(self.placement)))
        except ValueError:
            raise ConfigError(
                f"scaling.placement={str(self.placement)!r} is not known; use one of: {', '.join(Placement)}"
            ) from None


@dataclass(frozen=True)
class ScalingKeys:
    """``Scaling`` as a file spells it.

    Args:
        ranks: one number, or ``[min, max]``.
        cpus_per_rank: logical CPUs that each rank reserves.
        use_gpu: reserve one GPU for each rank; ``resources_per_rank: {GPU: n}`` asks for another number.
        resources_per_rank: further Ray resources by name; ``memory`` is in bytes.
        placement: ``PACK`` or ``SPREAD``.
    """

    ranks: Any = 1
    cpus_per_rank: float = 1.0
    use_gpu: bool = False
    resources_per_rank: dict[str, float] = field(default_factory=dict)
    placement: str = Placement.PACK.value

    def scaling(self) -> Scaling:
        """The same as a checked value.

        Raises:
            ConfigError: see ``Scaling``; or a reservation that is given twice, or at odds with ``use_gpu``.
        """
        low, high = _bounds(self.ranks)
        rest = dict(self.resources_per_rank)
        if "CPU" in rest:
            raise ConfigError("scaling.resources_per_rank.CPU is given twice; use scaling.cpus_per_rank")
        return Scaling(
            min_ranks=low,
            max_ranks=high,
            cpus_per_rank=self.cpus_per_rank,
            gpus_per_rank=take_gpus("scaling.resources_per_rank", self.use_gpu, rest),
            resources=rest,
            placement=self.placement,
        )

    @classmethod
    def of(cls, scaling: Scaling) -> "ScalingKeys":
        """The inverse of ``scaling()``."""
        gpus = {"GPU": scaling.gpus_per_rank} if scaling.gpus_per_rank else {}
        return cls(
            ranks=[scaling.min_ranks, scaling.max_ranks],
            cpus_per_rank=scaling.cpus_per_rank,
            use_gpu=scaling.gpus_per_rank > 0,
            resources_per_rank={**scaling.resources, **gpus},
            placement=str(scaling.placement),
        )


def take_gpus(where: str, use_gpu: bool, resources: dict[str, float]) -> float:
    """Take ``GPU`` out of ``resources``; the GPUs that each rank reserves.

    Raises:
        ConfigError: the number of GPUs contradicts ``use_gpu``; ``where`` names the resources in its text.
    """
    gpus = resources.pop("GPU", 1.0 if use_gpu else 0.0)
    if bool(gpus) != use_gpu:
        raise ConfigError(f"{where}.GPU={gpus:g} contradicts use_gpu={str(use_gpu).lower()}; change one of them")
    return gpus


def _bounds(ranks: Any) -> tuple[Any, Any]:
    if not isinstance(ranks, list | tuple):
        return ranks, ranks
    if len(ranks) != 2:
        raise ConfigError(f"scaling.ranks={list(ranks)} must be one number, or two: [min, max]")
    return ranks[0], ranks[1]


def _check_amount(key: str, amount: object) -> None:
    if isinstance(amount, bool) or not isinstance(amount, int | float) or not 0 <= amount < math.inf:
        raise ConfigError(f"{key}={amount!r} must be a number of at least 0")
