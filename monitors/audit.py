"""A microbatch is computed by two other replicas as well, and its gradient compared to the bit: two of three are right.

The gradient of a microbatch is a pure function of the state, the step and the index, so whoever recomputes it must come
to the same bits. Who audits whom is a pure function as well: every rank knows it without being told.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Audit:
    """One microbatch of one step that is computed by others as well.

    Attributes:
        owner: replica whose microbatch it is.
        auditor: replica that computes it again.
        judge: replica that computes it as well, so that two of three agree; None in a world of two, which only detects.
        index: of the microbatch.
    """

    step: int
    owner: int
    auditor: int
    judge: int | None
    index: int


def audit_at(step: int, shares: Mapping[int, Sequence[int]], every: int) -> Audit | None:
    """What is audited at a step; the same on every rank.

    Over ``W (W - 1)`` audits in a world of W replicas each one is audited by each other one once, and after that judges
    and microbatches have moved on.

    Args:
        step: optimizer step, from 0.
        shares: by replica, the indices that it computes in this step; who has none audits others.
        every: steps from one audit to the next; 0 for none.

    Returns:
        None if none is due, or if there is nobody to audit.

    Raises:
        ValueError: ``every`` is negative.
    """
    if every < 0:
        raise ValueError(f"every={every} must be a number of steps, or 0 for no audits")
    if not every or step % every:
        return None
    world, turn = sorted(shares), step // every
    owners = [replica for replica in world if shares[replica]]
    if len(world) < 2 or not owners:
        return None
    turn, place = divmod(turn, len(owners))
    owner = owners[place]
    others = _from(world, owner)
    turn, place = divmod(turn, len(others))
    auditor = others[place]
    rest = [replica for replica in others if replica != auditor]
    indices = sorted(shares[owner])
    return Audit(step, owner, auditor, rest[turn % len(rest)] if rest else None, indices[turn % len(indices)])


def _from(world: Sequence[int], replica: int) -> list[int]:
    """All others, those first that come after it."""
    place = world.index(replica)
    return [*world[place + 1 :], *world[:place]]
