"""From the name of a training function to the function itself, ready to be sent to other processes."""

import importlib
import importlib.util
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from ..conf.errors import ConfigError


def load_function(spec: str, folder: str | Path) -> Callable[[Any], object]:
    """Find a training function.

    The function of a file takes its module, and what that imported from the same folder, along by value when it is
    pickled, so other machines need no such files. The folder goes on ``sys.path`` first, as for a script.

    Args:
        spec: ``module:function``, or ``path.py:function``.
        folder: what the path is relative to.

    Raises:
        ConfigError: there is none; if the user's own code failed on import, that error is its cause.
    """
    place, _, name = spec.rpartition(":")
    is_file = place.endswith(".py")
    module = _from_file((Path(folder) / place).resolve(), spec) if is_file else _installed(place, spec)
    function = getattr(module, name, None)
    if function is None:
        raise ConfigError(f"train={spec!r}: {place} has no {name!r}; check its name")
    if not callable(function):
        raise ConfigError(f"train={spec!r}: {name} is {type(function).__name__}, not a function; check its name")
    return function  # type: ignore[no-any-return]


def _installed(place: str, spec: str) -> ModuleType:
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name and (place == error.name or place.startswith(f"{error.name}.")):
            raise ConfigError(
                f"train={spec!r}: no module {error.name!r} is installed; for a file write path.py:function"
            ) from None
        raise ConfigError(f"train={spec!r}: {place} cannot be imported: {_said(error)}") from error
    except Exception as error:
        raise ConfigError(f"train={spec!r}: {place} cannot be imported: {_said(error)}") from error


def _from_file(path: Path, spec: str) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"train={spec!r}: there is no file {path}; its path starts at the folder of the YAML file")
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    name = _free_name(path)
    module = sys.modules.get(name)
    if module is None:
        found = importlib.util.spec_from_file_location(name, path)
        assert found is not None
        assert found.loader is not None
        module = importlib.util.module_from_spec(found)
        # Classes look their module up while it is being made.
        sys.modules[name] = module
        try:
            found.loader.exec_module(module)
        except Exception as error:
            del sys.modules[name]
            raise ConfigError(f"train={spec!r}: {path} cannot be imported: {_said(error)}") from error
    _send_by_value(path.parent, module)
    return module


def _free_name(path: Path) -> str:
    """The file's own name, as its neighbours would import it, unless another module goes by it."""
    held = sys.modules.get(path.stem)
    mine = held is not None and getattr(held, "__file__", None) == str(path)
    if path.stem in sys.stdlib_module_names or (held is not None and not mine):
        return f"{path.stem}_{zlib.crc32(str(path).encode()):08x}"
    return path.stem


def _send_by_value(folder: Path, main: ModuleType) -> None:
    from ray import cloudpickle

    neighbours = [
        module
        for name, module in list(sys.modules.items())
        if "." not in name and _lies_in(folder, name, getattr(module, "__file__", None))
    ]
    for module in {id(module): module for module in (main, *neighbours)}.values():
        cloudpickle.register_pickle_by_value(module)


def _lies_in(folder: Path, name: str, file: str | None) -> bool:
    return file in (str(folder / f"{name}.py"), str(folder / name / "__init__.py"))


def _said(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
