"""everstep: elastic LLM pre-training on Ray. Every step happens, bit for bit, whatever fails.

The names below load their modules on first use, so that ``import everstep`` stays cheap.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .actors.rank.context import RankContext
    from .actors.rank.data import Microbatches
    from .actors.rank.mixture import Mixture
    from .actors.rank.tokens import Tokens
    from .actors.rank.tokens_writer import write_tokens
    from .conf.chaos import Fault
    from .conf.elastic import ElasticConfig, Timeouts
    from .conf.errors import EverstepError
    from .orchestrator.connect import connect
    from .orchestrator.jobs import submit
    from .orchestrator.trainer import ElasticTrainer

_HOMES = {
    "ElasticConfig": ".conf.elastic",
    "ElasticTrainer": ".orchestrator.trainer",
    "EverstepError": ".conf.errors",
    "Fault": ".conf.chaos",
    "Microbatches": ".actors.rank.data",
    "Mixture": ".actors.rank.mixture",
    "RankContext": ".actors.rank.context",
    "Timeouts": ".conf.elastic",
    "Tokens": ".actors.rank.tokens",
    "connect": ".orchestrator.connect",
    "submit": ".orchestrator.jobs",
    "write_tokens": ".actors.rank.tokens_writer",
}

__all__ = [
    "ElasticConfig",
    "ElasticTrainer",
    "EverstepError",
    "Fault",
    "Microbatches",
    "Mixture",
    "RankContext",
    "Timeouts",
    "Tokens",
    "connect",
    "submit",
    "write_tokens",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'everstep' has no attribute {name!r}")
    return getattr(import_module(home, __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
