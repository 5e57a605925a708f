"""JSON Schemas of a request: where they stand, and a walk that knows a keyword from a property of the same name.

    tools[*].function.parameters, response_format.json_schema.schema … ──► Site ──► its schema, subschemas first

Source: JSON Schema 2020-12 (core §10, validation), draft 7 `definitions` and `items` lists, OpenAPI 3.0 `nullable`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from proxy.body import Body
from proxy.fields import ABSENT, Path, Place, find, parse_path

Schema = dict[str, Any]
Visit = Callable[[Schema], Schema]
Tell = Callable[[str], None]
"""Takes the name of what is lost: "keyword pattern", "alternatives" …"""
Pass = Callable[[Schema, Tell], Schema]
"""One change to a whole schema, which it returns anew; what it is handed stays as it is."""
Group = Literal["tools", "response_format"]

MAPS: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
LISTS: Final = ("anyOf", "oneOf", "allOf", "prefixItems")
SINGLE: Final = (
    "additionalProperties",
    "unevaluatedProperties",
    "propertyNames",
    "items",
    "additionalItems",
    "unevaluatedItems",
    "contains",
    "contentSchema",
    "not",
    "if",
    "then",
    "else",
)
_HOLDERS: Final = frozenset((*MAPS, *LISTS, *SINGLE))
NOTES: Final = ("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly")
"""Keywords that constrain nothing, but which a model reads."""

MAX_NESTING: Final = 64
"""Levels of JSON in a schema that is looked into: beyond what any engine takes, within what Python's stack holds."""


class Site(msgspec.Struct, frozen=True):
    """Where a schema may stand: in which field of which objects, whose `strict` counts."""

    holder: Path
    name: str
    is_of_tool: bool = False  # parameters, which may be missing and then are to be made

    @classmethod
    def of(cls, holder: str, name: str, *, is_of_tool: bool = False) -> Site:
        """Return the site of the field `name` in the holders."""
        return cls(parse_path(holder), name, is_of_tool)

    def places(self, body: Body, *, only_strict: bool) -> Iterator[tuple[Place, Any]]:
        """Yield each place in the body with the schema there, or ABSENT."""
        for place, holder in list(find(body, self.holder)):
            if isinstance(holder, Mapping) and (holder.get("strict") is True or not only_strict):
                yield (*place, self.name), holder.get(self.name, ABSENT)


SITES: Final[Mapping[Group, Sequence[Site]]] = {
    "tools": (
        Site.of("tools[*].function", "parameters", is_of_tool=True),
        Site.of("functions[*]", "parameters", is_of_tool=True),
        Site.of("tools[*]", "parameters"),
    ),
    "response_format": (
        Site.of("response_format.json_schema", "schema"),
        Site.of("response_format", "schema"),
        Site.of("text.format", "schema"),
        Site.of("structured_outputs", "json"),
        Site.of(".", "guided_json"),
    ),
}


def with_subschemas(schema: Schema, visit: Visit) -> Schema:
    """Return the schema with each of its subschemas as `visit` returns it; itself where they all stay."""
    new = schema
    for keyword, value in schema.items():
        visited = _visited(keyword, value, visit) if keyword in _HOLDERS else value
        if visited is not value:
            new = new | {keyword: visited}
    return new


def _visited(keyword: str, value: Any, visit: Visit) -> Any:
    if isinstance(value, dict):
        if keyword not in MAPS:
            return visit(value) if keyword in SINGLE else value
        named = {name: visit(item) if isinstance(item, dict) else item for name, item in value.items()}
        return named if any(named[name] is not value[name] for name in named) else value
    if isinstance(value, list) and (keyword in LISTS or keyword == "items"):
        listed = [visit(item) if isinstance(item, dict) else item for item in value]
        return listed if any(new is not old for new, old in zip(listed, value, strict=True)) else value
    return value


def everywhere(schema: Schema, edit: Visit) -> Schema:
    """Return the schema with `edit` made on each schema in it, the inner ones first."""
    return edit(with_subschemas(schema, lambda inner: everywhere(inner, edit)))


def is_deeper(value: Any, levels: int) -> bool:
    """Return whether JSON is nested deeper than so many levels. No recursion: it may be, much deeper."""
    layer = [value]
    for _ in range(levels):
        layer = [item for outer in layer if isinstance(outer, dict | list) for item in _inner(outer)]
        if not layer:
            return False
    return any(isinstance(item, dict | list) for item in layer)


def _inner(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value


def types_of(schema: Schema) -> list[str]:
    """Return the types that the schema names, in JSON Schema's own lower case."""
    named = schema.get("type")
    return [one.lower() for one in (named if isinstance(named, list) else [named]) if isinstance(one, str)]


def is_null(schema: Any) -> bool:
    """Return whether a schema takes null and nothing else."""
    if not isinstance(schema, dict):
        return False
    named = types_of(schema)
    if named:
        return named == ["null"]
    return ("const" in schema and schema["const"] is None) or schema.get("enum") == [None]


def alternatives(schema: Schema) -> list[Any]:
    """Return the members of anyOf and oneOf."""
    return [one for word in ("anyOf", "oneOf") if isinstance(schema.get(word), list) for one in schema[word]]


def takes_null(schema: Schema) -> bool:
    """Return whether null is among what the schema takes, as far as its own keywords say."""
    if schema.get("nullable") is True or "null" in types_of(schema) or any(map(is_null, alternatives(schema))):
        return True
    return not any(word in schema for word in ("type", "enum", "const", "$ref", "anyOf", "oneOf", "allOf"))


def with_null(schema: Schema) -> Schema:
    """Return the schema that takes null as well."""
    if takes_null(schema):
        return schema
    if isinstance(schema.get("anyOf"), list):
        return schema | {"anyOf": [*schema["anyOf"], {"type": "null"}]}
    if types_of(schema) and not any(word in schema for word in ("oneOf", "allOf", "$ref")):
        return _of_values(schema | {"type": [*_listed(schema["type"]), "null"]})
    if "enum" in schema or "const" in schema:
        return _of_values(schema)
    notes = {word: value for word, value in schema.items() if word in NOTES}
    inner = {word: value for word, value in schema.items() if word not in NOTES}
    return notes | {"anyOf": [inner, {"type": "null"}]}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _of_values(schema: Schema) -> Schema:
    if "const" in schema:
        rest = {word: value for word, value in schema.items() if word != "const"}
        return rest | {"enum": [None] if schema["const"] is None else [schema["const"], None]}
    values = schema.get("enum")
    return schema | {"enum": [*values, None]} if isinstance(values, list) and None not in values else schema
