"""The update of the product of queries and keys, per head: in a sick run it falls into few directions before any loss.

Equations 2 to 5 of arXiv 2606.28116. With Wq, Wk of shape (d, h), their increments dWq, dWk between two samples, and
the factors taken at the earlier one: delta2 = dWq Wk^T + Wq dWk^T and delta3 = dWq dWk^T. A thin QR of [dWq, Wq] and
of [dWk, Wk] leaves a core of 2h x 2h with the same singular values; the d x d matrix is never formed.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .projections import Part, Projections, every_head, share
from .reading import Reading
from .spectrum import ALPHA, Spectrum, spectra

Head = tuple[str, int]
Gather = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Factors:
    """Owned copies in host memory of what makes one head: rows (h, d), scales (h,) or None, norm (d,) or None."""

    query: Tensor
    key: Tensor
    query_scale: Tensor | None
    key_scale: Tensor | None
    norm: Tensor | None

    def folded(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Wq and Wk as (d, h), with the scales of norms in them, so that their product is the form of the scores."""
        return (
            _folded(self.query, self.query_scale, self.norm, dtype),
            _folded(self.key, self.key_scale, self.norm, dtype),
        )


@dataclass(frozen=True)
class Sample:
    """The heads that were copied after the update of ``step``."""

    step: int
    heads: Mapping[Head, Factors]


@dataclass(frozen=True)
class Schedule:
    """When samples are taken and compared.

    Attributes:
        every: steps from one comparison to the next.
        lag: steps between the two samples of a comparison.
        turns: over how many comparisons the heads are spread; 1 looks at all of them each time.

    Raises:
        ValueError: for numbers below 1, or an ``every`` shorter than ``lag``.
    """

    every: int = 100
    lag: int = 10
    turns: int = 1

    def __post_init__(self) -> None:
        if min(self.every, self.lag, self.turns) < 1:
            raise ValueError(f"every={self.every}, lag={self.lag} and turns={self.turns} must be at least 1")
        if self.every < self.lag:
            raise ValueError(
                f"every={self.every} is shorter than lag={self.lag}: the next comparison would begin before this one "
                "ends; make every at least lag"
            )

    def begins(self, step: int) -> bool:
        """Whether the first sample is taken after the update of this step."""
        return step >= 0 and (step + self.lag) % self.every == 0

    def ends(self, step: int) -> bool:
        """Whether the second is."""
        return step >= self.lag and step % self.every == 0


class AttentionMonitor:
    """Takes samples of a model that trains, and compares them.

    It keeps one sample and nothing else. After a rollback the sample of the lost steps is taken anew when training
    comes by there again; after a change of peers, heads that this peer has no first sample of are left out once.

    Args:
        model: whose parameters are read, never written.
        where: from ``discovery.find_projections``, or said by hand.
        schedule: when.
        place, peers: heads are divided among so many peers that hold the same weights.
        gather: makes a whole plain tensor of a parameter that is spread over ranks; a collective, so every rank of the
            group must then call ``observe`` alike, with the same place.
    """

    def __init__(
        self,
        model: nn.Module,
        where: Sequence[Projections],
        schedule: Schedule | None = None,
        *,
        place: int = 0,
        peers: int = 1,
        gather: Gather | None = None,
    ) -> None:
        self.schedule = Schedule() if schedule is None else schedule
        self._model, self._where, self._gather = model, tuple(where), gather
        self._heads = every_head(self._where)
        self._base: Sample | None = None
        self.divide(place, peers)

    def divide(self, place: int, peers: int) -> None:
        """From now on this is ``place`` of so many peers."""
        share(self._heads, place, peers)
        self._place, self._peers = place, peers

    def observe(self, step: int) -> tuple[Reading, ...]:
        """To be called after the update of every step; returns readings where a comparison ends, else nothing."""
        readings: tuple[Reading, ...] = ()
        if self.schedule.ends(step):
            base, self._base = self._base, None
            if base is not None and base.step == step - self.schedule.lag:
                mine = [head for head in self._share(step) if head in base.heads]
                readings = compare(base, take(self._model, self._where, step, mine, self._gather))
        if self.schedule.begins(step):
            mine = list(self._share(step + self.schedule.lag))
            self._base = take(self._model, self._where, step, mine, self._gather)
        return readings

    def _share(self, ends: int) -> tuple[Head, ...]:
        turn = ends // self.schedule.every
        return share(self._heads, self._place, self._peers, turn, self.schedule.turns)


