"""One condition of a matcher on a request's facts: a glob on a name, a test on a header, parameter or body field."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Generic, TypeVar

import msgspec

from proxy import fields
from proxy.body import Body
from proxy.fields import ABSENT, Path
from proxy.matching.clues import Clue, clue_of, references, refers, tops
from proxy.matching.globs import compile_globs
from proxy.matching.operators import Test, compile_test
from proxy.matching.problems import KEY, BadTest, shown
from proxy.matching.words import flow

T = TypeVar("T")


class Late(msgspec.Struct, Generic[T]):
    """Named values that are made of something when somebody first asks for one. A struct, as Facts is."""

    make: Callable[[Any], Mapping[str, T]]
    source: object
    made: Mapping[str, T] | None = None

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value, or the default where there is none of that name."""
        if self.made is None:
            self.made = self.make(self.source)
        return self.made.get(name, default)


class Facts(msgspec.Struct, frozen=True):
    """What is known of a request. Header names are in lower case; `body` is None where it is no JSON object.

    A struct, since one is made for each request: a frozen dataclass takes five times as long to make.
    """

    method: str
    path: str
    query: Mapping[str, tuple[str, ...]] | Late[tuple[str, ...]]
    headers: Mapping[str, str] | Late[str]
    model: str | None
    backend: str
    body: Body | None

    def with_body(self, body: Body) -> Facts:
        """Return the facts of the request with another body."""
        return Facts(self.method, self.path, self.query, self.headers, self.model, self.backend, body)


Group = tuple[Clue, ...]
"""Clues of which one must hold."""


@dataclass(frozen=True, slots=True)
class Check:
    """One condition: as the policy says it, whether it holds, and what it met (of a header only the presence).

    `needs` are the top-level body fields without which it can't hold, `groups` the clues (one of each) without which
    it can't, and `reads` the fields that it may look at, None for any. `glob` is the fact that it asks and the globs,
    where it asks nothing else. `is_told`: its only clue tells all of it, whether the field is there or not.
    `is_of_body`: it asks nothing but the body.
    """

    label: str
    holds: Callable[[Facts], bool]
    met: Callable[[Facts], Any]
    needs: frozenset[str] = frozenset()
    groups: tuple[Group, ...] = ()
    reads: frozenset[str | None] = frozenset()
    glob: tuple[str, ...] = ()
    is_told: bool = False
    is_of_body: bool = False


def glob_check(name: str, raw: object) -> Check:
    """Return the check of `path`, `method`, `model` or `backend`; a request without that fact fails it."""
    globs, matches = compile_globs(raw, ignore_case=name == "method")

    def met(facts: Facts) -> Any:
        value = getattr(facts, name)
        return ABSENT if value is None else value

    def holds(facts: Facts) -> bool:
        value = getattr(facts, name)
        return value is not None and matches(value)

    return Check(f"{name}: {' or '.join(map(_shown, globs))}", holds, met, glob=(name, *map(str, globs)))


def _shown(glob: str) -> str:
    return getattr(glob, "source", glob)


def header_check(name: str, raw: object) -> Check:
    """Return the check of one header, by its name in any case."""
    _refuse_unequal(raw, "header")
    key, test = name.lower(), compile_test(raw)
    return Check(
        f"header.{key}: {flow(raw)}",
        lambda facts: test(facts.headers.get(key, ABSENT), facts.body or {}),
        lambda facts: "absent" if facts.headers.get(key) is None else "present",
        reads=tops(references(raw)),
    )


def query_check(name: str, raw: object) -> Check:
    """Return the check of one query parameter; repeated, any of its values may hold."""
    _refuse_unequal(raw, "query parameter")
    test = compile_test(raw)

    def holds(facts: Facts) -> bool:
        return any(test(value, facts.body or {}) for value in facts.query.get(name) or (ABSENT,))

    def met(facts: Facts) -> Any:
        return list(facts.query.get(name) or ()) or ABSENT

    return Check(f"query.{name}: {flow(raw)}", holds, met, reads=tops(references(raw)))


