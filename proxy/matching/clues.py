"""Clues: what a body's field must hold for a test to hold at all, told before the test is made.

    `messages[*].role: developer`  →  the field `messages`, whose value must hold the words `role` and `developer`

A clue may let pass what the test then refuses, and never refuses what the test would let pass. The words of a value are
the names and short strings in it, and of each name also what kinds of values it has (`words_of`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final, TypeVar

from proxy.fields import ANY, Path, Step, parse_path

Word = str | tuple[str, Any]
"""A name or a string; (name, type of its value); (name, MISSING)."""

Words = frozenset[Word]

MISSING: Final = "missing"
WHOLE: Final = ""  # the name that the value itself has among the words
LONGEST_WORD: Final = 64  # of a string that is looked for; longer ones are no words
ANYTHING: Final[tuple[Words, ...]] = (frozenset(),)
_MOST_ALTERNATIVES: Final = 16
_HOLDERS: Final = (list, dict)
_KINDS: Final[Mapping[str, tuple[type, ...]]] = {
    "number": (int, float),
    "integer": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Clue:
    """What one test asks of one top-level field.

    `holds`: whether it may hold for the field's value. `words`: the same, of the value's words, which must include all
    of one of these sets. `is_whole`: it looks no deeper than the value itself. `name`: it looks at nothing but the
    field of this name in each element of the value. `takes_absent`: it holds where the field is absent.
    """

    field: str
    holds: Callable[[Any], bool]
    words: tuple[Words, ...] = ANYTHING
    is_whole: bool = False
    name: str | None = None
    takes_absent: bool = False

    def may_hold(self, words: Words) -> bool:
        """Return whether the test may hold for a value with these words."""
        return any(alternative <= words for alternative in self.words)


def may(_value: Any) -> bool:
    """Hold for anything: of what can't be told from the field alone."""
    return True


def clue_of(path: Path, raw: object, holds: Callable[[Any], bool], *, takes_absent: bool) -> Clue | None:
    """Return the clue of a test, which `takes_absent` where it holds of nothing; None where it gives no clue."""
    field = path.top
    if field is None or (takes_absent and refers(raw)):
        return None
    words = ANYTHING if takes_absent else demanded(path.steps[1:], raw)
    name = path.steps[2] if len(path.steps) == 3 and path.steps[1] is ANY else None
    is_told = not takes_absent and words != along(path.steps[1:])
    return Clue(
        field=field,
        holds=may if refers(raw) else holds,
        words=words,
        is_whole=len(path.steps) == 1,
        name=name if isinstance(name, str) and not refers(raw) and not is_told else None,
        takes_absent=takes_absent,
    )


def demanded(steps: tuple[Step, ...], raw: object) -> tuple[Words, ...]:
    """Return the words that a value must hold for a test at `steps` inside it; the test fails on what is absent."""
    last = steps[-1] if steps else WHOLE
    return both(along(steps), _of_test(raw, last if isinstance(last, str) else None))


def along(steps: tuple[Step, ...]) -> tuple[Words, ...]:
    """Return the words of a value in which the steps lead to something."""
    words = ANYTHING
    for step, after in zip_longest(steps, steps[1:]):
        if isinstance(step, str):
            words = both(words, (frozenset([step]),))
            if after is not None:
                kinds = (dict,) if isinstance(after, str) else (list,) if isinstance(after, int) else _HOLDERS
                words = both(words, tuple(frozenset([(step, kind)]) for kind in kinds))
    return words


def both(one: tuple[Words, ...], two: tuple[Words, ...]) -> tuple[Words, ...]:
    """Return the alternatives in which both hold; where these were too many, the first's."""
    if len(one) * len(two) > _MOST_ALTERNATIVES:
        return one
    return tuple(first | second for first in one for second in two)


def missing(name: str) -> tuple[Words, ...]:
    """Return the word of a list in which an element lacks a field."""
    return (frozenset([(name, MISSING)]),)


def refers(raw: object) -> bool:
    """Return whether a test compares with another field."""
    return bool(references(raw))


