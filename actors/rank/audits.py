"""Which microbatch is computed by others as well, and what this rank brings of it."""

from collections.abc import Callable
from dataclasses import dataclass

from ...monitors.audit import Audit, audit_at
from ...policies.world import Generation, Position, Work
from ..evidence import Check, Evidence
from .ledger import Ledger


@dataclass(frozen=True)
class Duty:
    """This rank's part in an audit: it owns the microbatch, or it computes it once more and sums nothing of it."""

    audit: Audit
    generation: Generation
    owns: bool


class Audits:
    """The audits of one rank.

    Args:
        ledger: knows who computes what.
        every: steps from one to the next; 0 for none.
        send: to the controller.
    """

    def __init__(self, ledger: Ledger, every: int, send: Callable[[Evidence], None]) -> None:
        self._ledger = ledger
        self._every = every
        self._send = send

    def duty(self, position: Position, work: Work) -> Duty | None:
        """What this rank has to do with the audit of the step that it has just come to; None if nothing.

        None as well if it came to it when others had lost a rank there already: then they have planned otherwise.
        """
        # Step 0 has its probe; a void attempt was audited in its first one.
        if not self._every or position.step == 0 or position.attempt:
            return None
        transaction, shares = self._ledger.shares(work)
        replica = transaction.replica
        audit = audit_at(position.step, shares, self._every)
        if audit is None or replica not in (audit.owner, audit.auditor, audit.judge):
            return None
        assert transaction.generation is not None
        return Duty(audit, transaction.generation, replica == audit.owner)

    def bring(self, duty: Duty, signature: int | None) -> None:
        """Tell what it computed, unless that could not be signed, or the group in which it was due is gone."""
        transaction, audit = self._ledger.transaction, duty.audit
        if signature is None or not transaction.current(duty.generation):
            return
        among = tuple(sorted({audit.owner, audit.auditor, *([] if audit.judge is None else [audit.judge])}))
        told = {f"gradient of microbatch {audit.index}": signature}
        self._send(Evidence(transaction.incarnation, Check.AUDIT, audit.step, duty.generation, among, told))
