"""Paths to fields of a JSON value: parse, find, put, cut.

    `a.b`  `messages[*].role`  `messages[-1]`  `["a.b"].c`  `tools[*].function`  `*` (any key)

A path is found as *places*: the concrete steps to each value it names. `put` and `cut` copy along the way down and
share the rest, so a value that somebody else holds never changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final


class Wildcard:
    """The step `[*]` or `*`: every element of a list, every value of an object."""

    def __repr__(self) -> str:
        return "*"


class Absent:
    """What a path finds where there is nothing; not the same as null."""

    def __repr__(self) -> str:
        return "absent"

    def __bool__(self) -> bool:
        return False


ANY: Final = Wildcard()
ABSENT: Final = Absent()

Step = str | int | Wildcard
Place = tuple[str | int, ...]

_TOKEN = re.compile(
    r"""
      (?P<index>\[(?:-?\d+)\])
    | (?P<all>\[\*\])
    | (?P<quoted>\["(?:[^"\\]|\\.)*"\])
    | (?P<dot>\.)
    | (?P<key>[^.\[\]"\s]+)
    """,
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Path:
    """A parsed path. `text` is what the policy says; `steps` is () for `.`, the value itself."""

    text: str
    steps: tuple[Step, ...]

    @property
    def top(self) -> str | None:
        """The top-level field that the path starts at; None when it may start at any."""
        return self.steps[0] if self.steps and isinstance(self.steps[0], str) else None

    @property
    def is_plural(self) -> bool:
        """Whether the path can name more than one value."""
        return any(step is ANY for step in self.steps)

    def __str__(self) -> str:
        return self.text


def parse_path(text: str) -> Path:
    """Return the path that `text` spells.

    Raises: ValueError, saying at which character the text stops being a path.
    """
    if text == ".":
        return Path(text, ())
    steps: list[Step] = []
    position, after_dot = 0, True
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            raise _not_a_path(text, f"unexpected {text[position]!r} at character {position + 1}")
        kind = token.lastgroup
        if kind == "dot" and not after_dot:
            after_dot = True
        elif kind == "key" and after_dot:
            steps.append(ANY if token[0] == "*" else token[0])
            after_dot = False
        elif kind in ("index", "all", "quoted") and (not after_dot or not steps):
            steps.append(_bracket(kind, token[0]))
            after_dot = False
        else:
            raise _not_a_path(text, f"unexpected {token[0]!r} at character {position + 1}")
        position = token.end()
    if after_dot:
        raise _not_a_path(text, f"it {'ends with a dot' if text else 'is empty'}")
    return Path(text, tuple(steps))


def _not_a_path(text: str, why: str) -> ValueError:
    """Return the fault of a text; of one that a variable was expanded in (it has a `source`) no part is told."""
    written = getattr(text, "source", None)
    if written is not None:
        return ValueError(f"{written!r} is not a field path once its variables have their values")
    return ValueError(f"{text!r} is not a field path: {why}")


def _bracket(kind: str, token: str) -> Step:
    if kind == "all":
        return ANY
    if kind == "index":
        return int(token[1:-1])
    return re.sub(r"\\(.)", r"\1", token[2:-2])


def find(root: Any, path: Path) -> Iterator[tuple[Place, Any]]:
    """Yield each place that the path names in `root`, with its value; nothing where it is absent."""
    return _walk(root, path.steps, ())


def _walk(value: Any, steps: tuple[Step, ...], place: Place) -> Iterator[tuple[Place, Any]]:
    for depth, step in enumerate(steps):
        if isinstance(step, Wildcard):
            for key in _keys(value):
                yield from _walk(value[key], steps[depth + 1 :], (*place, key))
            return
        inner = _at(value, step)
        if inner is ABSENT:
            return
        place = (*place, step % len(value) if isinstance(step, int) else step)
        value = inner
    yield place, value


def _keys(value: Any) -> Iterable[str | int]:
    if isinstance(value, list):
        return range(len(value))
    return list(value) if isinstance(value, dict | Mapping) else ()


def _at(value: Any, step: str | int) -> Any:
    # A dict is asked for first: whether something else is a Mapping takes ten times as long to tell.
    if isinstance(step, int):
        return value[step] if isinstance(value, list) and -len(value) <= step < len(value) else ABSENT
    if isinstance(value, dict):
        return value.get(step, ABSENT)
    return value[step] if isinstance(value, Mapping) and step in value else ABSENT


def first(root: Any, path: Path) -> Any:
    """Return the first value that the path names, or ABSENT."""
    value = root
    for depth, step in enumerate(path.steps):
        if isinstance(step, Wildcard):
            return next((found for _, found in _walk(value, path.steps[depth:], ())), ABSENT)
        value = _at(value, step)
    return value


def put(root: Any, place: Place, value: Any) -> Any:
    """Return `root` with `value` at `place`; objects missing on the way are made.

    Raises: LookupError where a list has no such element, or a scalar stands in the way.
    """
    if not place:
        return value
    step, rest = place[0], place[1:]
    if isinstance(root, dict) and isinstance(step, str):
        return root | {step: put(root.get(step, {} if rest else None), rest, value)}
    if isinstance(root, list) and isinstance(step, int):
        if not -len(root) <= step < len(root):
            raise LookupError(f"there is no element {step} in a list of {len(root)}")
        step %= len(root)
        return [*root[:step], put(root[step], rest, value), *root[step + 1 :]]
    raise LookupError(f"{step!r} can't be reached: there is no {'list' if isinstance(step, int) else 'object'} there")


def cut(root: Any, place: Place) -> Any:
    """Return `root` without the value at `place`, which must be there."""
    step, rest = place[0], place[1:]
    if rest:
        return put(root, (step,), cut(root[step], rest))
    if isinstance(root, dict):
        return {key: value for key, value in root.items() if key != step}
    return [value for index, value in enumerate(root) if index != step % len(root)]
