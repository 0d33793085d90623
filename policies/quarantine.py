"""Which nodes to keep out because they fail again and again. Pure: the ledger is a value, time comes in.

A failure weighs 1 when it happens and half as much after each half-life. A node whose failures together weigh as much
as the threshold is kept out, until they weigh less than the release, which lies below it so that nobody comes and goes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import floor, log2

from ..conf.bounds import refuse_below, refuse_nonpositive

# What weighs less than this is forgotten.
_NOTHING = 2.0**-10
# 0.29 of 100 nodes are 29 of them.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class NodeEvent:
    """Something happened to a node.

    Attributes:
        node: its id.
        what: in a few words.
        planned: a drain or a preemption that was announced; no failure.
    """

    node: str
    what: str
    planned: bool = False


@dataclass(frozen=True)
class NodeRecord:
    """What is remembered of one node.

    Attributes:
        weight: of its failures at ``at``.
        at: time of the newest one, in seconds.
        failures: how many there were since the node was last forgotten.
        last: what the newest one was.
        kept_out: whether they weighed as much as the threshold since they last weighed less than the release.
    """

    weight: float
    at: float
    failures: int
    last: str
    kept_out: bool


@dataclass(frozen=True)
class Ledger:
    """What is remembered, by node."""

    records: Mapping[str, NodeRecord] = field(default_factory=dict)


@dataclass(frozen=True)
class QuarantineDecision:
    """Who is kept out now.

    Attributes:
        excluded: by node, one line that says why.
        spared: nodes that would be kept out too, if that left enough; by node, one line.
        until: when each excluded node will be let in again, if it does not fail any more; same clock as ``now``.
        reason: one line.
    """

    excluded: Mapping[str, str]
    spared: Mapping[str, str]
    until: Mapping[str, float]
    reason: str


@dataclass(frozen=True)
class Quarantine:
    """Keeps nodes out by the weight of their recent failures.

    Attributes:
        half_life: seconds in which a failure loses half of its weight.
        threshold: weight from which a node is kept out.
        release: weight below which it is let in again.
        share: largest share of the nodes that may be kept out at once.
    """

    half_life: float = 3600.0
    threshold: float = 2.5
    release: float = 1.25
    share: float = 0.25

    def __post_init__(self) -> None:
        refuse_nonpositive(half_life=self.half_life, threshold=self.threshold, release=self.release)
        if self.release > self.threshold:
            raise ValueError(f"release={self.release:g} must not be above threshold={self.threshold:g}")
        if not 0 <= self.share <= 1:
            raise ValueError(f"share={self.share!r} must be between 0 and 1")

    def record(self, ledger: Ledger, event: NodeEvent, now: float) -> Ledger:
        """The ledger after an event that happened at ``now``, in seconds; events may come out of order."""
        if event.planned:
            return ledger
        kept = {node: held for node, held in ledger.records.items() if self.weight(held, now) >= self._forgotten}
        old = kept.get(event.node, NodeRecord(0.0, now, 0, "", kept_out=False))
        newest = max(old.at, now)
        before = self.weight(old, newest)
        weight = before + self._decayed(1.0, newest - now)
        record = NodeRecord(
            weight,
            newest,
            old.failures + 1,
            event.what if newest == now else old.last,
            weight >= self.threshold or (old.kept_out and before >= self.release),
        )
        return Ledger({**kept, event.node: record})

    def weight(self, record: NodeRecord, now: float) -> float:
        """What a node's failures weigh now."""
        return self._decayed(record.weight, max(0.0, now - record.at))

    def query(self, ledger: Ledger, nodes: Iterable[str], now: float, minimum: int = 1) -> QuarantineDecision:
        """Who is kept out of ``nodes``, the heaviest first, so that at least ``minimum`` of them are left.

        Args:
            ledger: what is remembered; what it says of other nodes does not count.
            nodes: ids of all nodes that are there.
            now: time in seconds, on the clock of the events.
            minimum: how many nodes must be left, whatever they did.
        """
        refuse_below(0, minimum=minimum)
        there = sorted(set(nodes))
        weights = {node: self.weight(ledger.records[node], now) for node in there if node in ledger.records}
        guilty = [node for node in weights if ledger.records[node].kept_out and weights[node] >= self.release]
        guilty.sort(key=lambda node: (-weights[node], node))
        most = max(0, min(floor(self.share * len(there) + _ROUNDING), len(there) - minimum))
        reasons = {node: self._reason(ledger.records[node], weights[node], now) for node in guilty}
        excluded = {node: reasons[node] for node in guilty[:most]}
        spared = {node: reasons[node] for node in guilty[most:]}
        until = {node: self._free_at(ledger.records[node]) for node in excluded}
        reason = f"{len(excluded)} of {len(there)} nodes are kept out"
        if spared:
            reason += (
                f", {len(spared)} more would be, but at most {most} may ({self.share:g} of all, {minimum} must stay)"
            )
        return QuarantineDecision(excluded, spared, until, reason)

    @property
    def _forgotten(self) -> float:
        return min(_NOTHING, self.release)

    def _free_at(self, record: NodeRecord) -> float:
        """When these failures will weigh as much as the release."""
        return record.at + self.half_life * log2(record.weight / self.release)

    def _decayed(self, weight: float, seconds: float) -> float:
        return float(weight * 2.0 ** (-seconds / self.half_life))

    def _reason(self, record: NodeRecord, weight: float, now: float) -> str:
        ago = max(0.0, now - record.at)
        return (
            f"{record.failures} failures, the last {ago:.0f} s ago ({record.last}); they weigh {weight:.2f}, "
            f"{self.threshold:g} is too much and below {self.release:g} is forgiven"
        )
