"""A *test* of the policy language, compiled to a closure.

    true · 3 · "text" · [1, 2]      type-strict equality: true is not 1, 1 is 1.0
    {field: other.path}             equality with another field of the body
    {gt: 1, lt: 9}                  operators, all of which must hold

An absent value fails every test but `exists: false` and `not`. No JSON value makes a test raise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from proxy.fields import ABSENT
from proxy.matching.operands import among, operand
from proxy.matching.problems import KEY, BadTest, did_you_mean, gather, shown
from proxy.matching.regexes import compile_regex
from proxy.matching.values import TYPES, Number, is_number, is_same, size_of

Test = Callable[[Any, Any], bool]
"""(value or ABSENT, root) → whether the test holds; root is the body, for `{field: path}`."""


def compile_test(raw: object) -> Test:
    """Return the closure of a test.

    Raises: BadTest with every problem of it.
    """
    if not isinstance(raw, Mapping) or set(raw) == {"field"}:
        return _eq(raw)
    if not raw:
        raise BadTest.at("an empty mapping tests nothing: to compare with an empty object write {eq: {}}")
    tests = gather(raw.items(), _operator)
    return tests[0] if len(tests) == 1 else lambda value, root: all(test(value, root) for test in tests)


def _operator(name: object, argument: object) -> Test:
    if not isinstance(name, str) or name not in OPERATORS:
        near = did_you_mean(name, OPERATORS)
        raise BadTest.at(f'unknown operator "{name}"{near} (to compare with an object use eq)', KEY)
    return OPERATORS[name](argument)


def _eq(raw: object) -> Test:
    if raw is None or isinstance(raw, bool):
        return lambda value, _root: value is raw
    if isinstance(raw, str):
        return lambda value, _root: isinstance(value, str) and value == raw
    other = operand(raw)
    return lambda value, root: value is not ABSENT and is_same(value, other(root))


def _ne(raw: object) -> Test:
    other = operand(raw)

    def holds(value: Any, root: Any) -> bool:
        against = other(root)
        return value is not ABSENT and against is not ABSENT and not is_same(value, against)

    return holds


def _ordered(compare: Callable[[Number, Number], bool]) -> Callable[[object], Test]:
    def compile_order(raw: object) -> Test:
        if not is_number(raw) and not (isinstance(raw, Mapping) and set(raw) == {"field"}):
            raise BadTest.at(f"expected a number or {{field: path}}, got {shown(raw)}")
        other = operand(raw)

        def holds(value: Any, root: Any) -> bool:
            against = other(root)
            return is_number(value) and is_number(against) and compare(value, against)

        return holds

    return compile_order


def _in(raw: object) -> Test:
    others, words = among(raw), _words(raw)
    if words is not None:
        return lambda value, _root: isinstance(value, str) and value in words
    return lambda value, root: value is not ABSENT and any(is_same(value, other) for other in others(root))


def _not_in(raw: object) -> Test:
    others, words = among(raw), _words(raw)
    if words is not None:
        return lambda value, _root: value is not ABSENT and not (isinstance(value, str) and value in words)
    return lambda value, root: value is not ABSENT and not any(is_same(value, other) for other in others(root))


def _words(raw: object) -> frozenset[str] | None:
    """Return the values of a list of strings only, among which one is found at once."""
    return frozenset(raw) if isinstance(raw, list) and all(isinstance(word, str) for word in raw) else None


def _flag(raw: object) -> bool:
    if not isinstance(raw, bool):
        hint = " (YAML 1.2: write true or false)" if raw in ("yes", "no", "on", "off") else ""
        raise BadTest.at(f"expected true or false, got {shown(raw)}{hint}")
    return raw


def _exists(raw: object) -> Test:
    wanted = _flag(raw)
    return lambda value, _root: (value is not ABSENT) is wanted


def _empty(raw: object) -> Test:
    wanted = _flag(raw)
    return lambda value, _root: value is not ABSENT and (size_of(value) == 0) is wanted


def _type(raw: object) -> Test:
    if raw == []:
        raise BadTest.at(f"expected at least one type of {', '.join(TYPES)}")
    tests = gather(enumerate(raw), _of_type) if isinstance(raw, list) else [_of_type(0, raw)]
    return lambda value, _root: value is not ABSENT and any(test(value) for test in tests)


def _of_type(_index: int, name: object) -> Callable[[object], bool]:
    if not isinstance(name, str) or name not in TYPES:
        raise BadTest.at(f'unknown type "{name}"{did_you_mean(name, TYPES)} (to compare with an object use eq)')
    return TYPES[name]


def _length(raw: object) -> Test:
    test = compile_test(raw)

    def holds(value: Any, root: Any) -> bool:
        size = size_of(value)
        return size is not None and test(size, root)

    return holds


def _matches(raw: object) -> Test:
    pattern = compile_regex(raw)
    return lambda value, _root: isinstance(value, str) and pattern.search(value) is not None


def _not(raw: object) -> Test:
    test = compile_test(raw)
    return lambda value, root: not test(value, root)


def _list_of_tests(raw: object) -> list[Test]:
    if not isinstance(raw, list) or not raw:
        raise BadTest.at(f"expected a list of tests, got {shown(raw) if raw != [] else 'an empty one'}")
    return gather(enumerate(raw), lambda _index, item: compile_test(item))


def _any(raw: object) -> Test:
    tests = _list_of_tests(raw)
    return lambda value, root: any(test(value, root) for test in tests)


def _all(raw: object) -> Test:
    tests = _list_of_tests(raw)
    return lambda value, root: all(test(value, root) for test in tests)


def _every(raw: object) -> Test:
    test = compile_test(raw)
    return lambda value, root: isinstance(value, list) and bool(value) and all(test(item, root) for item in value)


OPERATORS: Final[Mapping[str, Callable[[object], Test]]] = {
    "eq": _eq,
    "ne": _ne,
    "gt": _ordered(lambda value, other: value > other),
    "ge": _ordered(lambda value, other: value >= other),
    "lt": _ordered(lambda value, other: value < other),
    "le": _ordered(lambda value, other: value <= other),
    "in": _in,
    "not_in": _not_in,
    "exists": _exists,
    "type": _type,
    "empty": _empty,
    "length": _length,
    "matches": _matches,
    "not": _not,
    "any": _any,
    "all": _all,
    "every": _every,
}
