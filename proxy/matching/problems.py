"""What is wrong with a part of a policy, and where in the given value it stands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from proxy.fields import Place
from proxy.matching.words import flow

T = TypeVar("T")

_MAX_SHOWN: Final = 60

Problem = tuple[Place, str]
"""The place inside the raw value, and what to do about it; after `KEY` the key is meant, not its value."""


class _Key(str):
    """The step from a place to the key that leads there; equal to no real key."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


KEY: Final = _Key("(key)")


class BadTest(ValueError):
    """A test or matcher that means nothing; holds every problem found in it."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(message for _, message in problems))
        self.problems = problems

    @classmethod
    def at(cls, message: str, *place: str | int) -> BadTest:
        """Return the error of one problem."""
        return cls([(place, message)])

    def under(self, *place: str | int) -> list[Problem]:
        """Return the problems as seen from a value that holds the bad one at `place`."""
        return [((*place, *inner), message) for inner, message in self.problems]


def gather(items: Iterable[tuple[Any, Any]], make: Callable[[Any, Any], T]) -> list[T]:
    """Return what `make` gives for each (key, value).

    Raises: BadTest with the problems of all items, each under its key.
    """
    made: list[T] = []
    problems: list[Problem] = []
    for key, value in items:
        try:
            made.append(make(key, value))
        except BadTest as bad:
            problems += bad.under(key)
    if problems:
        raise BadTest(problems)
    return made


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Return `: did you mean "…"?`, or where no known word is near, the known words."""
    # Whoever has a policy without faults does without it.
    import difflib

    names = sorted(known)
    near = difflib.get_close_matches(str(word), names, n=1)
    if near:
        return f': did you mean "{near[0]}"?'
    return f" (known: {', '.join(names)})" if names else ""


def kind_of(value: object) -> str:
    """Return the value's type in JSON's words, with its article: `a string`, `an integer`, `null`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int):
        return "an integer"
    if isinstance(value, float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "a mapping" if isinstance(value, Mapping) else "a list"


def shown(value: object) -> str:
    """Return the value's kind and, of a scalar, the value: `the string "yes"`, `true`; a variable as it was written."""
    if value is None or isinstance(value, Mapping | list):
        return kind_of(value)
    text = flow(value)
    text = text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
    return text if isinstance(value, bool) else f"the {kind_of(value).split(' ')[1]} {text}"
