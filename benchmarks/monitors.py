"""What the attention monitor costs: per head, how that grows with the model, and as a share of a training step.

Run: ``python -m everstep.benchmarks.monitors``
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median

import torch
from everstep.actors.rank.tally import decode, encode
from everstep.benchmarks.common import Row, median_row, parser, publish
from everstep.examples.gpt import GPT, GPTConfig, next_token_loss
from everstep.monitors.attention import Schedule, compare, take, update_terms
from everstep.monitors.baselines import update_ratios
from everstep.monitors.discovery import find_projections
from everstep.monitors.envelope import Rule
from everstep.monitors.health import Health, looked
from everstep.monitors.spectrum import spectra

# (d, h): one size grows while the other stays.
WIDTHS = ((512, 64), (1024, 64), (2048, 64), (4096, 64))
SIZES = ((2048, 32), (2048, 64), (2048, 128))
MICROBATCHES, SEQUENCES = 8, 2


def seconds(work: Callable[[], object]) -> float:
    """How long it takes."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def head_rows(repeats: int, seed: int) -> Iterator[Row]:
    """One head of several shapes, in float64, and the powers of d and h with which its cost grows."""
    middle: dict[tuple[int, int], float] = {}
    for width, size in sorted({*WIDTHS, *SIZES}):
        generator = torch.Generator().manual_seed(seed)
        factors = [torch.randn(1, width, size, dtype=torch.float64, generator=generator) for _ in range(4)]

        def work(factors: list[torch.Tensor] = factors) -> None:
            for term in update_terms(*factors).values():
                spectra(term)

        work()
        taken = [1000 * seconds(work) for _ in range(repeats)]
        middle[width, size] = median(taken)
        yield median_row(f"monitor_head_d{width}_h{size}", taken, "ms", seed)
    for name, shapes, place in (("d", WIDTHS, 0), ("h", SIZES, 1)):
        slope = growth([shape[place] for shape in shapes], [middle[shape] for shape in shapes])
        yield Row(f"monitor_growth_with_{name}", slope, f"power of {name}")


def growth(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The power p of the best fit cost ~ size^p."""
    x, y = ([math.log(value) for value in values] for values in (sizes, costs))
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    products = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return products / sum((a - mean_x) ** 2 for a in x)


def share_rows(repeats: int, seed: int) -> Iterator[Row]:
    """All that one rank alone does for one look at the example GPT, spread over an interval of steps.

    That is both samples, the comparison, the readings as the others get them, and the judgement.
    """
    torch.manual_seed(seed)
    model = GPT(GPTConfig())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    windows = torch.randint(256, (SEQUENCES, model.config.block + 1))
    where, schedule = find_projections(model), Schedule()

    def step() -> None:
        for _ in range(MICROBATCHES):
            next_token_loss(model, windows).backward()
        optimizer.step()
        optimizer.zero_grad()

    def watch() -> None:
        before, after = take(model, where, 0), take(model, where, schedule.lag)
        readings = (*compare(before, after), *update_ratios(before, after))
        _, told = decode(encode({}, readings))
        looked(Health(), schedule.lag, told, Rule(), None)

    step()
    watch()
    # In turns, so that whatever else the machine does falls on both.
    pairs = [(seconds(step), seconds(watch)) for _ in range(repeats)]
    shares = [100 * watched / (schedule.every * stepped) for stepped, watched in pairs]
    heads = sum(len(found.query.starts) for found in where)
    yield median_row("monitor_cost_share", shares, "% of a step, amortised", seed)
    yield median_row("monitor_comparison", [1000 * watched for _, watched in pairs], f"ms, all {heads} heads", seed)
    yield median_row("monitor_step", [1000 * stepped for stepped, _ in pairs], "ms", seed)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    made = parser(__doc__)
    made.add_argument("--repeats", type=int, default=11, help="of each measurement (default: 11)")
    options = made.parse_args(arguments)
    rows = [*share_rows(options.repeats, options.seed), *head_rows(options.repeats, options.seed)]
    publish(f"attention monitor, every {Schedule().every} steps", rows, options)


if __name__ == "__main__":
    main()
