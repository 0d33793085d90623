"""What of a training can be watched by its weights alone: heads of attention and routers, of all of its models."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from .discovery import Router, find_projections, find_routers
from .projections import Projections, every_head


@dataclass(frozen=True)
class Watched:
    """What was found.

    Attributes:
        root: the model, or all of them as one.
        without: why there are no heads, in one line; empty if there are some.
    """

    root: nn.Module
    where: tuple[Projections, ...] = ()
    routers: tuple[Router, ...] = ()
    without: str = ""

    @property
    def heads(self) -> tuple[tuple[str, int], ...]:
        """All (layer, head)."""
        return every_head(self.where)

    def __str__(self) -> str:
        heads = f"{len(self.heads)} heads of {len(self.where)} layers" if self.where else ""
        routers = f"{len(self.routers)} routers" if self.routers else ""
        found = " and ".join(filter(None, (heads, routers))) or "nothing"
        return f"{found}: {self.without}" if self.without else found

    @property
    def nothing(self) -> bool:
        """Whether there is neither."""
        return not (self.where or self.routers)


def watched(models: Mapping[str, nn.Module]) -> Watched:
    """Look for heads and routers in these models; whatever goes wrong is a reason why there are none."""
    held = list(models.values())
    root = held[0] if len(held) == 1 else nn.Module()
    if len(held) > 1:
        # Their names may be none that a module can be added by; a dot would be taken for a level.
        root._modules.update({name.replace(".", "_"): model for name, model in models.items()})
    where, problem = _found(find_projections, root)
    routers, _ = _found(find_routers, root)
    return Watched(root, tuple(where), tuple(routers), problem)


def _found(find: Callable[[nn.Module], Sequence[Any]], root: nn.Module) -> tuple[Sequence[Any], str]:
    try:
        return find(root), ""
    except ValueError as error:
        return (), str(error)
    except Exception as error:
        return (), f"{type(root).__name__} cannot be looked at: {type(error).__name__}: {error}"
