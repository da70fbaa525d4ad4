"""Plain values out of a file as the types that they should be: one clear error in place of a later surprise."""

import sys
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from lightning_calib.kit.files import FileError, read_json

Kind = TypeVar("Kind")


class WrongTypeError(ValueError):
    """A value is not what it is taken for; the message says where in the file."""


def read_typed(path: Path, kind: type[Kind], remedy: str = "delete it and make it anew") -> Kind:
    """Read JSON that must be of a type.

    Args:
        path: the file.
        kind: a dataclass, or a type such as ``dict[str, list[str]]``.
        remedy: what the error tells to do.

    Raises:
        FileError: with the file, the place in it, and the remedy.
    """
    try:
        found: Kind = typed(read_json(path, remedy), kind)
    except WrongTypeError as problem:
        raise FileError(f"{path}: {problem}; {remedy}") from problem
    return found


def typed(value: Any, kind: Any, place: str = "") -> Any:  # noqa: ANN401  # types have no common type
    """A value of JSON as a type: lists become tuples, mappings dataclasses, nothing else is changed.

    A whole number passes for a float, null for one that is NaN. A dataclass takes no unknown keys, and all of its
    fields without a default.

    Args:
        value: nested dictionaries, lists and scalars.
        kind: the type.
        place: where the value stands, for the message.

    Raises:
        WrongTypeError: where it is of another type.

    Example:
        >>> typed([1, 2], tuple[int, ...])
        (1, 2)
        >>> typed({"a": [1, "2"]}, dict[str, list[int]])
        Traceback (most recent call last):
        ...
        lightning_calib.kit.typed.WrongTypeError: at a.1 there is '2', not int
    """
    origin, parts = get_origin(kind) or kind, get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        return _of_union(value, kind, parts, place)
    if origin is Literal:
        return value if value in parts and type(value) in map(type, parts) else _refuse(value, kind, place)
    if is_dataclass(origin):
        return _of_dataclass(value, origin, place)
    if origin is dict or origin is Mapping:
        return _of_mapping(value, kind, parts, place)
    if origin in (list, tuple):
        return _of_sequence(value, kind, origin, parts, place)
    if origin is float:
        return _of_float(value, place)
    return value if type(value) is origin else _refuse(value, kind, place)


def _refuse(value: Any, kind: Any, place: str) -> Any:  # noqa: ANN401
    where = f"at {place} there" if place else "there"
    told = repr(value) if len(repr(value)) < 60 else f"{repr(value)[:60]}..."
    raise WrongTypeError(f"{where} is {told}, not {getattr(kind, '__name__', kind) if not get_args(kind) else kind}")


def _of_float(value: Any, place: str) -> float:  # noqa: ANN401
    if value is None:
        return float("nan")  # as :func:`~lightning_calib.kit.files.plain` writes it
    fits = type(value) in (int, float) and abs(value) <= sys.float_info.max  # 1e999 is JSON, too
    return float(value) if fits else _refuse(value, float, place)


def _of_union(value: Any, kind: Any, parts: tuple[Any, ...], place: str) -> Any:  # noqa: ANN401
    if value is None and type(None) in parts:
        return None
    others = [part for part in parts if part is not type(None)]
    if len(others) == 1:
        return typed(value, others[0], place)
    for part in others:
        try:
            return typed(value, part, place)
        except WrongTypeError:
            continue
    return _refuse(value, kind, place)


def _of_mapping(value: Any, kind: Any, parts: tuple[Any, ...], place: str) -> dict[str, Any]:  # noqa: ANN401
    if not isinstance(value, dict):
        _refuse(value, kind, place)
    inner = parts[1] if parts else Any
    return {key: typed(item, inner, _below(place, key)) for key, item in value.items()}


def _of_sequence(value: Any, kind: Any, origin: Any, parts: tuple[Any, ...], place: str) -> Any:  # noqa: ANN401
    if not isinstance(value, list | tuple):
        _refuse(value, kind, place)
    if origin is tuple and parts and parts[-1] is not Ellipsis:
        if len(value) != len(parts):
            _refuse(value, kind, place)
        kinds = parts
    else:
        kinds = (parts[0] if parts else Any,) * len(value)
    return origin(
        typed(item, inner, _below(place, number)) for number, (item, inner) in enumerate(zip(value, kinds, strict=True))
    )


def _of_dataclass(value: Any, kind: Any, place: str) -> Any:  # noqa: ANN401
    if not isinstance(value, dict):
        _refuse(value, kind, place)
    hints, known = _hints(kind), {entry.name: entry for entry in fields(kind)}
    if strange := [key for key in value if key not in known]:
        raise WrongTypeError(f"{_below(place, strange[0])} is no part of a {kind.__name__}")
    needed = [name for name, entry in known.items() if entry.default is MISSING and entry.default_factory is MISSING]
    if missing := [name for name in needed if name not in value]:
        raise WrongTypeError(f"{_below(place, missing[0])} is missing")
    return kind(**{key: typed(item, hints[key], _below(place, key)) for key, item in value.items()})


def _below(place: str, key: object) -> str:
    return f"{place}.{key}" if place else str(key)


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)
