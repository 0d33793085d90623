"""One controller life from its term to its end, wherever its ranks live."""

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from . import strict_json
from .cluster import Cluster, describe
from .controller import Controller
from .journal import Entry, Journal, Store, read_earlier
from .machine.past import Past, fold
from .plan import RunPlan
from .tenure import Tenure
from .view import RunState

RESULT = "result.json"


def begin_life(plan: RunPlan, cluster: Cluster, stores: Sequence[Store] = ()) -> Controller:
    """The controller that holds the term of ``cluster``; it goes on where an earlier one of this launch was.

    Args:
        plan: of the run.
        cluster: where its ranks live.
        stores: where its journal is kept beside the run's folder.
    """
    term = cluster.tenure.term
    kept = [*plan.journals(), *stores]
    earlier, troubles = read_earlier(kept, plan.launch, term)
    past = _past(earlier, troubles) if term > 1 else None
    journal = Journal(kept, plan.launch, term, earlier)
    controller = Controller(plan.settings(term), cluster, journal, plan.sinks(), plan.checkpoints(), past, plan.elastic)
    for trouble in troubles:
        controller.warn(trouble)
    return controller


def _past(earlier: Sequence[Entry], troubles: list[str]) -> Past:
    try:
        return fold(earlier)
    except (LookupError, TypeError, ValueError) as error:
        troubles.append(f"the journal cannot be understood ({describe(error)}); going on with what the ranks report")
        return Past()


def end_life(plan: RunPlan, tenure: Tenure, state: RunState) -> None:
    """Write the result, and forget the terms of the run.

    Raises:
        Deposed: a newer controller has taken over; nothing was touched.
    """
    tenure.check()
    if plan.folder:
        whole = Path(plan.folder, f"{RESULT}.{os.getpid()}")
        whole.write_text(strict_json.dumps(asdict(state), indent=2))
        tenure.check()
        whole.replace(Path(plan.folder, RESULT))
    tenure.release()