def references(raw: object) -> frozenset[str]:
    """Return the paths of the fields that a test (or a tree of options) compares with."""
    if isinstance(raw, Mapping):
        own = [raw["field"]] if isinstance(raw.get("field"), str) else []
        return frozenset(own).union(*map(references, raw.values()))
    return frozenset[str]().union(*map(references, raw)) if isinstance(raw, list | tuple) else frozenset()


def tops(paths: Iterable[str]) -> frozenset[str | None]:
    """Return the top-level fields that paths start at; None for one that may start anywhere."""
    return frozenset(map(_top, paths))


def _top(path: str) -> str | None:
    try:
        return parse_path(path).top
    except ValueError:
        return None  # a value that only looks like a reference


def words_of_scalar(value: Any) -> Words:
    """Return the words of a value that holds no other."""
    return frozenset([value if isinstance(value, str) else (WHOLE, type(value))])


def words_of(value: list[Any] | dict[str, Any]) -> set[Word]:
    """Return the words in a list or object."""
    found: set[Word] = set()
    open_values: list[Any] = [value]
    for holder in open_values:  # grows while it is walked
        if type(holder) is list:
            _note_elements(holder, found, open_values)
            continue
        found.update(holder)
        for name, inner in holder.items():
            if type(inner) is str:
                if len(inner) <= LONGEST_WORD:
                    found.add(inner)
            else:
                _note(name, inner, found, open_values)
    return found


def _note_elements(elements: list[Any], found: set[Word], open_values: list[Any]) -> None:
    for inner in elements:
        if type(inner) is dict or type(inner) is list:
            open_values.append(inner)
        elif isinstance(inner, str) and len(inner) <= LONGEST_WORD:
            found.add(inner)


def _note(name: str, value: Any, found: set[Word], open_values: list[Any]) -> None:
    """Note a value that is no plain string; one that a policy expanded is a string too."""
    if isinstance(value, str):
        found.add(value)
        return
    found.add((name, type(value)))
    if isinstance(value, dict | list):
        open_values.append(value)


def _of_test(raw: object, name: str | None) -> tuple[Words, ...]:
    if not isinstance(raw, Mapping):
        return _of_value(raw, name)
    if set(raw) == {"field"}:
        return ANYTHING
    told = (_of_operator(str(operator), argument, name) for operator, argument in raw.items())
    return next((words for words in told if all(words)), ANYTHING)


def _of_operator(operator: str, argument: Any, name: str | None) -> tuple[Words, ...]:
    if operator == "eq":
        return ANYTHING if refers(argument) else _of_value(argument, name)
    if operator in ("gt", "ge", "lt", "le"):
        return _of_kind("number", name)
    if operator == "type":
        return _joined(argument if isinstance(argument, list) else [argument], lambda kind: _of_kind(kind, name))
    if operator == "in" and isinstance(argument, list):
        return _joined(argument, lambda one: ANYTHING if refers(one) else _of_value(one, name))
    if operator == "any":
        return _joined(argument, lambda test: _of_test(test, name))
    if operator == "all":
        return next((words for words in (_of_test(test, name) for test in argument) if all(words)), ANYTHING)
    return ANYTHING


def _joined(items: list[T], words: Callable[[T], tuple[Words, ...]]) -> tuple[Words, ...]:
    alternatives = tuple(alternative for item in items for alternative in words(item))
    return alternatives if 0 < len(alternatives) <= _MOST_ALTERNATIVES else ANYTHING


def _of_value(value: object, name: str | None) -> tuple[Words, ...]:
    if isinstance(value, str):
        return (frozenset([str(value)]),) if len(value) <= LONGEST_WORD else ANYTHING
    if isinstance(value, bool):
        return _of_kind("boolean", name)
    if isinstance(value, int | float):
        return _of_kind("number", name)
    kind = "null" if value is None else "array" if isinstance(value, list) else "object"
    return _of_kind(kind, name)


def _of_kind(kind: object, name: str | None) -> tuple[Words, ...]:
    found = _KINDS.get(str(kind))
    return ANYTHING if found is None or name is None else tuple(frozenset([(name, one)]) for one in found)
