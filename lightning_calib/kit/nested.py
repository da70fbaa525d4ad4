"""Nested facts, such as configs and manifests, leaf by leaf."""

from collections.abc import Iterator, Mapping
from typing import Any


def leaves(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:  # noqa: ANN401
    """Every leaf of nested mappings with its dotted name.

    Example:
        >>> dict(leaves({"a": {"b": 1}, "c": [2]}))
        {'a.b': 1, 'c': [2]}
    """
    if not isinstance(value, Mapping):
        yield prefix, value
        return
    for key, inner in value.items():
        yield from leaves(inner, f"{prefix}.{key}" if prefix else str(key))


def differences(there: Mapping[str, Any], now: Mapping[str, Any], most: int = 5) -> str:
    """What differs between two nested mappings, in words; empty where nothing does.

    Example:
        >>> differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}})
        'a.c: 2 there, 3 now'
    """
    theirs, ours = dict(leaves(there)), dict(leaves(now))
    names = sorted(name for name in ours | theirs if ours.get(name) != theirs.get(name))
    told = [f"{name}: {theirs.get(name)!r} there, {ours.get(name)!r} now" for name in names[:most]]
    return "; ".join(told + ([f"and {len(names) - most} more"] if len(names) > most else []))
