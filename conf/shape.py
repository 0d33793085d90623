"""Where a file departs from the dataclasses behind it: one line with the key, the fault and the remedy."""

import difflib
import typing
from collections.abc import Collection
from dataclasses import fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any

from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException, ValidationError

from .errors import ConfigError

_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", NoneType: "null"}


def check_shape(value: object, hint: Any, key: str = "") -> None:
    """Refuse unknown keys, and a mapping, a list or a plain value where another of the three belongs.

    OmegaConf finds these too, but cannot say where inside a list. The plain values themselves are left to it.

    Args:
        value: a part of the file, as plain containers with their interpolations unresolved.
        hint: the type that belongs there.
        key: the path to it.

    Raises:
        ConfigError: the first departure.
    """
    if hint is Any or _stands_for_something(value):
        return
    origin = typing.get_origin(hint)
    belongs = dict if is_dataclass(hint) else origin
    if belongs in (dict, list):
        if not isinstance(value, belongs):
            raise ConfigError(misfit(key, value, hint))
    elif isinstance(value, dict | list):
        raise ConfigError(misfit(key, value, hint))

    if is_dataclass(hint) and isinstance(value, dict):
        hints = typing.get_type_hints(hint)
        for name, part in value.items():
            if name not in hints:
                raise ConfigError(f"{_below(key, name)} is not known; {_advice(str(name), hints)}")
            check_shape(part, hints[name], _below(key, name))
    elif origin is dict and isinstance(value, dict):
        for name in value:
            if not isinstance(name, str):
                raise ConfigError(f"{_below(key, name)}: the name {name!r} is not a text; put it in quotes")
    elif origin is list and isinstance(value, list):
        for index, part in enumerate(value):
            check_shape(part, typing.get_args(hint)[0], f"{key}[{index}]")


def explain(error: OmegaConfBaseException, file: object, root: type) -> str:
    """OmegaConf's complaint about a value, in our words.

    Args:
        error: what it raised.
        file: what the file says, as plain containers.
        root: the dataclass of the whole file.
    """
    key = error.full_key or ""
    hint = _hint_at(root, key)
    if isinstance(error, MissingMandatoryValue) and hint is not None:
        return f"{key} is missing; give {expected(hint)}"
    if isinstance(error, ValidationError) and hint is not None:
        return misfit(key, _value_at(file, key), hint)
    text = (error.msg or str(error)).partition("\n")[0].strip()
    return f"{key}: {text}" if key else text


def misfit(key: str, value: object, hint: Any) -> str:
    """One line: this value is not of the type that belongs there."""
    said = "a mapping" if isinstance(value, dict) else "a list" if isinstance(value, list) else None
    where = f"{key} is {said}; it" if said else f"{key}={'null' if value is None else repr(value)}"
    return f"{where} must be {expected(hint)}"


def expected(hint: Any) -> str:
    """The values that a type hint takes, in words for a user."""
    if is_dataclass(hint):
        return f"a mapping with keys among {', '.join(item.name for item in fields(hint))}"
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is list:
        return f"a list, each item {expected(parts[0])}"
    if origin is dict:
        return "a mapping" if parts[1] is Any else f"a mapping, each value {expected(parts[1])}"
    if origin in (UnionType, typing.Union):
        # A name that may also be given as its enum: only the enum says which names there are.
        named = [part for part in parts if isinstance(part, type) and issubclass(part, Enum)]
        return " or ".join(expected(part) for part in named or parts)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return f"one of {', '.join(str(member.value) for member in hint)}"
    return _WORDS.get(hint, "a value")


def _stands_for_something(value: object) -> bool:
    return isinstance(value, str) and ("${" in value or value == "???")


def _below(key: str, name: object) -> str:
    return f"{key}.{name}" if key else str(name)


def _advice(name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"


def _parts(key: str) -> list[str]:
    return key.replace("[", ".").replace("]", "").split(".")


def _hint_at(hint: Any, key: str) -> Any:
    """The type hint at a path below ``hint``; None where the path leaves what is typed."""
    for part in _parts(key):
        if is_dataclass(hint):
            hint = typing.get_type_hints(hint).get(part)
        elif typing.get_origin(hint) in (dict, list):
            hint = typing.get_args(hint)[-1]
        else:
            return None
    return hint


def _value_at(value: object, key: str) -> object:
    for part in _parts(key):
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return value
