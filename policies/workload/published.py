"""ReCoVer's published arithmetic of roles (arXiv:2605.11215), as it stands there, with its two faults.

A rule about numbers of replicas and of microbatches only; ``Versatile`` is what became of it on named indices. In the
paper's words: W replicas, B microbatches in a step, G the quota of a *major*, R < G that of the one *minor*; a *spare*
does what its counterpart does and is zeroed at the reduction. A *boundary* is a loss that no spare stands in for:
then the step is extended, and the roles are given out anew when it has committed.

Its two faults are kept here on purpose, and shown by tests:

- the boundary test asks whether a spare is left, not whether there is one for everyone who died (``adjust``);
- at a boundary spares are counted as contributors, which can bring a step above B (``adjust``, ``extension``).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """What a replica does in a step; in the extra pass after a boundary it may be a boundary-minor besides."""

    MAJOR = "major"
    MINOR = "minor"
    MAJOR_SPARE = "major-spare"
    MINOR_SPARE = "minor-spare"


@dataclass(frozen=True)
class Layout:
    """How many replicas have which role, and what is expected of them.

    Attributes:
        quota: G, microbatches of a major.
        minor_quota: R, microbatches of a minor; 0 without one.
        majors: replicas with this role; likewise ``minors``, ``major_spares`` and ``minor_spares``.
    """

    quota: int
    minor_quota: int
    majors: int
    minors: int = 0
    major_spares: int = 0
    minor_spares: int = 0

    @property
    def replicas(self) -> int:
        return self.majors + self.minors + self.major_spares + self.minor_spares

    @property
    def contributed(self) -> int:
        """Microbatches of one step; spares contribute none."""
        return self.majors * self.quota + self.minors * self.minor_quota


@dataclass(frozen=True)
class Extension:
    """The extra pass of a step after a boundary.

    Attributes:
        replicas: that take part in it.
        extra: G_ext, microbatches that a full contributor adds.
        boundary_minors: n_bdry, replicas that add one less; more than there are replicas when the spares that are
            counted bring the step above B.
    """

    replicas: int
    extra: int
    boundary_minors: int

    @property
    def added(self) -> int:
        """Microbatches that the pass adds to the step."""
        fewer = min(self.boundary_minors, self.replicas)
        return fewer * (self.extra - 1) + (self.replicas - fewer) * self.extra


@dataclass(frozen=True)
class Adjustment:
    """What a loss makes of the step in which it happens.

    Attributes:
        survivors: their roles; spares are promoted unless this is a boundary.
        contributed: C, microbatches that count as contributed before any extra pass.
        extension: the extra pass; None if this is no boundary.
    """

    survivors: Layout
    contributed: int
    extension: Extension | None

    @property
    def total(self) -> int:
        """Microbatches that the step commits with. The rule means it to be B."""
        return self.contributed + (self.extension.added if self.extension else 0)


def adjust(layout: Layout, dead: Mapping[Role, int], microbatches: int) -> Adjustment:
    """POLICY_ADJUSTMENT: promote spares, or extend the step if a major or a minor died and none is left for it.

    Args:
        layout: before the loss.
        dead: how many died, by role.
        microbatches: B.

    Raises:
        ValueError: more died than there were, or nobody is left.
    """
    before = {
        Role.MAJOR: layout.majors,
        Role.MINOR: layout.minors,
        Role.MAJOR_SPARE: layout.major_spares,
        Role.MINOR_SPARE: layout.minor_spares,
    }
    left = {role: count - dead.get(role, 0) for role, count in before.items()}
    if min(left.values()) < 0 or not any(left.values()):
        raise ValueError(f"{dict(dead)} cannot die of {layout}")
    boundary = False
    for role, spare in ((Role.MAJOR, Role.MAJOR_SPARE), (Role.MINOR, Role.MINOR_SPARE)):
        boundary |= dead.get(role, 0) > 0 and left[spare] == 0
    if not boundary:
        for role, spare in ((Role.MAJOR, Role.MAJOR_SPARE), (Role.MINOR, Role.MINOR_SPARE)):
            promoted = min(dead.get(role, 0), left[spare])
            left[role] += promoted
            left[spare] -= promoted
    survivors = Layout(
        layout.quota,
        layout.minor_quota,
        left[Role.MAJOR],
        left[Role.MINOR],
        left[Role.MAJOR_SPARE],
        left[Role.MINOR_SPARE],
    )
    if not boundary:
        return Adjustment(survivors, survivors.contributed, None)
    # Nobody is zeroed at a boundary, and the census counts spares like their counterparts.
    contributed = (
        survivors.contributed
        + survivors.major_spares * survivors.quota
        + survivors.minor_spares * survivors.minor_quota
    )
    return Adjustment(survivors, contributed, extension(survivors.replicas, contributed, microbatches))


def extension(replicas: int, contributed: int, microbatches: int) -> Extension:
    """The extra pass after a boundary: G_ext = the smallest integer >= 1 with C + W * G_ext >= B.

    A second boundary inside a first extra pass counts what that pass contributed into C, so extensions stack.

    Args:
        replicas: W, those that are left.
        contributed: C, what they have contributed to the step so far.
        microbatches: B.
    """
    need = microbatches - contributed
    extra = max(1, -(-need // replicas))
    return Extension(replicas, extra, replicas * extra - need)


def advance(replicas: int, microbatches: int, quota: int = 1) -> Layout:
    """POLICY_ADVANCEMENT: the roles after a boundary has committed.

    G = the smallest integer from ``quota`` on with W * G >= B. Since W only shrinks, the quota before never exceeds
    ⌈B/W⌉: so the roles are a function of W and B alone.

    Args:
        replicas: W.
        microbatches: B.
        quota: G of the step before.
    """
    quota = max(quota, -(-microbatches // replicas))
    majors, rest = divmod(microbatches, quota)
    minors = 1 if rest else 0
    spares = replicas - majors - minors
    minor_spares = 1 if minors and spares >= 2 else 0
    return Layout(quota, rest, majors, minors, spares - minor_spares, minor_spares)
