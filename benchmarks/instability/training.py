"""One training of a tiny mixture of experts in this process, with a fault from one step on, watched all along."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from everstep.benchmarks.instability.faults import Fault, FaultyAttention
from everstep.examples.gpt import GPT, Block, GPTConfig
from everstep.examples.moe import balanced_loss, moe_gpt
from everstep.monitors.attention import AttentionMonitor, Schedule
from everstep.monitors.baselines import copied, max_attention_logit, read_scalars, update_ratio, weight_norm
from everstep.monitors.discovery import find_projections, find_routers
from everstep.monitors.reading import Reading
from everstep.monitors.router import decisions, read_routers
from torch import Tensor, nn

BALANCE, CLIP = 0.01, 1.0
# Where the loss has no number or is that high, there is nothing left to watch.
HOPELESS = 20.0


@dataclass(frozen=True)
class Course:
    """How a run goes, whatever its seed and fault.

    Attributes:
        onset: first step with the fault.
        ramp: steps in which a rate that grows gets to where it goes.
        every, lag: of the monitors; see ``Schedule``.
    """

    steps: int = 900
    onset: int = 300
    ramp: int = 300
    batch: int = 8
    rate: float = 4e-3
    warm_up: int = 100
    every: int = 10
    lag: int = 5
    experts: int = 4
    top: int = 2
    model: GPTConfig = field(default_factory=lambda: GPTConfig(block=64, layers=2, width=64, heads=2, dropout=0.0))


@dataclass(frozen=True)
class Trained:
    """What a run showed: the loss of each step until the end or until nothing was left, and readings."""

    losses: tuple[float, ...]
    readings: tuple[Reading, ...]


def train(course: Course, fault: Fault, seed: int, text: Tensor) -> Trained:
    """Deterministic for one machine: the same on every call.

    Args:
        text: bytes, uint8.
    """
    torch.manual_seed(seed)
    model = moe_gpt(course.model, course.experts, course.top)
    attentions = _replaced(model)
    windows = _windows(text, course, torch.Generator().manual_seed(seed))
    optimizer = torch.optim.AdamW(model.parameters(), lr=course.rate, betas=(0.9, 0.95), weight_decay=0.0)
    monitor = AttentionMonitor(model, find_projections(model), Schedule(course.every, course.lag))
    losses: list[float] = []
    readings: list[Reading] = []
    for step, batch in enumerate(windows):
        sick = step >= course.onset
        for group in optimizer.param_groups:
            group["lr"] = _rate(course, fault, step)
        if step == course.onset:
            for attention in attentions:
                attention.error = fault.error
            if fault.flip:
                flip(list(model.parameters()), random.Random(seed))
        balance = fault.balance if sick and fault.balance is not None else BALANCE
        looks = step % course.every == 0
        with _seen(model, attentions if looks else []) as seen:
            minimised, loss = balanced_loss(model, batch, balance)
        minimised.backward()
        gradient = nn.utils.clip_grad_norm_(model.parameters(), CLIP).item()
        before = copied(model) if looks else {}
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        readings += monitor.observe(step)
        if looks:
            readings += read_routers(model, find_routers(model), step)
            readings += [decisions(logits, layer, step, course.top) for layer, logits in seen.routers]
            numbers = {
                "loss": losses[-1],
                "gradient_norm": gradient,
                "max_attention_logit": max(seen.logits),
                "weight_norm": weight_norm(model.parameters()),
                "update_ratio": update_ratio(before, model),
            }
            readings.append(read_scalars(step, numbers))
        if not losses[-1] < HOPELESS:
            break
    return Trained(tuple(losses), tuple(readings))


def _rate(course: Course, fault: Fault, step: int) -> float:
    rate = course.rate * min(1.0, (step + 1) / course.warm_up)
    if step < course.onset:
        return rate
    part = 1.0 if fault.jumps else min(1.0, (step - course.onset) / course.ramp)
    return rate * (1 + (fault.rate - 1) * part)


@dataclass
class _Seen:
    routers: list[tuple[str, Tensor]] = field(default_factory=list)
    logits: list[float] = field(default_factory=list)


def _replaced(model: GPT) -> list[FaultyAttention]:
    """The attentions of the model, which can go wrong now."""
    found = []
    for block in model.modules():
        if isinstance(block, Block):
            found.append(FaultyAttention(block.attention))
            block.add_module("attention", found[-1])
    return found


@contextmanager
def _seen(model: GPT, attentions: Sequence[FaultyAttention]) -> Iterator[_Seen]:
    """What routers and attention see in a forward; nothing without attentions."""
    seen = _Seen()
    hooks = []
    for router in find_routers(model) if attentions else ():

        def route(_: nn.Module, __: object, logits: Tensor, layer: str = router.layer) -> None:
            seen.routers.append((layer, logits))

        hooks.append(model.get_submodule(router.parameter.removesuffix(".weight")).register_forward_hook(route))
    for attention in attentions:

        def score(_: nn.Module, __: object, qkv: Tensor, heads: int = attention.heads) -> None:
            query, key, _value = qkv.detach().unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
            seen.logits.append(max_attention_logit(query, key))

        hooks.append(attention.qkv.register_forward_hook(score))
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _windows(text: Tensor, course: Course, generator: torch.Generator) -> Iterator[Tensor]:
    length = course.model.block + 1
    for _ in range(course.steps):
        starts = torch.randint(len(text) - length, (course.batch,), generator=generator)
        yield torch.stack([text[start : start + length] for start in starts.tolist()]).long()


def flip(parameters: Sequence[Tensor], draw: random.Random) -> None:
    """One bit of the significand of one float32, or the lowest of its exponent: what stays silent."""
    held = draw.choice(parameters)
    bits = held.detach().view(torch.int32).flatten()
    place = draw.randrange(len(bits))
    bits[place] ^= 1 << draw.randrange(24)
