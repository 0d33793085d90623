"""A YAML file, and changes to it from a command line, as one typed value; or one line that says what is wrong."""

import io
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeVar

import yaml  # type: ignore[import-untyped]
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from .errors import ConfigError
from .shape import check_shape, explain

Value = TypeVar("Value")


def text_of(path: str | Path) -> str:
    """What a file says.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ConfigError(f"{path}: cannot be read: {reason}; check the path") from None


def structured(
    text: str, schema: type, build: Callable[[Any], Value], source: str, overrides: Sequence[str] = ()
) -> Value:
    """Read the text of a file.

    Args:
        text: YAML.
        schema: the dataclass of the whole file.
        build: makes the value from the file, once it has the shape of the schema.
        source: names the file in errors.
        overrides: ``key=value`` each, for example ``elastic.seed=3`` or ``elastic.chaos[0].step=7``.

    Raises:
        ConfigError: anything that is wrong with either, in one line that names the file and the key.
    """
    said: object = None
    try:
        file = _read(text, schema)
        for override in overrides:
            _override(file, override)
        said = OmegaConf.to_container(file)
        check_shape(said, schema)
        return build(OmegaConf.merge(OmegaConf.structured(schema), file))
    except ConfigError as error:
        problem = str(error)
    except OmegaConfBaseException as error:
        problem = explain(error, said, schema)
    where = f"{source} with {' '.join(overrides)}" if overrides else source
    raise ConfigError(" ".join(f"{where}: {problem}".split()))


def _read(text: str, schema: type) -> DictConfig:
    try:
        file = OmegaConf.load(io.StringIO(text)) if text.strip() else None
    except yaml.YAMLError as error:
        raise ConfigError(f"bad YAML: {_yaml_problem(error)}; mend it") from None
    except (OSError, AssertionError):  # what OmegaConf raises for a lone number, bare or in quotes
        file = None
    if not isinstance(file, DictConfig):
        needed = [item.name for item in fields(schema) if item.default is item.default_factory is MISSING]
        listed = " and ".join(", ".join(needed).rsplit(", ", 1))
        raise ConfigError(f"it must be a mapping of keys, with {listed} at least")
    return file


def _override(file: DictConfig, override: str) -> None:
    key, equals, _ = override.partition("=")
    if not (key.strip() and equals):
        raise ConfigError(f"override {override!r} is not of the form key=value, as in elastic.seed=3")
    try:
        file.merge_with_dotlist([override])
    except yaml.YAMLError as error:
        raise ConfigError(f"override {override!r} is bad YAML: {_yaml_problem(error)}; mend it") from None
    except (OmegaConfBaseException, LookupError, TypeError, ValueError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"override {override!r} does not fit the file: {reason}; check its key") from None


def _yaml_problem(error: yaml.YAMLError) -> str:
    if not isinstance(error, yaml.MarkedYAMLError):
        return str(error)
    line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
    return f"{line}{error.problem or error.context}"