def take(
    model: nn.Module,
    where: Sequence[Projections],
    step: int,
    heads: Collection[Head] | None = None,
    gather: Gather | None = None,
) -> Sample:
    """Copy heads to host memory.

    Args:
        step: whose update the weights hold.
        heads: which; all by default.
        gather: see ``AttentionMonitor``.

    Raises:
        ValueError: for a parameter that the model lacks or that has another shape, or that is spread over ranks.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    wanted = set(every_head(where) if heads is None else heads)
    copied: dict[Head, Factors] = {}
    for found in where:
        mine = [head for head in range(len(found.query.starts)) if (found.layer, head) in wanted]
        if not mine:
            continue
        query = _matrix(parameters, found.query, found, gather)
        key = query if found.key.parameter == found.query.parameter else _matrix(parameters, found.key, found, gather)
        if query.shape[1] != key.shape[1]:
            raise ValueError(f"{found.layer}: queries read {query.shape[1]} inputs and keys {key.shape[1]}; unlike")
        norm = _whole(parameters, found.norm, found.layer, gather) if found.norm else None
        if norm is not None and norm.shape != query.shape[1:]:
            raise ValueError(f"{found.norm} has shape {tuple(norm.shape)}; a scale of {query.shape[1]} is needed")
        scales = [
            _whole(parameters, part.scale, found.layer, gather) if part.scale else None
            for part in (found.query, found.key)
        ]
        kept = None if norm is None else _owned(norm)
        for head in mine:
            other = found.key_head(head)
            copied[found.layer, head] = Factors(
                _owned(_rows(query, found.query, head, found.head_size)),
                _owned(_rows(key, found.key, other, found.head_size)),
                _scale(scales[0], found.query, head, found.head_size),
                _scale(scales[1], found.key, other, found.head_size),
                kept,
            )
    return Sample(step, copied)


def compare(
    before: Sample, after: Sample, alpha: float = ALPHA, dtype: torch.dtype = torch.float64
) -> tuple[Reading, ...]:
    """One reading for each head of ``after``: the four numbers of ``delta2``, ``delta3``, ``dq`` and ``dk``.

    They are named like ``delta2.entropy``; see ``Spectrum``. ``dq`` and ``dk`` are the plain updates of the weights.

    Args:
        before: holds at least the heads of ``after``; from an earlier step.
        alpha: see ``spectra``.
        dtype: in which it is computed.

    Raises:
        ValueError: if ``before`` is not earlier, or lacks a head.
    """
    if before.step >= after.step:
        raise ValueError(f"a sample of step {after.step} is compared with one of step {before.step}; give an earlier")
    missing = [head for head in after.heads if head not in before.heads]
    if missing:
        raise ValueError(f"the sample of step {before.step} lacks {missing[0][0]} head {missing[0][1]}")
    readings = []
    for heads in _alike(after.heads):
        old = [before.heads[head].folded(dtype) for head in heads]
        new = [after.heads[head].folded(dtype) for head in heads]
        factors = [torch.stack([pair[side] for pair in pairs]) for pairs in (old, new) for side in (0, 1)]
        terms = {name: spectra(term, alpha) for name, term in update_terms(*factors).items()}
        for place, (layer, head) in enumerate(heads):
            numbers = {f"{name}.{key}": value for name in terms for key, value in _numbers(terms[name][place])}
            readings.append(Reading("attention", after.step, layer, head, numbers))
    order = {head: place for place, head in enumerate(after.heads)}
    return tuple(sorted(readings, key=lambda reading: order[reading.layer, reading.head or 0]))


def update_terms(query: Tensor, key: Tensor, new_query: Tensor, new_key: Tensor) -> dict[str, Tensor]:
    """Small matrices with the singular values of the update's terms.

    Args:
        query, key: Wq and Wk before, shape (batch, d, h).
        new_query, new_key: and after.

    Returns:
        ``delta2``, ``delta3`` as (batch, r, r) with r = min(d, 2h), ``dq`` and ``dk`` as (batch, r, h); equation 4.
    """
    size = query.shape[-1]
    # The increment first: the leading columns of R are then the R of the increment alone.
    left = torch.linalg.qr(torch.cat([new_query - query, query], -1), mode="r").R
    right = torch.linalg.qr(torch.cat([new_key - key, key], -1), mode="r").R
    dq, q = left[..., :size], left[..., size:]
    dk, k = right[..., :size], right[..., size:]
    return {"delta2": dq @ k.mT + q @ dk.mT, "delta3": dq @ dk.mT, "dq": dq, "dk": dk}


def _alike(heads: Mapping[Head, Factors]) -> Iterator[list[Head]]:
    """Heads of one layer and shape together: they are decomposed as one batch."""
    batches: dict[tuple[str, torch.Size], list[Head]] = {}
    for head, factors in heads.items():
        batches.setdefault((head[0], factors.query.shape), []).append(head)
    yield from batches.values()


def _numbers(spectrum: Spectrum) -> Iterator[tuple[str, float]]:
    yield "norm", spectrum.norm
    yield "stable_rank", spectrum.stable_rank
    yield "entropy", spectrum.entropy
    yield "effective_rank", spectrum.effective_rank


def _folded(rows: Tensor, scale: Tensor | None, norm: Tensor | None, dtype: torch.dtype) -> Tensor:
    columns = rows.to(dtype).mT
    if scale is not None:
        columns = columns * scale.to(dtype)
    return columns if norm is None else columns * norm.to(dtype)[:, None]


def _matrix(parameters: Mapping[str, Tensor], part: Part, found: Projections, gather: Gather | None) -> Tensor:
    """As (out, in)."""
    whole = _whole(parameters, part.parameter, found.layer, gather)
    if whole.dim() != 2:
        raise ValueError(f"{part.parameter} has shape {tuple(whole.shape)}; a projection is a matrix")
    matrix = whole.mT if part.transposed else whole
    if max(part.starts) + found.head_size > matrix.shape[0]:
        raise ValueError(
            f"{part.parameter} has {matrix.shape[0]} outputs, too few for {len(part.starts)} heads of {found.head_size}"
        )
    return matrix


def _whole(parameters: Mapping[str, Tensor], name: str, layer: str, gather: Gather | None) -> Tensor:
    if name not in parameters:
        raise ValueError(f"{layer}: the model has no parameter {name}")
    held = parameters[name].detach()
    if gather is not None:
        return gather(held)
    if hasattr(held, "full_tensor"):
        raise ValueError(f"{name} is spread over ranks; give gather=lambda tensor: tensor.full_tensor()")
    return held


def _rows(matrix: Tensor, part: Part, head: int, size: int) -> Tensor:
    return matrix[part.starts[head] : part.starts[head] + size]


def _scale(scale: Tensor | None, part: Part, head: int, size: int) -> Tensor | None:
    if scale is None:
        return None
    if scale.shape == (size,):
        return _owned(scale)
    if scale.shape == (len(part.starts) * size,):
        return _owned(scale[head * size : (head + 1) * size])
    raise ValueError(f"{part.scale} has shape {tuple(scale.shape)}; needed: {size} or {len(part.starts) * size} values")


def _owned(tensor: Tensor) -> Tensor:
    """A copy that no update can reach, also if the parameter is in host memory already."""
    return tensor.detach().to("cpu", copy=True).contiguous()
