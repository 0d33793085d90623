"""A microbatch is computed once more by another replica, and its gradient compared to the bit; a third one decides.

The gradient of a microbatch is a pure function of the state, the step and the index, so whoever recomputes it must come
to the same bits. Who audits whom is a pure function as well: every rank knows it without being told.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .consensus import Agree, Inconclusive, Verdict, exact


@dataclass(frozen=True)
class Audit:
    """One microbatch of one step that is computed by others as well.

    Attributes:
        owner: replica whose microbatch it is.
        auditor: replica that computes it again.
        judge: replica that computes it if these two differ; None in a world of two, which only detects.
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


def judged(audit: Audit, signatures: Mapping[int, int]) -> Verdict:
    """Who computed other bits.

    Args:
        audit: what was computed.
        signatures: by replica, of the gradient that it made of this microbatch.

    Returns:
        Agree if owner and auditor came to the same; attributed if the judge sides with one of them; else inconclusive.
    """
    for replica in (audit.owner, audit.auditor):
        if replica not in signatures:
            return Inconclusive(f"replica {replica} brought no signature of microbatch {audit.index}", dict(signatures))
    asked = [audit.owner, audit.auditor]
    if asks_judge(audit, signatures) and audit.judge is not None and audit.judge in signatures:
        asked.append(audit.judge)
    found = exact({replica: signatures[replica] for replica in asked})
    if isinstance(found, Agree) or len(asked) > 2:
        return found
    return Inconclusive(
        f"replicas {audit.owner} and {audit.auditor} differ in microbatch {audit.index} of step {audit.step}, and "
        "no third one has decided",
        found.evidence,
    )


def asks_judge(audit: Audit, signatures: Mapping[int, int]) -> bool:
    """Whether the third one has to compute it: the two differ."""
    both = {signatures.get(audit.owner), signatures.get(audit.auditor)}
    return audit.judge is not None and None not in both and len(both) > 1


def _from(world: Sequence[int], replica: int) -> list[int]:
    """All others, those first that come after it."""
    place = world.index(replica)
    return [*world[place + 1 :], *world[:place]]
