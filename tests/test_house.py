"""The rules of the house: who may import whom, what loads what, and how long a file may be."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# Imports point down only.
STACK = ("orchestrator", "actors", "monitors", "policies", "conf")
OUTSIDE = ("examples", "benchmarks", "tests", "docs")
PURE = ("policies/**/*.py", "orchestrator/machine/**/*.py", "actors/rank/transaction.py")
LONGEST = 400


def sources(*patterns: str) -> list[Path]:
    return sorted({path for pattern in patterns for path in ROOT.glob(pattern)})


def package_files() -> list[Path]:
    return sources("__init__.py", *(f"{layer}/**/*.py" for layer in STACK))


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a checkout")
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def imported(path: Path) -> Iterator[tuple[str, int]]:
    """Full names of the modules that a file imports, everywhere in it, with the line; names of from-imports too."""
    package = ("everstep", *path.relative_to(ROOT).parent.parts)
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            yield from ((f"{module}.{alias.name}", node.lineno) for alias in node.names)


def layer_of(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "everstep" and len(parts) > 1 and parts[1] in STACK + OUTSIDE else None


def show(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_imports_point_down() -> None:
    wrong = []
    for path in sources(*(f"{layer}/**/*.py" for layer in STACK)):
        own = path.relative_to(ROOT).parts[0]
        allowed = STACK[STACK.index(own) :]
        for module, line in imported(path):
            layer = layer_of(module)
            if layer is not None and layer not in allowed:
                wrong.append(f"{show(path)}:{line} imports {module}")
    assert wrong == []


def test_imports_inside_are_relative() -> None:
    wrong = []
    for path in package_files():
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            wrong += [f"{show(path)}: {name}" for name in names if name.split(".")[0] == "everstep"]
    assert wrong == []


@pytest.mark.parametrize(
    ("patterns", "forbidden"),
    [(PURE, ("ray", "torch")), (("monitors/**/*.py",), ("ray",)), (("conf/**/*.py",), ("torch",))],
)
def test_the_pure_parts_name_neither_ray_nor_torch(patterns: tuple[str, ...], forbidden: tuple[str, ...]) -> None:
    paths = sources(*patterns)
    assert paths
    wrong = [
        f"{show(path)}:{line} imports {module}"
        for path in paths
        for module, line in imported(path)
        if module.split(".")[0] in forbidden
    ]
    assert wrong == []


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("everstep", *(part for part in parts if part != "__init__")))


def loaded_by(*modules: str) -> set[str]:
    """Top-level modules in a fresh process that has imported these."""
    lines = [f"import {module}" for module in modules]
    program = "\n".join([*lines, "import json, sys", "print(json.dumps(sorted(sys.modules)))"])
    played = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    return {name.split(".")[0] for name in json.loads(played.stdout)}


def test_the_pure_parts_load_neither_ray_nor_torch() -> None:
    """Not by way of anything that they import either."""
    modules = [module_of(path) for path in sources(*PURE) if path.name != "transaction.py"]
    assert not {"ray", "torch"} & loaded_by(*modules)


def test_the_transaction_loads_neither_ray_nor_torch() -> None:
    assert not {"ray", "torch"} & loaded_by("everstep.actors.rank.transaction")


def test_monitors_never_load_ray() -> None:
    assert "ray" not in loaded_by(*map(module_of, sources("monitors/**/*.py")))


def test_importing_everstep_is_cheap() -> None:
    heavy = {"torch", "ray", "numpy", "omegaconf", "rich", "click", "pyarrow", "psutil"}
    assert not heavy & loaded_by("everstep")


def test_every_public_name_leads_somewhere() -> None:
    import everstep

    assert sorted(everstep.__all__) == sorted(everstep._HOMES)
    for name in everstep.__all__:
        assert getattr(everstep, name) is not None
        assert name in dir(everstep)
    with pytest.raises(AttributeError, match="has no attribute 'Elastic'"):
        everstep.Elastic  # noqa: B018


def test_only_the_root_says_anything_at_import() -> None:
    """The other ``__init__.py`` hold no more than names."""
    wrong = []
    for path in package_files():
        if path.name == "__init__.py" and path.parent != ROOT:
            body = ast.parse(path.read_text()).body
            wrong += [show(path) for node in body if not isinstance(node, ast.ImportFrom | ast.Expr | ast.Assign)]
    assert wrong == []


def test_no_file_is_too_long() -> None:
    long = {show(path): len(path.read_text().splitlines()) for path in tracked() if path.suffix == ".py"}
    assert {name: lines for name, lines in long.items() if lines > LONGEST} == {}


def test_every_folder_of_the_package_is_shipped() -> None:
    """A folder that pyproject.toml forgets is there in a checkout and missing in a wheel."""
    import tomllib

    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    shipped = set(settings["packages"])
    folders = {path.parent for path in (*package_files(), *sources("examples/**/*.py", "benchmarks/**/*.py"))}
    needed = {".".join(("everstep", *folder.relative_to(ROOT).parts)) for folder in folders}
    assert needed == shipped
    assert all((folder / "__init__.py").exists() for folder in folders)


def test_no_paths_of_one_machine() -> None:
    homes = re.compile(r"(?<![\w.)}])/(?:root|work|Users|home)/(?!somebody)\w")
    texts = {".py", ".yaml", ".yml", ".toml", ".md", ".txt", ".cfg", ".sh"}
    wrong = []
    for path in tracked():
        if path.suffix in texts or path.name == "Makefile":
            lines = path.read_text(errors="replace").splitlines()
            wrong += [f"{show(path)}:{number}" for number, line in enumerate(lines, 1) if homes.search(line)]
    assert wrong == []


def test_every_module_says_what_it_is() -> None:
    texts = {show(path): path.read_text() for path in package_files()}
    assert [name for name, text in texts.items() if text.strip() and not ast.get_docstring(ast.parse(text))] == []
