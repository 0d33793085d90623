"""Finds queries and keys, and routers, in models whose layout is a common one, by names and shapes alone."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from .projections import Order, Projections, fused, separate

PAIRS = (
    ("q_proj", "k_proj"),
    ("query", "key"),
    ("wq", "wk"),
    ("q_lin", "k_lin"),
    ("to_q", "to_k"),
    ("query_proj", "key_proj"),
    ("linear_q", "linear_k"),
)
FUSED: Mapping[str, Order] = {
    "qkv": "blocks",
    "qkv_proj": "blocks",
    "c_attn": "blocks",
    "Wqkv": "blocks",
    "to_qkv": "blocks",
    "query_key_value": "groups",
    "linear_qkv": "groups",
}
ROUTERS = ("router", "gate", "classifier")
_HEADS = ("num_heads", "n_heads", "n_head", "num_attention_heads", "heads", "nhead")
_KEY_HEADS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_kv_head", "num_query_groups")
_HEAD_SIZE = ("head_dim", "head_size", "attention_head_size")
_NORMS = ("input_layernorm", "ln_1", "attention_norm", "attn_norm", "norm1", "ln1", "norm_1", "pre_attention_norm")
_HEAD_NORMS = (("q_norm", "k_norm"), ("q_layernorm", "k_layernorm"), ("query_norm", "key_norm"))
# Keys of other tokens than the queries': their product is no form on one residual stream.
_CROSS = ("crossattention", "cross_attn", "encoder_attn", "EncDecAttention", "multihead_attn")


@dataclass(frozen=True)
class Router:
    """One router of a mixture of experts; ``parameter`` is the name of its matrix, a row an expert."""

    layer: str
    parameter: str


def find_projections(model: nn.Module, heads: int | None = None) -> tuple[Projections, ...]:
    """Queries and keys of every self-attention of a model, in the order of its modules.

    Scales of ``nn.LayerNorm``, ``nn.RMSNorm`` and modules named after them are folded if they stand directly before;
    those of norms that store the distance from 1, such as Gemma's, are not.

    Args:
        heads: of queries, if the model's modules and configurations do not say it.

    Raises:
        ValueError: if there are none, if nothing says how many heads there are, or if shapes do not divide into heads.
    """
    modules = dict(model.named_modules())
    found = tuple(one for path, module in modules.items() for one in _projections(modules, path, module, heads))
    if not found:
        pairs = ", ".join("/".join(pair) for pair in PAIRS)
        raise ValueError(
            f"no queries and keys are found in {type(model).__name__}: no module has {pairs}, a fused "
            f"{', '.join(FUSED)}, or is nn.MultiheadAttention; name them with projections.fused or projections.separate"
        )
    return found


def find_routers(model: nn.Module) -> tuple[Router, ...]:
    """The routers of a model: ``router``, ``gate`` or ``classifier`` with a matrix, beside ``experts``.

    Raises:
        ValueError: if there are none.
    """
    found = []
    for path, module in model.named_modules():
        if getattr(module, "experts", None) is None:
            continue
        for name, inner in module.named_modules():
            known = name.split(".")[-1] in ROUTERS and not name.startswith("experts")
            if known and _matrix(inner) is not None:
                found.append(Router(path, _join(path, name, "weight")))
                break
    if not found:
        raise ValueError(
            f"no routers are found in {type(model).__name__}: no module has experts beside {', '.join(ROUTERS)} with a "
            "matrix; name them with Router(layer, parameter)"
        )
    return tuple(found)


def _projections(
    modules: Mapping[str, nn.Module], path: str, module: nn.Module, heads: int | None
) -> Iterator[Projections]:
    if getattr(module, "is_cross_attention", False) or path.split(".")[-1] in _CROSS:
        return
    norm = _norm_before(modules, path)
    if isinstance(module, nn.MultiheadAttention):
        yield from _torch_attention(path, module, norm)
        return
    for pair in PAIRS:
        query, key = (_child(module, name) for name in pair)
        if query is None or key is None:
            continue
        first, second = (_matrix(one) for one in (query, key))
        if first is None or second is None:
            continue
        turned = _transposed(query)
        outputs = (first.shape[turned], second.shape[turned])
        names = (_join(path, pair[0], "weight"), _join(path, pair[1], "weight"))
        count = _head_count(module, outputs[0], heads, names[0])
        scales = _head_scales(path, module)
        yield separate(path, *names, outputs, count, scales=scales, transposed=turned, norm=norm)
        return
    for name, order in FUSED.items():
        child = _child(module, name)
        matrix = None if child is None else _matrix(child)
        if child is None or matrix is None:
            continue
        parameter = _join(path, name, "weight")
        outputs_of_all = matrix.shape[_transposed(child)]
        count, keys = _fused_counts(module, outputs_of_all, heads, parameter)
        yield fused(path, parameter, outputs_of_all, count, keys, order=order, transposed=_transposed(child), norm=norm)
        return


def _torch_attention(path: str, module: nn.MultiheadAttention, norm: str | None) -> Iterator[Projections]:
    count, width = module.num_heads, module.embed_dim
    if module._parameters.get("in_proj_weight") is not None:
        yield fused(path, _join(path, "in_proj_weight"), 3 * width, count, norm=norm)
    # Else keys of another size come from other inputs than the queries': their product is no form on one stream.
    elif module.kdim == width:
        names = (_join(path, "q_proj_weight"), _join(path, "k_proj_weight"))
        yield separate(path, *names, (width, width), count, norm=norm)


def _head_count(module: nn.Module, outputs: int, heads: int | None, parameter: str) -> int:
    if heads is not None:
        return heads
    size = _number(module, _HEAD_SIZE, configured=False)
    if size and outputs % size == 0:
        return outputs // size
    found = _number(module, _HEADS)
    if found is None:
        raise ValueError(f"nothing says how many heads {parameter} has; say it with heads=")
    return found


def _fused_counts(module: nn.Module, outputs: int, heads: int | None, parameter: str) -> tuple[int, int]:
    """Heads of queries and of keys."""
    size = _number(module, _HEAD_SIZE, configured=False)
    count = heads if heads is not None else _number(module, _HEADS)
    if count is None and size and outputs % (3 * size) == 0:
        return outputs // (3 * size), outputs // (3 * size)
    if count is None:
        raise ValueError(f"nothing says how many heads {parameter} has; say it with heads=")
    if size and outputs % size == 0 and (rest := outputs // size - count) > 0 and rest % 2 == 0:
        return count, rest // 2
    return count, _number(module, _KEY_HEADS) or count


def _number(module: nn.Module, names: tuple[str, ...], configured: bool = True) -> int | None:
    """The first of these attributes that is a whole number, of the module or else of its ``config``."""
    holders: list[Any] = [module]
    if configured:
        holders.append(getattr(module, "config", None))
    for holder in holders:
        for name in names:
            value = getattr(holder, name, None)
            if isinstance(value, int) and value > 0:
                return value
    return None


def _norm_before(modules: Mapping[str, nn.Module], path: str) -> str | None:
    """The scale of the norm beside an attention whose output it reads."""
    above, _, own = path.rpartition(".")
    parent = modules[above] if own else None
    if parent is None or not getattr(parent, "norm_first", True):
        return None
    for name in _NORMS:
        child = _child(parent, name)
        if child is not None and _plain_norm(child):
            return _join(above, name, "weight")
    return None


def _head_scales(path: str, module: nn.Module) -> tuple[str | None, str | None]:
    for pair in _HEAD_NORMS:
        children = [_child(module, name) for name in pair]
        if all(child is not None and _plain_norm(child) for child in children):
            first, second = (_join(path, name, "weight") for name in pair)
            return first, second
    return None, None


def _plain_norm(module: nn.Module) -> bool:
    """Whether its output is the normalised input times ``weight``."""
    name = type(module).__name__
    known = name.endswith(("RMSNorm", "LayerNorm")) and not name.startswith(("Gemma", "RecurrentGemma", "Qwen3Next"))
    return known and isinstance(getattr(module, "weight", None), Tensor)


def _transposed(module: nn.Module) -> bool:
    return type(module).__name__ == "Conv1D"


def _matrix(module: nn.Module) -> Tensor | None:
    weight = module._parameters.get("weight")
    return weight if weight is not None and weight.dim() == 2 else None


def _child(module: nn.Module, name: str) -> nn.Module | None:
    return module._modules.get(name)


def _join(*parts: str) -> str:
    return ".".join(part for part in parts if part)
