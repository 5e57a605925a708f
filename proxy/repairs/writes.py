"""Many edits of a body in one pass: a list with thousands of edited elements is copied once, not once for each.

body → Editor: put, append …, each seen by the next → body, sharing what no edit touched
body, places → cut_all → body
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from proxy.body import Body
from proxy.fields import ABSENT, Place


class Editor(Mapping[str, Any]):
    """A body while it is edited: each object and list is copied at the first edit inside it, and at no other.

    It reads as the body that the edits so far make. What it was made of, and the values put, never change.
    """

    __slots__ = ("_copies", "_fields", "_source")

    def __init__(self, source: Body) -> None:
        self._source = source
        self._fields: dict[str, Any] = {}
        self._copies: dict[int, Any] = {}  # by id; held here, so that no id is given out anew

    def __getitem__(self, name: str) -> Any:
        """Return the field's value. Raises: as a body."""
        return self._fields[name] if name in self._fields else self._source[name]

    def __contains__(self, name: object) -> bool:
        return name in self._fields or name in self._source

    def __iter__(self) -> Iterator[str]:
        yield from self._source
        yield from (name for name in self._fields if name not in self._source)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def put(self, place: Place, value: Any) -> None:
        """Write the value at `place`; objects missing on the way are made.

        Raises: LookupError where a list has no such element, or a scalar stands in the way; then nothing is edited.
        """
        depth = self._reach(place)
        self._opened(place[:depth])[place[depth]] = nested(place[depth + 1 :], value)

    def append(self, place: Place, value: Any) -> None:
        """Lengthen the list at `place`, which must be there, by the value."""
        self._opened(place).append(value)

    def body(self) -> Body:
        """Return the edited body; the very same where nothing was edited."""
        return self._source.put_all(self._fields) if self._fields else self._source

    def _reach(self, place: Place) -> int:
        """Return how many steps of the place, the last one not counted, are there."""
        holder: Any = self
        for depth, step in enumerate(place[:-1]):
            if not _has(holder, step):
                return depth
            holder = holder[step]
        _has(holder, place[-1])
        return len(place) - 1

    def _opened(self, place: Place) -> Any:
        """Return the container at `place`, to be changed."""
        holder: Any = self._fields
        for depth, step in enumerate(place):
            copy = self._copy(self[str(step)] if depth == 0 else holder[step])
            holder[step] = copy
            holder = copy
        return holder

    def _copy(self, container: Any) -> Any:
        if id(container) in self._copies:
            return container
        copy = dict(container) if isinstance(container, dict) else list(container)
        self._copies[id(copy)] = copy
        return copy


def _has(holder: Any, step: str | int) -> bool:
    """Return whether the step leads to something; False where an object has no such field yet.

    Raises: LookupError where there can't be such a field or element.
    """
    if isinstance(holder, Mapping) and isinstance(step, str):
        return step in holder
    if isinstance(holder, list) and isinstance(step, int):
        if -len(holder) <= step < len(holder):
            return True
        raise LookupError(f"there is no element {step} in a list of {len(holder)}")
    raise LookupError(f"{step!r} can't be reached: there is no {'list' if isinstance(step, int) else 'object'} there")


def nested(steps: Place, value: Any, *, grows: bool = False) -> Any:
    """Return the value inside the objects that the steps name; with `grows` also in lists, as their only element.

    Raises: LookupError where a step is the index of another element.
    """
    for step in reversed(steps):
        if isinstance(step, int) and not (grows and step == 0):
            raise LookupError(f"there is no element {step}: there is no list")
        value = {step: value} if isinstance(step, str) else [value]
    return value


def put_all(body: Body, values: Mapping[Place, Any]) -> Body:
    """Return the body with each value at its place. The places were found in it, and none lies inside another."""
    if not values:
        return body
    editor = Editor(body)
    for place, value in values.items():
        editor.put(place, value)
    return editor.body()


def cut_all(body: Body, places: Iterable[Place]) -> Body:
    """Return the body without the places, all found in it. One may lie inside another."""
    doomed = _by_step(places)
    inner = {str(name): _cut(body[str(name)], rests) for name, rests in doomed.items() if () not in rests}
    return body.put_all(inner, without=frozenset(map(str, doomed.keys() - inner.keys())))


def _cut(holder: Any, places: Iterable[Place]) -> Any:
    doomed = _by_step(places)
    pairs = holder.items() if isinstance(holder, Mapping) else enumerate(holder)
    kept = ((key, value if key not in doomed else _left(value, doomed[key])) for key, value in pairs)
    left = [(key, value) for key, value in kept if value is not ABSENT]
    return dict(left) if isinstance(holder, Mapping) else [value for _, value in left]


def _left(value: Any, places: list[Place]) -> Any:
    return ABSENT if () in places else _cut(value, places)


def _by_step(places: Iterable[Place]) -> dict[str | int, list[Place]]:
    steps: dict[str | int, list[Place]] = {}
    for place in places:
        steps.setdefault(place[0], []).append(place[1:])
    return steps
