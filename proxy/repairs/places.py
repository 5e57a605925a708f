"""Where in a body a path writes, and how to write there without a scalar or a missing list in the way raising.

A path with wildcards names *elements* by all of it up to the last wildcard; what stands behind is the same field of
each element, which may be absent. Without a wildcard the one element is the body.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from proxy.body import Body
from proxy.fields import ABSENT, ANY, Path, Place, find, first, parse_path
from proxy.matching import Test, compile_test
from proxy.repairs.writes import Editor, nested

Condition = Callable[[Any, Any], bool]
"""(element, root) → whether a rule's `where` holds for the element."""


class Slot(msgspec.Struct, frozen=True):
    """A place that a path names, with its value: ABSENT where nothing is yet."""

    place: Place
    value: Any


def slots(root: Mapping[str, Any], path: Path, where: Condition | None = None) -> Iterator[Slot]:
    """Yield the path's field in each element for which `where` holds, present or absent."""
    base, rest = split_at_elements(path)
    for place, element in find(root, base):
        if where is None or where(element, root):
            yield _slot(place, element, rest)


def present(root: Mapping[str, Any], path: Path, where: Condition | None = None) -> Iterable[Slot]:
    """Return the path's field in each element that has it and for which `where` holds."""
    if path.top is not None and path.top not in root:
        return ()
    return (slot for slot in slots(root, path, where) if slot.value is not ABSENT)


def split_at_elements(path: Path) -> tuple[Path, Path]:
    """Return the path of the elements and, relative to each, the path of the field."""
    last = max((index + 1 for index, step in enumerate(path.steps) if step is ANY), default=0)
    return Path(path.text, path.steps[:last]), Path(path.text, path.steps[last:])


def _slot(place: Place, element: Any, rest: Path) -> Slot:
    for inner, value in find(element, rest):
        return Slot(place + inner, value)
    return Slot(place + tuple(step for step in rest.steps if isinstance(step, str | int)), ABSENT)


def write(body: Body, place: Place, value: Any) -> Body | None:
    """Return the body with `value` at `place`, or None where a list or a scalar stands in the way."""
    editor = Editor(body)
    return editor.body() if write_into(editor, place, value) else None


def write_into(editor: Editor, place: Place, value: Any, *, grows: bool = False) -> bool:
    """Write `value` at `place`, and return whether it could be: not where a list or a scalar stands in the way.

    Objects missing on the way are made. A field that is null counts as missing: typed clients send what they don't set.
    With `grows`, lists missing on the way are made too, and a list is lengthened by one.
    """
    try:
        for depth in range(1, len(place)):
            holder = first(editor, Path("", place[:depth]))
            if _is_to_make(holder, place, depth, grows):
                _make(editor, place, depth, value, grows)
                return True
        editor.put(place, value)
    except LookupError:
        return False
    return True


def _is_to_make(holder: Any, place: Place, depth: int, grows: bool) -> bool:
    if holder is None:
        return isinstance(place[depth - 1], str)
    if not grows or not isinstance(place[depth], int):
        return False
    return holder is ABSENT or (isinstance(holder, list) and len(holder) == place[depth])


def _make(editor: Editor, place: Place, depth: int, value: Any, grows: bool) -> None:
    if isinstance(first(editor, Path("", place[:depth])), list):
        editor.append(place[:depth], nested(place[depth + 1 :], value, grows=grows))
    else:
        editor.put(place[:depth], nested(place[depth:], value, grows=grows))


def compile_where(where: Mapping[str, Any] | None) -> Condition | None:
    """Return whether all tests hold for an element; a path with a wildcard holds when any value does."""
    if where is None:
        return None
    tests = [(parse_path(text), compile_test(raw)) for text, raw in where.items()]
    return lambda element, root: all(_holds(element, path, test, root) for path, test in tests)


def _holds(element: Any, path: Path, test: Test, root: Any) -> bool:
    values = [slot.value for slot in slots(element, path)] or [ABSENT]
    return any(test(value, root) for value in values)
