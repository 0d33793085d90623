"""Short documents that every machine has: docstrings of the Python standard library, about a thousand of them."""

import ast
import sysconfig
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset

PACKAGES = ("asyncio", "email", "http", "json", "logging", "urllib")
_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def docstrings(packages: tuple[str, ...] = PACKAGES) -> list[bytes]:
    """The docstrings of these packages as UTF-8, in an order that depends on nothing but the Python version."""
    found = []
    for package in packages:
        folder = Path(sysconfig.get_path("stdlib"), package)
        for path in sorted(folder.rglob("*.py"), key=lambda path: path.relative_to(folder).as_posix()):
            nodes = ast.walk(ast.parse(path.read_bytes()))
            texts = (ast.get_docstring(node) for node in nodes if isinstance(node, _DOCUMENTED))
            found += [text.encode() for text in texts if text]
    return found


class Documents(Dataset[Tensor]):
    """Texts as their bytes: int64, shape (length,), of different lengths.

    Args:
        texts: those of a single byte are left out, since there is nothing to guess in them.
        longest: in bytes; the rest of a text is cut off.
    """

    def __init__(self, texts: list[bytes], longest: int) -> None:
        self._texts = [text[:longest] for text in texts if len(text) > 1]

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor(list(self._texts[index]))
