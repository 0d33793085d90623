"""The table as a picture."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt

Curve = Sequence[tuple[float, float]]


def plot(path: Path, factors: Mapping[str, Curve], published: float, worlds: Mapping[str, Mapping[str, float]],
         regrets: Sequence[float]) -> None:  # fmt: skip
    """Three panels: factors over the cost of a restart, effective throughput by arm and world, regrets.

    Args:
        path: of the PNG.
        factors: versatile against restart, by the label of its curve, over seconds of a restart.
        published: the factor that was published.
        worlds: tokens per alive GPU-hour as a share of undisturbed training, by world and arm.
        regrets: of ``auto``, as shares.
    """
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(18, 5.2), width_ratios=(1, 1.2, 0.9))
    for label, curve in factors.items():
        left.plot(*zip(*curve, strict=True), marker="o", label=label)
    left.axhline(published, color="grey", linestyle="--")
    left.text(0, published, f"published {published:g}", va="bottom", color="grey")
    left.set(xlabel="restart, seconds", ylabel="effective throughput against restart",
             title="ReCoVer's 128 GPUs: keep going against restarting")  # fmt: skip
    left.legend(title="checkpoint every")

    arms = list(next(iter(worlds.values())))
    width = 0.8 / len(worlds)
    for place, (world, values) in enumerate(worlds.items()):
        heights = [100 * values[arm] for arm in arms]
        middle.barh([row + place * width for row in range(len(arms))], heights, width, label=world)
    middle.set_yticks([row + width * (len(worlds) - 1) / 2 for row in range(len(arms))], arms)
    middle.invert_yaxis()
    middle.set(xlabel="% of undisturbed tokens per GPU-hour", title="Large fleets: tokens per alive GPU-hour")
    middle.set_xlim(left=max(0.0, 100 * min(min(values.values()) for values in worlds.values()) - 10), right=101)
    middle.legend(title="GPUs", bbox_to_anchor=(1.0, 1.0), loc="upper left")

    right.plot([100 * regret for regret in sorted(regrets)], [place / len(regrets) for place in range(len(regrets))])
    right.axvline(0, color="grey", linestyle="--")
    right.set(xlabel="% of the best fixed policy's goodput", ylabel="share of worlds",
              title="Regret of auto, costs ±50 % wrong")  # fmt: skip
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
