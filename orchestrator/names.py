"""Names under which a run's actors are found in Ray."""

NAMESPACE = "everstep"


def prefix(run: str) -> str:
    return f"{run}/"


def controller_name(run: str) -> str:
    return f"{prefix(run)}controller"


def rank_name(run: str, incarnation: str) -> str:
    return f"{prefix(run)}{incarnation}"
