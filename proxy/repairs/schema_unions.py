"""Alternatives and conjunctions of a JSON Schema, for engines without anyOf, oneOf or allOf.

allOf: [A, B] ──► A and B as one schema      oneOf ──► anyOf      anyOf: [A, B, null] ──► A or null
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, TypeGuard

from proxy.matching.values import is_number, is_same
from proxy.repairs.schemas import MAPS, NOTES, Pass, Schema, Tell, everywhere, is_null, types_of, with_null

Choice = Literal["first", "merge"]

_TIGHTER: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "minimum": max,
    "exclusiveMinimum": max,
    "minLength": max,
    "minItems": max,
    "minProperties": max,
    "maximum": min,
    "exclusiveMaximum": min,
    "maxLength": min,
    "maxItems": min,
    "maxProperties": min,
}


def merged_all_of() -> Pass:
    """Return the pass that makes one schema of each allOf; one with references in it stays."""
    return lambda schema, tell: everywhere(schema, lambda one: _without_all_of(one, tell))


def _without_all_of(schema: Schema, tell: Tell) -> Schema:
    members = schema.get("allOf")
    if not _are_plain(members):
        return schema
    merged = {word: value for word, value in schema.items() if word != "allOf"}
    for member in members:
        merged = both(merged, member, tell)
    return merged


def _are_plain(members: Any) -> TypeGuard[list[Schema]]:
    return isinstance(members, list) and all(isinstance(one, dict) and "$ref" not in one for one in members)


def both(one: Schema, other: Schema, tell: Tell) -> Schema:
    """Return the schema that takes what both take; of what can't be joined, the first's is kept, and that is told."""
    new = dict(one)
    for word, value in other.items():
        new[word] = _joined(word, one[word], value, tell) if word in one else value
    return new


def _joined(word: str, one: Any, other: Any, tell: Tell) -> Any:
    if is_same(one, other) or word in NOTES:
        return one
    if word in MAPS and isinstance(one, dict) and isinstance(other, dict):
        return one | {name: _both_of(one, name, value, tell) for name, value in other.items()}
    if word == "required" and isinstance(one, list) and isinstance(other, list):
        return [*one, *(name for name in other if name not in one)]
    if word in _TIGHTER and is_number(one) and is_number(other):
        return _TIGHTER[word](one, other)
    if word == "enum" and isinstance(one, list) and isinstance(other, list):
        return [value for value in one if any(is_same(value, another) for another in other)]
    if word == "type":
        return _joined_type(one, other, tell)
    if word == "additionalProperties" and False in (one, other):
        return False
    tell("parts of allOf")
    return one


def _both_of(schemas: Mapping[str, Any], name: str, value: Any, tell: Tell) -> Any:
    one = schemas.get(name)
    return both(one, value, tell) if isinstance(one, dict) and isinstance(value, dict) else schemas.get(name, value)


def _joined_type(one: Any, other: Any, tell: Tell) -> Any:
    first, second = types_of({"type": one}), types_of({"type": other})
    common = [named for named in first if named in second or (named == "integer" and "number" in second)]
    common += ["integer"] if "integer" in second and "number" in first and "integer" not in common else []
    if not common:
        tell("parts of allOf")
        return one
    return common[0] if len(common) == 1 else common


def one_of_as_any_of() -> Pass:
    """Return the pass that makes anyOf of oneOf, where there is none yet."""
    return lambda schema, tell: everywhere(schema, lambda one: _renamed(one, tell))


def _renamed(schema: Schema, tell: Tell) -> Schema:
    if "oneOf" not in schema or "anyOf" in schema:
        return schema
    tell("exclusiveness of alternatives")
    return {("anyOf" if word == "oneOf" else word): value for word, value in schema.items()}


def chosen(word: str, choice: Choice) -> Pass:
    """Return the pass that makes one schema of the alternatives in anyOf or oneOf; null stays one of them."""
    return lambda schema, tell: everywhere(schema, lambda one: _chosen(one, word, choice, tell))


def _chosen(schema: Schema, word: str, choice: Choice, tell: Tell) -> Schema:
    members = schema.get(word)
    if not _are_plain(members):
        return schema
    rest = {name: value for name, value in schema.items() if name != word}
    others = [one for one in members if not is_null(one)]
    if others:
        rest = both(rest, _one_of(others, choice, tell), tell)
    elif members:
        rest = both(rest, {"type": "null"}, tell)
    return with_null(rest) if len(others) < len(members) and others else rest


def _one_of(members: list[Schema], choice: Choice, tell: Tell) -> Schema:
    if len(members) == 1:
        return members[0]
    simple = _values(members)
    if simple is None and choice == "merge":
        simple = _types(members)
    if simple is not None:
        return simple
    tell("alternatives")
    objects = [one for one in members if isinstance(one.get("properties"), dict)]
    return _any_object(objects) if choice == "merge" and len(objects) == len(members) else members[0]


def _values(members: list[Schema]) -> Schema | None:
    """Return the enum of members that are each a constant or an enum of one type; None of others."""
    words = {word for one in members for word in one if word not in NOTES}
    types = {tuple(types_of(one)) for one in members}
    if not words <= {"const", "enum", "type"} or len(types) > 1:
        return None
    if not all(("const" in one) != isinstance(one.get("enum"), list) for one in members):
        return None
    values = [value for one in members for value in ([one["const"]] if "const" in one else one["enum"])]
    named = {"type": members[0]["type"]} if "type" in members[0] else {}
    return named | {"enum": values}


def _types(members: list[Schema]) -> Schema | None:
    """Return the list of types of members that are nothing but types; None of others."""
    if not all(types_of(one) and all(word == "type" or word in NOTES for word in one) for one in members):
        return None
    return {"type": list(dict.fromkeys(named for one in members for named in types_of(one)))}


def _any_object(members: list[Schema]) -> Schema:
    """Return the object that may have the properties of all members, and must have those that each of them demands."""
    properties = {name: value for one in reversed(members) for name, value in one["properties"].items()}
    ordered = {name: properties[name] for one in members for name in one["properties"]}
    demanded = [one["required"] if isinstance(one.get("required"), list) else [] for one in members]
    common = [name for name in demanded[0] if all(name in names for names in demanded)]
    return {"type": "object", "properties": ordered} | ({"required": common} if common else {})
