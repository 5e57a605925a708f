"""Durations and sizes as an operator writes them: `500ms 5s 1h30m`, `64KiB 1GiB`, plain numbers of seconds, bytes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

from proxy.matching import shown

_SECONDS: Final[Mapping[str, float]] = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}
_BYTES: Final[Mapping[str, int]] = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_NUMBER: Final = r"\d{1,15}(?:\.\d{1,15})?"
_DURATION = re.compile(rf"(?:{_NUMBER}(?:ms|s|m|h))+")
_PART = re.compile(rf"({_NUMBER})(ms|s|m|h)")
_PLAIN = re.compile(_NUMBER)
_SIZE = re.compile(rf"({_NUMBER}) ?(|B|KiB|MiB|GiB)")
_MAX: Final = 1 << 53


def parse_duration(raw: Any) -> float:
    """Return seconds.

    Raises: ValueError.
    """
    if isinstance(raw, str) and _DURATION.fullmatch(raw):
        return _bounded(sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(raw)), "a duration")
    if isinstance(raw, str) and _PLAIN.fullmatch(raw):
        raw = float(raw)
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        raise ValueError(f"expected a duration such as 500ms, 5s, 10m or 1h, got {shown(raw)}")
    return float(_bounded(raw, "a duration"))


def parse_size(raw: Any) -> int:
    """Return bytes.

    Raises: ValueError.
    """
    if isinstance(raw, str) and (match := _SIZE.fullmatch(raw)):
        raw = float(match[1]) * _BYTES[match[2]]
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        raise ValueError(f"expected a size such as 64KiB, 64MiB or 1GiB, got {shown(raw)}")
    if raw != int(_bounded(raw, "a size")):
        raise ValueError("a size is a whole number of bytes")
    return int(raw)


def format_duration(seconds: float) -> str:
    """Return the duration in the largest unit that it is a whole number of."""
    for unit in ("h", "m", "s"):
        if seconds % _SECONDS[unit] == 0:
            return f"{int(seconds / _SECONDS[unit])}{unit}" if seconds else "0s"
    return f"{seconds * 1000:.15f}".rstrip("0").rstrip(".") + "ms"


def format_size(size: int) -> int | str:
    """Return the size in the largest unit that it is a whole number of."""
    for unit in ("GiB", "MiB", "KiB"):
        if size and size % _BYTES[unit] == 0:
            return f"{size // _BYTES[unit]}{unit}"
    return size


def _bounded(number: float, kind: str) -> float:
    if not 0 <= number <= _MAX:
        raise ValueError(f"{kind} can't be {'negative' if number < 0 else 'that large'}")
    return number


def _number_or(kind: str, pattern: re.Pattern[str]) -> WithJsonSchema:
    return WithJsonSchema(
        {"anyOf": [{"type": kind, "minimum": 0}, {"type": "string", "pattern": f"^{pattern.pattern}$"}]}
    )


Duration = Annotated[
    float, BeforeValidator(parse_duration), PlainSerializer(format_duration), _number_or("number", _DURATION)
]
"""Units: seconds."""

Size = Annotated[int, BeforeValidator(parse_size), PlainSerializer(format_size), _number_or("integer", _SIZE)]
"""Units: bytes."""