def _refuse_unequal(raw: object, kind: str) -> None:
    if not isinstance(raw, str | Mapping):
        raise BadTest.at(f"the value of a {kind} is a string, which never equals {shown(raw)}; put it in quotes")


def body_check(name: str, raw: object) -> Check:
    """Return the check of a body field; a path with `[*]` holds when any element does.

    Without a JSON object there is no field to test, and the check fails whatever the test is.
    """
    try:
        path = fields.parse_path(name)
    except ValueError as error:
        raise BadTest.at(str(error), KEY) from error
    test, read = compile_test(raw), _reader(path)

    def met(facts: Facts) -> Any:
        values = read(facts.body) if facts.body is not None else [ABSENT]
        return values if path.is_plural and values != [ABSENT] else values[0]

    takes_absent = test(ABSENT, {})
    clue = clue_of(path, raw, lambda value: _any_holds(test, read({path.top: value})), takes_absent=takes_absent)
    return Check(
        label=f"body.{name}: {flow(raw)}",
        holds=_holds_at(path.top, test) if path.top and len(path.steps) == 1 else _holds_among(read, test),
        met=met,
        needs=frozenset([clue.field] if clue and not takes_absent else []),
        groups=((clue,),) if clue else (),
        reads=tops(references(raw)) | {path.top},
        is_told=clue is not None and clue.is_whole and not refers(raw),
        is_of_body=True,
    )


def _holds_at(name: str, test: Test) -> Callable[[Facts], bool]:
    """Return whether a test of a top-level field holds, which most tests are of."""

    def holds(facts: Facts) -> bool:
        body = facts.body
        return body is not None and test(body.get(name, ABSENT), body)

    return holds


def _holds_among(read: Callable[[Mapping[Any, Any]], list[Any]], test: Test) -> Callable[[Facts], bool]:
    """Return whether a test holds for any of the values that are read."""

    def holds(facts: Facts) -> bool:
        body = facts.body
        if body is None:
            return False
        values = read(body)
        return test(values[0], body) if len(values) == 1 else any(test(value, body) for value in values)

    return holds


def _any_holds(test: Test, values: list[Any]) -> bool:
    return any(test(value, {}) for value in values)


def _reader(path: Path) -> Callable[[Mapping[Any, Any]], list[Any]]:
    """Return what reads the value of each element that the path names, ABSENT where it names none.

    An element that lacks the rest of the path counts as absent: `messages[*].name: {exists: false}` holds when any
    message has no name.
    """
    name = path.top
    if name is not None and len(path.steps) == 1:
        return lambda body: [body.get(name, ABSENT)]
    head, *parts = _singular_parts(path)
    lookups = [_lookup(part) for part in parts]

    def read(body: Mapping[Any, Any]) -> list[Any]:
        values = [fields.first(body, head)]
        for lookup in lookups:
            values = lookup(chain.from_iterable(map(_elements, values)))
        return values or [ABSENT]

    return read


def _singular_parts(path: Path) -> tuple[Path, ...]:
    """Return the paths between the path's wildcards."""
    parts: list[list[Any]] = [[]]
    for step in path.steps:
        if step is fields.ANY:
            parts.append([])
        else:
            parts[-1].append(step)
    return tuple(Path(path.text, tuple(steps)) for steps in parts)


def _elements(value: Any) -> Iterable[Any]:
    """Return the elements of a value; of what is absent one, which is absent too."""
    if isinstance(value, list):
        return value
    if value is ABSENT:
        return (ABSENT,)
    return value.values() if not isinstance(value, str) and isinstance(value, Mapping) else ()


def _lookup(part: Path) -> Callable[[Iterable[Any]], list[Any]]:
    """Return what looks a path up in each of some elements."""
    if not part.steps:
        return list
    name = part.top
    if len(part.steps) == 1 and name is not None:
        return lambda elements: [item.get(name, ABSENT) if isinstance(item, dict) else ABSENT for item in elements]
    return lambda elements: [fields.first(element, part) for element in elements]
