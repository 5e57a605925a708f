"""Keywords of a JSON Schema said in other keywords, as engines know them, with the same meaning where that is possible.

const ──► enum     exclusiveMinimum ──► minimum     pattern ──► ^pattern$     type: [x, null] ──► nullable, anyOf
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal

from proxy.matching.values import is_integer, is_number
from proxy.repairs.schemas import NOTES, Pass, Schema, Tell, everywhere, is_null, types_of, with_null

NullForm = Literal["nullable", "any_of", "type"]
Case = Literal["upper", "lower"]

_BOUNDS: Final = (("exclusiveMinimum", "minimum", 1, max), ("exclusiveMaximum", "maximum", -1, min))
_BACKREFERENCE: Final = re.compile(r"\\[1-9k]")


def const_as_enum(schema: Schema, _tell: Tell) -> Schema:
    """Return the schema with an enum of one value for each const."""
    return everywhere(schema, _with_enum)


def _with_enum(schema: Schema) -> Schema:
    if "const" not in schema or "enum" in schema:
        return schema
    return {
        "enum" if word == "const" else word: [value] if word == "const" else value for word, value in schema.items()
    }


def bounds_inclusive(schema: Schema, tell: Tell) -> Schema:
    """Return the schema without exclusive bounds; of numbers that are no integers, the bound itself is let in."""
    return everywhere(schema, lambda one: _inclusive(one, tell))


def _inclusive(schema: Schema, tell: Tell) -> Schema:
    new = schema
    for word, plain, step, tighter in _BOUNDS:
        bound, held = new.get(word), new.get(plain)
        if isinstance(bound, bool):  # draft 4: it says that the plain bound is exclusive
            new = _without(new, word)
            bound, held = (held, None) if bound else (None, None)
        if is_number(bound):
            new = _without(new, word)
            if types_of(new) != ["integer"]:
                tell(f"keyword {word}")
            elif is_integer(bound):
                bound = int(bound) + step
            new |= {plain: tighter(bound, held) if is_number(held) else bound}
    return new


def _without(schema: Schema, word: str) -> Schema:
    return {name: value for name, value in schema.items() if name != word}


def patterns_anchored(schema: Schema, tell: Tell) -> Schema:
    """Return the schema with patterns that match from the start to the end, as llama.cpp has them."""
    return everywhere(schema, lambda one: _anchored(one, tell))


def _anchored(schema: Schema, tell: Tell) -> Schema:
    pattern = schema.get("pattern")
    if not isinstance(pattern, str):
        return schema
    whole = _whole(pattern)
    if whole is None:
        tell("keyword pattern")
        return _without(schema, "pattern")
    return schema if whole == pattern else schema | {"pattern": whole}


def _whole(pattern: str) -> str | None:
    """Return the pattern that matches a whole text where this one matches a part; None where that can't be said."""
    starts, ends = pattern.startswith("^"), _ends(pattern)
    if starts and ends:
        return pattern
    if "|" in pattern:
        # An anchor would belong to one of the branches only, and a group would change the numbers of the others.
        return None if starts or ends or _BACKREFERENCE.search(pattern) else f"^.*({pattern}).*$"
    return f"{'' if starts else '^.*'}{pattern}{'' if ends else '.*$'}"


def _ends(pattern: str) -> bool:
    before = pattern[:-1]
    return pattern.endswith("$") and (len(before) - len(before.rstrip("\\"))) % 2 == 0


def nulls_as(form: NullForm) -> Pass:
    """Return the pass that says in one form that null is taken too."""
    say = {"nullable": _as_nullable, "any_of": _as_any_of, "type": _as_type}[form]
    return lambda schema, tell: everywhere(schema, lambda one: say(_one_type(one), tell))


def _one_type(schema: Schema) -> Schema:
    named = schema.get("type")
    return schema | {"type": named[0]} if isinstance(named, list) and len(named) == 1 else schema


def _split(schema: Schema) -> tuple[Schema, bool]:
    """Return the schema without null among its types, values and anyOf, and whether it was there."""
    new, had = schema, schema.get("nullable") is True
    new = _without(new, "nullable") if had else new
    named = types_of(new)
    if "null" in named and len(named) > 1:
        rest = [one for one in new["type"] if not isinstance(one, str) or one.lower() != "null"]
        new, had = new | {"type": rest[0] if len(rest) == 1 else rest}, True
    members = new.get("anyOf")
    if isinstance(members, list) and any(map(is_null, members)) and not all(map(is_null, members)):
        new, had = new | {"anyOf": [one for one in members if not is_null(one)]}, True
    values = new.get("enum")
    if had and isinstance(values, list) and None in values and len(values) > 1:
        new = new | {"enum": [value for value in values if value is not None]}
    return _alone(new) if had else new, had


def _alone(schema: Schema) -> Schema:
    members = schema.get("anyOf")
    if not isinstance(members, list) or len(members) != 1 or not isinstance(members[0], dict):
        return schema
    rest = _without(schema, "anyOf")
    if any(word in rest and word not in NOTES for word in members[0]):
        return schema
    return members[0] | rest


def _as_nullable(schema: Schema, tell: Tell) -> Schema:
    new, had = _split(schema)
    named = new.get("type")
    if isinstance(named, list) and named:
        new = _any_type(new, named, tell)
    return new | {"nullable": True} if had else new


def _any_type(schema: Schema, named: list[Any], tell: Tell) -> Schema:
    if "anyOf" in schema:
        tell("alternatives")
        return schema | {"type": named[0]}
    return _without(schema, "type") | {"anyOf": [{"type": one} for one in named]}


def _as_any_of(schema: Schema, _tell: Tell) -> Schema:
    new, had = _split(schema)
    if not had:
        return schema
    if isinstance(new.get("anyOf"), list):
        return new | {"anyOf": [*new["anyOf"], {"type": "null"}]}
    notes = {word: value for word, value in new.items() if word in NOTES}
    return notes | {"anyOf": [{word: value for word, value in new.items() if word not in NOTES}, {"type": "null"}]}


def _as_type(schema: Schema, _tell: Tell) -> Schema:
    new, had = _split(schema)
    return with_null(new) if had else schema


def types_in(case: Case) -> Pass:
    """Return the pass that spells the names of types in upper or lower case."""
    return lambda schema, _tell: everywhere(schema, lambda one: _spelt(one, case))


def _spelt(schema: Schema, case: Case) -> Schema:
    named = schema.get("type")
    new = [_in_case(one, case) for one in named] if isinstance(named, list) else _in_case(named, case)
    return schema if new == named else schema | {"type": new}


def _in_case(named: Any, case: Case) -> Any:
    if not isinstance(named, str):
        return named
    return named.upper() if case == "upper" else named.lower()
