"""What was expected of a value and what came: the part of it that was asked about, and where the two part.

A part of an object names some of its fields, a part of a list all of its elements; scalars are equal as in a policy's
tests: true is not 1, 1 is 1.0.
"""

from __future__ import annotations

import difflib
import json
from typing import Any

from proxy.fields import ABSENT, find, parse_path
from proxy.matching.values import is_same


def is_part(expected: Any, came: Any) -> bool:
    """Return whether the expected value is a part of the one that came."""
    if isinstance(expected, dict):
        return isinstance(came, dict) and all(
            key in came and is_part(item, came[key]) for key, item in expected.items()
        )
    if isinstance(expected, list):
        return isinstance(came, list) and len(came) == len(expected) and all(map(is_part, expected, came))
    return is_same(expected, came)


def asked_about(expected: Any, came: Any) -> Any:
    """Return of the value that came what the expected one names, all of it where their shapes differ."""
    if isinstance(expected, dict) and isinstance(came, dict):
        return {key: asked_about(item, came[key]) for key, item in expected.items() if key in came}
    if isinstance(expected, list) and isinstance(came, list) and len(came) == len(expected):
        return list(map(asked_about, expected, came))
    return came


def difference(expected: Any, came: Any) -> list[str]:
    """Return the lines of a diff from the expected value to what came in its place."""
    old, new = (_lines(value) for value in (expected, asked_about(expected, came)))
    return list(difflib.unified_diff(old, new, "expected", "came", lineterm="", n=2))


def _lines(value: Any) -> list[str]:
    if value is ABSENT:
        return ["no JSON"]
    return json.dumps(value, indent=2, ensure_ascii=False).splitlines()


def still_there(path: str, value: Any) -> list[str]:
    """Return the places at which the value has the field."""
    if value is ABSENT:
        return []
    return [_written(place) for place, _ in find(value, parse_path(path))]


def _written(place: tuple[str | int, ...]) -> str:
    text = ""
    for step in place:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text or "."
