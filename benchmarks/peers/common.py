"""What every measurement of a peer gives back, and how it is shown."""

import argparse
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class PeerRecovery:
    """One recovery of a peer from the SIGKILL of one rank.

    Args:
        name: the peer and its setting.
        recovery_ms: from the signal to the end of the optimizer step that it interrupted.
        steps_redone: steps that had been completed and were computed again.
        microbatches_dropped: how many of the interrupted step's microbatches never entered the weights.
    """

    name: str
    recovery_ms: float
    steps_redone: int
    microbatches_dropped: int


def table(recoveries: Sequence[PeerRecovery]) -> Table:
    """One row for each kill, then the median and the maximum of each peer."""
    shown = Table(
        "peer",
        "kill",
        "recovery, ms",
        "steps redone",
        "microbatches dropped",
        title="After SIGKILL of a rank",
    )
    for column in shown.columns[1:]:
        column.justify = "right"
    for name, group in groupby(recoveries, key=lambda recovery: recovery.name):
        of_peer = list(group)
        for number, one in enumerate(of_peer, 1):
            redone, dropped = str(one.steps_redone), str(one.microbatches_dropped)
            shown.add_row(name, str(number), f"{one.recovery_ms:,.0f}", redone, dropped)
        for label, summary in (("median", statistics.median), ("max", max)):
            numbers = [
                summary([one.recovery_ms for one in of_peer]),
                summary([one.steps_redone for one in of_peer]),
                summary([one.microbatches_dropped for one in of_peer]),
            ]
            shown.add_row(name, label, *(f"{number:,.0f}" for number in numbers), style="bold")
        shown.add_section()
    return shown


def main(measure: Callable[[int, int], list[PeerRecovery]], train: Callable[[Path], None]) -> None:
    """The command line of a peer: measure it or, when started by the measurement, train in its process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=5, help="how many times a rank is killed")
    parser.add_argument("--seed", type=int, default=0, help="chooses the ranks and the moments")
    parser.add_argument("--train-in", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train_in:
        train(options.train_in)
    else:
        Console().print(table(measure(options.kills, options.seed)))
