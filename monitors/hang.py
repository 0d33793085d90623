"""Nothing moves: who is the reason? Consensus on progress first, then on the collective that was entered.

The order of SCOUT's observer (arXiv 2608.11034). Training is synchronous, so whoever is ahead waits for whoever is
behind: only those whom most ranks have left behind are named, and of those only the hindmost, since others may wait
for them. What the kernel says of a process needs no peers.
"""

from collections.abc import Mapping

from .collectives import in_another
from .consensus import Agree, Attributed, Inconclusive, Verdict
from .progress import HALTED, Activity, Limits, ProgressRecord

_SUSPICIONS = {
    Activity.OUTSIDE: "does not come back from",
    Activity.LOADING: "is stuck in",
    Activity.COMPUTING: "is dead-locked in",
    Activity.REDUCING: "does not get on with",
    Activity.SAVING: "does not get on with",
}


def judge(records: Mapping[int, ProgressRecord], limits: Limits) -> Verdict:
    """Who holds up the others, if anybody has stood still for longer than it may.

    Args:
        records: of all ranks that reduce with each other, looked at at about the same time.
        limits: see ``Limits``.

    Returns:
        Agree if nobody is stuck, or if those who are awaited are allowed to take that long.
    """
    stuck = {rank for rank, record in records.items() if limits.exceeded(record)}
    if not stuck:
        return Agree(records)
    halted = tuple(sorted(rank for rank in stuck if records[rank].process in HALTED))
    if halted:
        return Attributed(halted, _each(records, halted), records)
    last = min(record.reached for record in records.values())
    hindmost = tuple(sorted(rank for rank, record in records.items() if record.reached == last))
    ahead = len(records) - len(hindmost)
    if not stuck & set(hindmost):
        # They are awaited, but they move, or have said that they take long.
        return Agree(records)
    if 2 * ahead > len(records):
        late = tuple(rank for rank in hindmost if rank in stuck)
        return Attributed(late, f"{_each(records, late)}; {ahead} of {len(records)} ranks wait for it", records)
    pending = {rank: held for rank in hindmost if (held := records[rank].pending) is not None}
    if len(pending) == len(hindmost):
        unlike = in_another(pending)
        if not isinstance(unlike, Agree):
            return _told(unlike, records)
    what = f"{len(hindmost)} of {len(records)} ranks are equally far behind: {records[hindmost[0]]}"
    return Inconclusive(what, records)


def _told(verdict: Verdict, records: Mapping[int, ProgressRecord]) -> Verdict:
    """The same with all records for evidence."""
    if isinstance(verdict, Attributed):
        return Attributed(verdict.ranks, verdict.reason, records)
    assert isinstance(verdict, Inconclusive)
    return Inconclusive(verdict.reason, records)


def _each(records: Mapping[int, ProgressRecord], ranks: tuple[int, ...]) -> str:
    return "; ".join(f"rank {rank} {suspicion(records[rank])}" for rank in ranks)


def suspicion(record: ProgressRecord) -> str:
    """What is wrong with a rank that stands still, in words that follow its name."""
    if record.process in HALTED:
        return f"is {record.process} by a signal, in {record}"
    return f"{_SUSPICIONS[record.activity]} {record}"
