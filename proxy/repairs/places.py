"""Where in a body a path writes, and how to write there without a scalar or a missing list in the way raising.

A path with wildcards names *elements* by all of it up to the last wildcard; what stands behind is the same field of
each element, which may be absent. Without a wildcard the one element is the body.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from proxy.body import Body
from proxy.fields import ABSENT, ANY, Path, Place, find, first, parse_path
from proxy.matching import Test, compile_test

Condition = Callable[[Any, Any], bool]
"""(element, root) → whether a rule's `where` holds for the element."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A place that a path names, with its value: ABSENT where nothing is yet."""

    place: Place
    value: Any


def slots(root: Mapping[str, Any], path: Path, where: Condition | None = None) -> Iterator[Slot]:
    """Yield the path's field in each element for which `where` holds, present or absent."""
    base, rest = split_at_elements(path)
    for place, element in find(root, base):
        if where is None or where(element, root):
            yield _slot(place, element, rest)


def split_at_elements(path: Path) -> tuple[Path, Path]:
    """Return the path of the elements and, relative to each, the path of the field."""
    last = max((index + 1 for index, step in enumerate(path.steps) if step is ANY), default=0)
    return Path(path.text, path.steps[:last]), Path(path.text, path.steps[last:])


def _slot(place: Place, element: Any, rest: Path) -> Slot:
    for inner, value in find(element, rest):
        return Slot(place + inner, value)
    return Slot(place + tuple(step for step in rest.steps if isinstance(step, str | int)), ABSENT)


def write(body: Body, place: Place, value: Any, *, grows: bool = False) -> Body | None:
    """Return the body with `value` at `place`, or None where a list or a scalar stands in the way.

    Objects missing on the way are made. A field that is null counts as missing: typed clients send what they don't set.
    With `grows`, lists missing on the way are made too, and a list is lengthened by one.
    """
    try:
        for depth in range(1, len(place)):
            if _is_to_make(first(body, Path("", place[:depth])), place, depth, grows):
                made = _made(first(body, Path("", place[:depth])), place[depth:], value, grows)
                return body.put(place[:depth], made)
        return body.put(place, value)
    except LookupError:
        return None


def _is_to_make(holder: Any, place: Place, depth: int, grows: bool) -> bool:
    if holder is None:
        return isinstance(place[depth - 1], str)
    if not grows or not isinstance(place[depth], int):
        return False
    return holder is ABSENT or (isinstance(holder, list) and len(holder) == place[depth])


def _made(holder: Any, rest: Place, value: Any, grows: bool) -> Any:
    if not rest:
        return value
    inner = _made(None, rest[1:], value, grows)
    if isinstance(rest[0], str):
        return {rest[0]: inner}
    items = holder if isinstance(holder, list) else []
    if not grows or rest[0] != len(items):
        raise LookupError(f"there is no element {rest[0]}")
    return [*items, inner]


def cut_all(body: Body, places: Iterable[Place]) -> Body:
    """Return the body without the places, all found in it."""
    for place in sorted(set(places), key=_in_order, reverse=True):
        body = body.cut(place)
    return body


def _in_order(place: Place) -> list[tuple[int, str]]:
    # From the end: a list's indexes stay right, and what lies inside goes before what holds it.
    return [(step, "") if isinstance(step, int) else (-1, step) for step in place]


def compile_where(where: Mapping[str, Any] | None) -> Condition | None:
    """Return whether all tests hold for an element; a path with a wildcard holds when any value does."""
    if where is None:
        return None
    tests = [(parse_path(text), compile_test(raw)) for text, raw in where.items()]
    return lambda element, root: all(_holds(element, path, test, root) for path, test in tests)


def _holds(element: Any, path: Path, test: Test, root: Any) -> bool:
    values = [slot.value for slot in slots(element, path)] or [ABSENT]
    return any(test(value, root) for value in values)
