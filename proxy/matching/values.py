"""JSON's values as a test sees them: types without Python's kinship of bool and int, strict equality, size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeGuard

Number = int | float


def is_number(value: object) -> TypeGuard[Number]:
    """Return whether the value is a JSON number; a boolean is none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_integer(value: object) -> bool:
    """Return whether the value is a number without a fraction: 1.0 is one."""
    return is_number(value) and (isinstance(value, int) or value.is_integer())


def is_same(value: Any, other: Any) -> bool:
    """Return whether two JSON values are equal, type-strict at every depth; ABSENT equals nothing.

    No recursion: two fields of a body may be nested as deep as its decoder allows.
    """
    if isinstance(value, str):
        return isinstance(other, str) and value == other
    pairs = [(value, other)]
    while pairs:
        one, two = pairs.pop()
        if isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
            pairs += zip(one, two, strict=True)
        elif isinstance(one, Mapping) and isinstance(two, Mapping) and one.keys() == two.keys():
            pairs += ((item, two[key]) for key, item in one.items())
        elif not _is_same_scalar(one, two):
            return False
    return True


def _is_same_scalar(one: object, two: object) -> bool:
    if is_number(one):
        return is_number(two) and one == two
    if isinstance(one, str):
        return isinstance(two, str) and one == two
    return (one is None or isinstance(one, bool)) and one is two


def size_of(value: object) -> int | None:
    """Return the length of a string, array or object; None of all else."""
    return len(value) if isinstance(value, str | list | Mapping) else None


TYPES: Final[Mapping[str, Callable[[object], bool]]] = {
    "string": lambda value: isinstance(value, str),
    "number": is_number,
    "integer": is_integer,
    "boolean": lambda value: isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, Mapping),
    "null": lambda value: value is None,
}
