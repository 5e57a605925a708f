"""What follows from tests alone: that no value passes, as `{gt: 5, lt: 3}`, or that what passes one passes another.

The values that an operator tells apart are few: each constant of the tests, those next to it and between two of them,
one of each type. Where something holds for all of them, it holds for every value.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Final

from proxy.fields import ABSENT
from proxy.matching import BadTest, Test, compile_test
from proxy.matching.values import is_same

_PLAIN: Final = frozenset({"eq", "ne", "gt", "ge", "lt", "le", "in", "not_in", "exists", "type", "empty"})
_LISTS: Final = frozenset({"any", "all"})
_EXACT: Final = 1 << 53  # beyond it the next integer stands in for what lies between
_SAMPLES: Final[tuple[Any, ...]] = (
    ABSENT,
    None,
    True,
    False,
    0,
    0.5,
    "",
    "a\x00b",
    [],
    ["a\x00b"],
    {},
    {"a\x00b": None},
)


def never_holds(*raws: Any) -> bool:
    """Return whether it is sure that no value passes all of the tests; False where that can't be told."""
    tests = _compiled(raws)
    if tests is None:
        return False
    return not any(all(test(value, {}) for test in tests) for value in _candidates(raws))


def implies(raws: list[Any], wanted: Any) -> bool:
    """Return whether it is sure that what passes all of the tests passes the wanted one too."""
    if any(is_same(raw, wanted) for raw in raws):
        return True
    tests, other = _compiled(raws), _compiled([wanted])
    if tests is None or other is None or not raws:
        return False
    passing = (value for value in _candidates([*raws, wanted]) if all(test(value, {}) for test in tests))
    return all(other[0](value, {}) for value in passing)


def _compiled(raws: tuple[Any, ...] | list[Any]) -> list[Test] | None:
    """Return the tests, None where one asks about more than the candidates tell apart."""
    if not all(map(_is_plain, raws)):
        return None
    try:
        return [compile_test(raw) for raw in raws]
    except BadTest:  # a variable stands for a number
        return None


def _is_plain(raw: Any) -> bool:
    if not isinstance(raw, Mapping):
        return True
    if not raw or set(raw) == {"field"}:
        return False
    return all(_is_plain_operator(name, argument) for name, argument in raw.items())


def _is_plain_operator(name: str, argument: Any) -> bool:
    if name == "not":
        return _is_plain(argument)
    if name in _LISTS:
        return isinstance(argument, list) and all(map(_is_plain, argument))
    items = argument if isinstance(argument, list) else [argument]
    return name in _PLAIN and not any(isinstance(item, Mapping) and set(item) == {"field"} for item in items)


def _candidates(raws: tuple[Any, ...] | list[Any]) -> Iterator[Any]:
    yield from _SAMPLES
    numbers: list[float] = []
    for constant in (constant for raw in raws for constant in _constants(raw)):
        yield constant
        if isinstance(constant, int | float) and not isinstance(constant, bool):
            numbers += [constant, constant - 1, constant + 1, math.floor(constant), math.floor(constant) + 1]
    numbers.sort()
    yield from numbers
    yield from ((low + high) / 2 for low, high in pairwise(numbers) if -_EXACT < low <= high < _EXACT)


def _constants(raw: Any) -> Iterator[Any]:
    if not isinstance(raw, Mapping):
        yield raw
        return
    for name, argument in raw.items():
        if name == "not":
            yield from _constants(argument)
        elif name in _LISTS:
            for each in argument:
                yield from _constants(each)
        else:
            yield from argument if name in ("in", "not_in") else [argument]
