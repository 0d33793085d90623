"""Short documents that every machine has: docstrings of the Python standard library, about a thousand of them."""

import ast
import sysconfig
from pathlib import Path

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
