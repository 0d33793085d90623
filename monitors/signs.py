"""Which number says what: the side on which it is sick, what that means, and which fault it fits."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

PRECISION = "biased low-precision attention"
HYPER = "a learning rate or a batch size that is too large"
ROUTER = "a router that is misled"
EITHER = f"{PRECISION}, or {HYPER}"
ANY = "a fault that has spread already"


@dataclass(frozen=True)
class Sign:
    """How a number departs.

    Attributes:
        side: on which it is sick.
        meaning: a clause for the alarm.
        fault: what it fits.
        factors: it departs by factors, not by sums: its logarithm is judged. Such a number is above 0.
    """

    side: Literal["low", "high"]
    meaning: str
    fault: str
    factors: bool = True


# By (monitor, number). What is not here is recorded and never judged.
SIGNS: Mapping[tuple[str, str], Sign] = {
    ("attention", "delta2.entropy"): Sign("low", "what queries and keys learn falls into few directions", PRECISION),
    ("attention", "dq.entropy"): Sign("low", "the update of the queries falls into few directions", PRECISION),
    ("attention", "dk.entropy"): Sign("low", "the update of the keys falls into few directions", PRECISION),
    ("attention", "delta2.norm"): Sign("high", "queries and keys change faster than they should", EITHER),
    ("router", "similarity"): Sign("high", "the router can hardly tell its experts apart", HYPER, False),
    ("router", "conditioning"): Sign("low", "what the experts have in common rules the router", HYPER),
    ("router", "entropy"): Sign("low", "the router has stopped to weigh its experts", ROUTER),
    ("router", "load"): Sign("high", "few experts get most of the tokens", ROUTER),
    ("baseline", "loss"): Sign("high", "the loss has a spike", ANY),
    ("baseline", "gradient_norm"): Sign("high", "the gradient has a spike", ANY),
    ("baseline", "max_attention_logit"): Sign("high", "attention scores grow", ANY, False),
    ("baseline", "weight_norm"): Sign("high", "weights grow", ANY),
    ("baseline", "update_ratio"): Sign("high", "updates are large beside the weights", HYPER),
}
