"""Which policy is for which kind of work."""

from ..world import WorkKind
from .assignment import WorkloadPolicy
from .balanced import Balanced


def suited(policy: WorkloadPolicy, kind: WorkKind) -> WorkloadPolicy:
    """The policy, or one that is exact in its place: an evaluation is whole, whatever becomes of training steps."""
    return policy if policy.exact or kind is WorkKind.TRAINING else Balanced()
