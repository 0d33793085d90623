"""The layers of a model: the innermost modules with parameters of their own."""

from collections.abc import Iterator, Mapping

from torch import nn

# Use what their inner modules hold, and never call these.
_UNDIVIDED = (nn.MultiheadAttention,)


def layers(models: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """By path, in the order of registration.

    Args:
        models: by name, which goes before the path.
    """
    return {path: module for prefix, model in models.items() for path, module in _within(prefix, model)}


def _within(path: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    inner = [] if isinstance(module, _UNDIVIDED) else list(module.named_children())
    found = [pair for name, child in inner for pair in _within(f"{path}.{name}" if path else name, child)]
    if not found and next(module.parameters(), None) is not None:
        return iter([(path, module)])
    return iter(found)
