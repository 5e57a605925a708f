"""A matcher taken apart: facts about a request, all of which hold where the matcher does.

Of globs it is said whether one covers another, and only where that is sure.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from proxy.fields import Step, parse_path

_GLOBS: Final = ("path", "method", "model", "backend")
_WILD: Final = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class Glob:
    """A name that one of the globs matches."""

    name: str
    globs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Value:
    """A field, header or parameter that passes a test. `is_single`: no second value of it could pass another."""

    kind: Literal["body", "header", "query"]
    key: tuple[Step, ...]
    test: Any
    is_single: bool


@dataclass(frozen=True, slots=True)
class AnyOf:
    """One of these matchers holds."""

    options: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Not:
    """This matcher doesn't hold."""

    matcher: Mapping[str, Any]


Fact = Glob | Value | AnyOf | Not


def looks_at_body(when: Mapping[str, Any]) -> bool:
    """Return whether a test on the body stands anywhere in the matcher."""
    inner = [*when.get("any", ()), *([when["not"]] if "not" in when else [])]
    return bool(when.get("body")) or any(map(looks_at_body, inner))


def facts_of(matcher: Mapping[str, Any]) -> Iterator[Fact]:
    """Yield the facts that a matcher says."""
    for key, raw in matcher.items():
        if key in _GLOBS:
            yield Glob(key, tuple(raw) if isinstance(raw, list) else (raw,))
        elif key == "any":
            yield AnyOf(tuple(raw))
        elif key == "not":
            yield Not(raw)
        else:
            yield from (_value(key, name, test) for name, test in raw.items())


def _value(kind: Any, name: str, test: Any) -> Value:
    if kind == "body":
        path = parse_path(name)
        return Value(kind, path.steps, test, not path.is_plural)
    return Value(kind, (name.lower() if kind == "header" else name,), test, kind == "header")


def covers(wide: str, narrow: str, name: str) -> bool:
    """Return whether it is sure that what the narrow glob matches, the wide one does too."""
    if name == "method":
        wide, narrow = wide.upper(), narrow.upper()
    if wide == narrow:
        return True
    if not _WILD.search(narrow):
        return fnmatch.fnmatchcase(narrow, wide)
    start = wide[:-1]
    return wide.endswith("*") and not _WILD.search(start) and _WILD.split(narrow)[0].startswith(start)


def may_meet(one: str, two: str, name: str) -> bool:
    """Return whether a name could match both globs."""
    if _WILD.search(one) and _WILD.search(two):
        return True
    return covers(one, two, name) or covers(two, one, name)
