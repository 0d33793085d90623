"""Finding the user's function, and sending it to a process that has none of its files."""

import subprocess
import sys
from pathlib import Path

import pytest
from everstep.conf.errors import ConfigError
from everstep.orchestrator.load import load_function


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("load_main", "load_side", "load_pack", "load_pack.deep"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_an_installed_function() -> None:
    assert load_function("math:sqrt", ".")(9) == 3


def test_a_function_of_a_file_travels_with_its_neighbours(tmp_path: Path) -> None:
    from ray import cloudpickle

    (tmp_path / "load_main.py").write_text(
        "from dataclasses import dataclass\nimport load_side\nfrom load_pack.deep import THREE\n"
        "@dataclass\nclass Box:\n    value: int\n"
        "def train(ctx):\n    return Box(load_side.double(ctx) + THREE).value\n"
    )
    (tmp_path / "load_side.py").write_text("def double(x):\n    return 2 * x\n")
    (tmp_path / "load_pack").mkdir()
    (tmp_path / "load_pack" / "__init__.py").write_text("")
    (tmp_path / "load_pack" / "deep.py").write_text("THREE = 3\n")
    train = load_function("load_main.py:train", tmp_path)
    assert train(5) == 13
    assert load_function("load_main.py:train", tmp_path) is train
    (tmp_path / "pickled").write_bytes(cloudpickle.dumps(train))
    code = "import sys; from ray import cloudpickle; print(cloudpickle.load(open(sys.argv[1], 'rb'))(5))"
    out = subprocess.run([sys.executable, "-c", code, str(tmp_path / "pickled")], capture_output=True, timeout=60)
    assert out.stdout == b"13\n", out.stderr


@pytest.mark.parametrize("stem", ["random", "pytest"])
def test_a_file_may_be_named_like_a_known_module(tmp_path: Path, stem: str) -> None:
    known = sys.modules.get(stem)
    (tmp_path / f"{stem}.py").write_text("def train(ctx):\n    return 'mine'\n")
    assert load_function(f"{stem}.py:train", tmp_path)(None) == "mine"
    assert sys.modules.get(stem) is known


def test_files_of_the_same_name_in_two_folders(tmp_path: Path) -> None:
    for folder in ("a", "b", "c"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "load_main.py").write_text(f"def train(ctx):\n    return {folder!r}\n")
        assert load_function(f"{folder}/load_main.py:train", tmp_path)(None) == folder


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ("nowhere.py:train", "there is no file"),
        ("nowhere:train", "no module 'nowhere' is installed; for a file write path.py:function"),
        ("everstep.nowhere:train", "no module 'everstep.nowhere' is installed"),
        ("math:nothing", "math has no 'nothing'"),
        ("math:pi", "pi is float, not a function"),
        ("load_main.py:train", "cannot be imported: ModuleNotFoundError: No module named 'absent'"),
    ],
)
def test_what_cannot_be_found_is_one_line(tmp_path: Path, spec: str, text: str) -> None:
    (tmp_path / "load_main.py").write_text("import absent\n")
    with pytest.raises(ConfigError) as caught:
        load_function(spec, tmp_path)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "load_main" not in sys.modules
