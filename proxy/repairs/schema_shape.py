"""The shape of a JSON Schema's objects, as strict engines demand it: closed, complete, not empty, not too deep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from proxy.repairs.schemas import (
    LISTS,
    Pass,
    Schema,
    Tell,
    everywhere,
    takes_null,
    types_of,
    with_null,
    with_subschemas,
)

_OF_OBJECTS: Final = (
    "properties",
    "required",
    "additionalProperties",
    "patternProperties",
    "propertyNames",
    "minProperties",
    "maxProperties",
)
_OF_ARRAYS: Final = ("items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains")
_DEEPER: Final = (*_OF_OBJECTS, *_OF_ARRAYS, "not", "if", "then", "else", *LISTS)
_LEVELS: Final = ("properties", "patternProperties", "additionalProperties", "items", "prefixItems")


def is_object(schema: Schema) -> bool:
    """Return whether the schema is one of objects."""
    return "object" in types_of(schema) or ("type" not in schema and isinstance(schema.get("properties"), dict))


def well_placed(schema: Schema, tell: Tell) -> Schema:
    """Return the schema with keywords only where they mean something: of objects at objects, of arrays at arrays.

    An object without a type gets it; `required` names only properties that there are.
    """
    return everywhere(schema, lambda one: _well_placed(one, tell))


def _well_placed(schema: Schema, tell: Tell) -> Schema:
    typed = schema | {"type": "object"} if "type" not in schema and is_object(schema) else schema
    named = types_of(typed)
    foreign = [
        word for words, of in ((_OF_OBJECTS, "object"), (_OF_ARRAYS, "array")) if of not in named for word in words
    ]
    if named and any(word in typed for word in foreign):
        typed = {word: value for word, value in typed.items() if word not in foreign}
    return _existing(typed, tell)


def _existing(schema: Schema, tell: Tell) -> Schema:
    names, properties = schema.get("required"), schema.get("properties")
    if not isinstance(names, list):
        return schema
    known: Mapping[str, Any] = properties if isinstance(properties, dict) else {}
    kept = [name for name in names if isinstance(name, str) and name in known]
    if len(kept) == len(names):
        return schema
    tell("keyword required")
    rest = {word: value for word, value in schema.items() if word != "required"}
    return rest | ({"required": kept} if kept else {})


def with_placeholder(name: str) -> Pass:
    """Return the pass that gives every object without properties one of that name."""
    new = {"properties": {name: {"type": "string", "description": "Not used."}}}

    def fill(schema: Schema) -> Schema:
        return schema | new if is_object(schema) and not schema.get("properties") else schema

    return lambda schema, _tell: everywhere(schema, fill)


def additional_properties(allowed: bool) -> Pass:
    """Return the pass that closes every object, or opens it."""

    def put(schema: Schema, tell: Tell) -> Schema:
        if not is_object(schema) or schema.get("additionalProperties") is allowed:
            return schema
        if not allowed:
            tell("open objects")
        elif schema.get("additionalProperties") not in (None, {}):
            tell("keyword additionalProperties")
        return schema | {"additionalProperties": allowed}

    return lambda schema, tell: everywhere(schema, lambda one: put(one, tell))


def all_required(schema: Schema, tell: Tell) -> Schema:
    """Return the schema whose objects demand all their properties; those that could be absent may be null."""
    return everywhere(schema, lambda one: _all_required(one, tell))


def _all_required(schema: Schema, tell: Tell) -> Schema:
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return schema
    named = schema.get("required")
    names = named if isinstance(named, list) else []
    missing = [name for name in properties if name not in names]
    if not missing:
        return schema if "required" in schema else schema | {"required": []}
    tell("absence of properties")
    nullable = {name: _nullable(properties[name]) for name in missing}
    return schema | {"properties": properties | nullable, "required": [*names, *missing]}


def _nullable(schema: Any) -> Any:
    return with_null(schema) if isinstance(schema, dict) and not takes_null(schema) else schema


def not_deeper(levels: int) -> Pass:
    """Return the pass that cuts off what lies deeper than so many levels of properties and items."""
    return lambda schema, tell: _cut(schema, levels, tell)


def _cut(schema: Schema, levels: int, tell: Tell) -> Schema:
    if levels > 0:
        inner = {word: value for word, value in schema.items() if word in _LEVELS}
        beside = {word: value for word, value in schema.items() if word not in _LEVELS}
        new = with_subschemas(inner, lambda one: _cut(one, levels - 1, tell))
        new |= with_subschemas(beside, lambda one: _cut(one, levels, tell))
        return {word: new[word] for word in schema}
    kept = {word: value for word, value in schema.items() if word not in _DEEPER}
    if kept.keys() != schema.keys():
        tell("inner levels")
    return kept
