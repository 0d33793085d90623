"""Which saved states to trust: candidates after a clean check, verified after the next. Pure: the ledger is a value.

The rule is SCOUT's (arXiv 2608.11034): what was saved before the first clean check may have been wrong already.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace

from .consensus import Agree, Verdict


@dataclass(frozen=True)
class Trust:
    """What checks have said of saved states so far.

    Attributes:
        verified: the newest step whose state was clean, and still clean at the check after; None if there is none.
        candidate: the step of the newest clean check, to be verified by the next; None if there is none.
        checked: the step of the newest check, clean or not; None before the first.
        blocked: why nothing is certified since the newest check, in one line; None if it was clean.
    """

    verified: int | None = None
    candidate: int | None = None
    checked: int | None = None
    blocked: str | None = None


def certified(trust: Trust, step: int, verdicts: Collection[Verdict]) -> Trust:
    """The ledger after the check of the state of ``step``.

    Clean is only what all verdicts agree on, and there must be one. An attributed or an inconclusive one blocks, and
    the candidate is lost: what made the difference may be older than the check that missed it.

    Args:
        step: later than that of any check before, unless the run went back to a verified state: see ``rolled_back``.
        verdicts: of all evidence that was compared; timings are no part of it, a slow rank computes the right numbers.

    Raises:
        ValueError: for a step that is not later than that of the check before.
    """
    if trust.checked is not None and step <= trust.checked:
        raise ValueError(f"step {step} is checked after step {trust.checked}; say first that the run went back")
    wrong = next((verdict for verdict in verdicts if not isinstance(verdict, Agree)), None)
    if wrong is not None:
        return replace(trust, candidate=None, checked=step, blocked=f"step {step}: {wrong.reason}")
    if not verdicts:
        return replace(trust, candidate=None, checked=step, blocked=f"step {step}: nothing was compared")
    return Trust(verified=trust.verified if trust.candidate is None else trust.candidate, candidate=step, checked=step)


def rolled_back(trust: Trust, step: int) -> Trust:
    """The ledger of a run that goes on from the state of ``step``: of later ones nothing is known any more.

    What was found right vouches for the states before it, from which it came: the one of ``step`` is as good as the
    oldest that was found right since.
    """
    verified = None if trust.verified is None else min(trust.verified, step)
    candidate = None if trust.candidate is None else min(trust.candidate, step)
    if candidate is not None and verified is not None and candidate <= verified:
        candidate = None
    known = [mark for mark in (verified, candidate) if mark is not None]
    return Trust(verified, candidate, checked=max(known, default=None))
