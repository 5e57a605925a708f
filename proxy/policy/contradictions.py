"""Tests that no value passes, as `{gt: 5, lt: 3}`: a rule that asks for one can never fire.

The values that an operator tells apart are few: each constant of the test, those next to it and between two of them,
one of each type. Where all of them fail, every value does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Final

from proxy.fields import ABSENT
from proxy.matching import BadTest, compile_test

_PLAIN: Final = frozenset({"eq", "ne", "gt", "ge", "lt", "le", "in", "not_in", "exists", "type", "empty"})
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


def never_holds(raw: Any) -> bool:
    """Return whether it is sure that no value passes the test; False where that can't be told."""
    if not isinstance(raw, Mapping) or not set(raw) <= _PLAIN or _has_reference(raw):
        return False
    try:
        test = compile_test(raw)
    except BadTest:  # a variable stands for a number
        return False
    return not any(test(value, {}) for value in _candidates(raw))


def _has_reference(raw: Mapping[str, Any]) -> bool:
    values = [item for value in raw.values() for item in (value if isinstance(value, list) else [value])]
    return any(isinstance(value, Mapping) and set(value) == {"field"} for value in values)


def _candidates(raw: Mapping[str, Any]) -> Iterator[Any]:
    yield from _SAMPLES
    numbers: list[float] = []
    for name, value in raw.items():
        for constant in value if name in ("in", "not_in") else [value]:
            yield constant
            if isinstance(constant, int | float) and not isinstance(constant, bool):
                numbers += [constant, constant - 1, constant + 1, math.floor(constant), math.floor(constant) + 1]
    numbers.sort()
    yield from numbers
    yield from ((low + high) / 2 for low, high in pairwise(numbers) if -_EXACT < low <= high < _EXACT)
