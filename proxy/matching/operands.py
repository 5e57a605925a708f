"""What a test compares with: a value of the policy, or another field of the same body."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from proxy import fields
from proxy.fields import Path
from proxy.matching.problems import BadTest, gather, shown

Operand = Callable[[Any], Any]
"""root → the value to compare with, ABSENT where the other field is."""


def operand(raw: object) -> Operand:
    """Return how to get at the value; `{field: path}` is looked up in the body.

    Raises: BadTest where the path is none, or names more than one value.
    """
    path = _reference(raw)
    if path is None:
        return lambda _root: raw
    if path.is_plural:
        raise BadTest.at(f"{path} names many fields and only one can be compared with; use in or not_in", "field")
    return lambda root: fields.first(root, path)


def among(raw: object) -> Callable[[Any], Iterable[Any]]:
    """Return how to get at the values that `in` looks through: a list, or what `{field: path}` names.

    Raises: BadTest.
    """
    path = _reference(raw)
    if path is not None:
        return lambda root: _elements(root, path)
    if not isinstance(raw, list):
        raise BadTest.at(f"expected a list or {{field: path}}, got {shown(raw)}")
    members = gather(enumerate(raw), lambda _index, item: operand(item))
    return lambda root: (member(root) for member in members)


def _elements(root: Any, path: Path) -> Iterable[Any]:
    if path.is_plural:
        return (value for _, value in fields.find(root, path))
    value = fields.first(root, path)
    return value if isinstance(value, list) else ()


def _reference(raw: object) -> Path | None:
    if not isinstance(raw, Mapping) or set(raw) != {"field"}:
        return None
    if not isinstance(raw["field"], str):
        raise BadTest.at(f"expected a field path (a string), got {shown(raw['field'])}", "field")
    try:
        return fields.parse_path(raw["field"])
    except ValueError as error:
        raise BadTest.at(str(error), "field") from error
