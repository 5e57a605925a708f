"""One JSON value as another type that says the same; a value that can't be said so stays as it is."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from proxy.matching.values import Number, is_integer, is_number

_NUMERAL: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_INT64: Final = 2**63
_BOOLEANS: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_ROUNDINGS: Final[Mapping[str, Callable[[Number], int]]] = {
    "floor": math.floor,
    "nearest": lambda value: math.floor(value + 0.5),
}
_SCALARS: Final = (str, int, float, bool)


def to_string(value: Any) -> Any:
    """Return null as "", a number or boolean as its JSON text."""
    value = unwrapped(value)
    if value is None:
        return ""
    return text_of(value) if isinstance(value, bool | int | float) else value


def to_number(value: Any) -> Any:
    """Return a JSON numeral as its number."""
    bare = unwrapped(value)
    number = _parsed(bare) if isinstance(bare, str) else bare
    return number if is_number(number) else value


def to_integer(value: Any, rounding: str | None = None) -> Any:
    """Return a number, or its numeral, as an integer; one with a fraction only where it is to be rounded."""
    number = to_number(value)
    if not is_number(number) or abs(number) >= _INT64:
        return number if isinstance(number, int) and not isinstance(number, bool) else value
    if is_integer(number):
        return int(number)
    return _ROUNDINGS[rounding](number) if rounding else value


def to_boolean(value: Any) -> Any:
    """Return 1, 0 and the words for yes and no, in any case, as a boolean. Source: design §11."""
    bare = unwrapped(value)
    if isinstance(bare, bool):
        return bare
    if is_number(bare):
        return bool(bare) if bare in (0, 1) else value
    return _BOOLEANS.get(bare.lower(), value) if isinstance(bare, str) else value


def to_array(value: Any) -> Any:
    """Return a value that is no list as a list of it; null stays."""
    return value if value is None or isinstance(value, list) else [value]


def to_object(value: Any, key: str | None = None) -> Any:
    """Return a value that is no object as the object that has it under `key`, or that its text spells; null stays."""
    if value is None or isinstance(value, dict):
        return value
    if key is not None:
        return {key: value}
    return _object_of(value, value) if isinstance(value, str) else value


def to_json(value: Any, key: str | None = None) -> Any:
    """Return an object as its JSON text, null and blank text as that of an empty one.

    What is neither an object nor the text of one is put under `key`, or stays.
    """
    if value is None or (isinstance(value, str) and not value.strip()):
        return "{}"
    if isinstance(value, dict):
        return text_of(value)
    if is_object_text(value) or key is None:
        return value
    return text_of({key: value})


def is_object_text(value: Any) -> bool:
    """Return whether the value is a string that spells a JSON object."""
    return isinstance(value, str) and _object_of(value, None) is not None


def foreign_characters(allowed: str) -> re.Pattern[str]:
    """Return what matches a character that is not among the allowed: single ones, and ranges as in `a-z`.

    Raises: ValueError where a range runs backwards.
    """
    parts = re.findall(r"(.)-(.)|(.)", allowed, re.DOTALL)
    kinds = [re.escape(single) or f"{re.escape(start)}-{re.escape(end)}" for start, end, single in parts]
    try:
        return re.compile(f"[^{''.join(kinds)}]")
    except re.error as error:
        raise ValueError(f"{allowed!r} is no set of characters: {error.msg}") from error


def unwrapped(value: Any) -> Any:
    """Return the scalar that is alone in a list, else the value."""
    return value[0] if isinstance(value, list) and len(value) == 1 and isinstance(value[0], _SCALARS) else value


def text_of(value: Any) -> str:
    """Return the value's JSON text."""
    return msgspec.json.encode(value).decode()


def _parsed(text: str) -> Any:
    if not _NUMERAL.fullmatch(text):
        return None
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:  # beyond what a float holds
        return None


def _object_of(text: str, otherwise: Any) -> Any:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return otherwise
    return value if isinstance(value, dict) else otherwise
