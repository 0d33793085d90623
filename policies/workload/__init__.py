"""Which replica computes which microbatches. Pure: facts in, an assignment with its reason out."""

from .adaptive import AdaptiveWorld
from .assignment import Assignment, Contradiction, WorkloadPolicy
from .balanced import Balanced
from .named import workload_policy
from .suited import suited
from .versatile import Versatile
from .weighted import Weighted

__all__ = [
    "AdaptiveWorld",
    "Assignment",
    "Balanced",
    "Contradiction",
    "Versatile",
    "Weighted",
    "WorkloadPolicy",
    "suited",
    "workload_policy",
]
