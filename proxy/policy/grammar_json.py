"""The policy language's own grammar as JSON Schema: field paths, tests with their operators, matchers, variables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from proxy.matching import OPERATORS
from proxy.matching.values import TYPES

Schema = dict[str, Any]

_KEY: Final = r'[^.\[\]"\s]+'
_BRACKETS: Final = r'\[(-?[0-9]+|\*|"([^"\\]|\\.)*")\]'
_PATH: Final = rf"^(\.|({_KEY}|{_BRACKETS})(\.{_KEY}|{_BRACKETS})*)$"


def ref(name: str) -> Schema:
    """Return the reference to a definition."""
    return {"$ref": f"#/$defs/{name}"}


def one_or_more(schema: Schema) -> Schema:
    """Return the schema of a list that is not empty."""
    return {"type": "array", "minItems": 1, "items": schema}


def either(*schemas: Schema, **annotations: Any) -> Schema:
    """Return the schema of what fits any of these."""
    return {**annotations, "anyOf": list(schemas)}


_FLAG: Final = either({"type": "boolean"}, ref("Variable"))
_ANYTHING: Final[Schema] = {}
_ORDERED: Final = either({"type": "number"}, ref("Reference"), ref("Variable"))
_LIST: Final = either({"type": "array"}, ref("Reference"))
_TYPE: Final = either({"enum": list(TYPES)}, ref("Variable"))

_OPERATORS: Final[Mapping[str, tuple[Schema, str]]] = {
    "eq": (_ANYTHING, "Equal, type-strict: true is not 1, 1 is 1.0."),
    "ne": (_ANYTHING, "There, and not equal."),
    "gt": (_ORDERED, "A number above."),
    "ge": (_ORDERED, "A number not below."),
    "lt": (_ORDERED, "A number below."),
    "le": (_ORDERED, "A number not above."),
    "in": (_LIST, "Equal to one of these."),
    "not_in": (_LIST, "There, and equal to none of these."),
    "exists": (_FLAG, "Whether the field is there; null is."),
    "type": (either(_TYPE, one_or_more(_TYPE)), "Of this JSON type, or one of a list."),
    "empty": (_FLAG, 'Whether it is "", [] or {}.'),
    "length": (ref("Test"), "A test on the length of a string, array or object."),
    "matches": ({"type": "string", "format": "regex"}, "A regular expression that is found in the string."),
    "not": (ref("Test"), "Holds where this test doesn't, and where the field is absent."),
    "any": (one_or_more(ref("Test")), "At least one of these tests holds."),
    "all": (one_or_more(ref("Test")), "Each of these tests holds."),
    "every": (ref("Test"), "Each element of the array, which is not empty, passes the test."),
}

_GLOBS: Final = either({"type": "string"}, one_or_more({"type": "string"}))


def _described(schema: Schema, description: str) -> Schema:
    return {"description": description, **schema}


def grammar() -> Mapping[str, Schema]:
    """Return the definitions of tests, matchers and what they are made of."""
    operators = {name: _described(*_OPERATORS[name]) for name in OPERATORS}
    return {
        "FieldPath": {
            "description": 'A path to fields of the body: a.b, messages[*].role, messages[-1], ["a.b"].',
            "type": "string",
            "pattern": _PATH,
        },
        "Variable": {
            "description": "An environment variable: ${NAME}, ${NAME:-default}.",
            "type": "string",
            "pattern": r"\$\{[A-Za-z_][A-Za-z0-9_]*(:-[^}]*)?\}",
        },
        "Reference": {
            "description": "The value of another field of the body.",
            "type": "object",
            "properties": {"field": ref("FieldPath")},
            "required": ["field"],
            "additionalProperties": False,
        },
        "Operators": {
            "description": "Operators, all of which must hold.",
            "type": "object",
            "properties": operators,
            "minProperties": 1,
            "additionalProperties": False,
        },
        "Test": either(
            {"type": ["null", "boolean", "number", "string", "array"]},
            ref("Reference"),
            ref("Operators"),
            description="A value to be equal to (type-strict), {field: other.path}, or operators, which must all hold.",
        ),
        "StringTest": either({"type": "string"}, ref("Reference"), ref("Operators"), description="A test on a string."),
        "Matcher": _matcher(),
    }


def _matcher() -> Schema:
    return {
        "description": "When a rule is for a request: all of this must hold.",
        "type": "object",
        "properties": {
            "path": _described(_GLOBS, "Globs on the URL's path; without it, the two completion endpoints."),
            "method": _described(_GLOBS, "Globs on the HTTP method."),
            "model": _described(_GLOBS, "Globs on the request's model."),
            "backend": _described(_GLOBS, "Globs on the backend's name."),
            "header": _tests("Header name → test.", ref("StringTest")),
            "query": _tests("Query parameter → test; repeated, any of its values may pass.", ref("StringTest")),
            "body": {**_tests("Field path → test.", ref("Test")), "propertyNames": ref("FieldPath")},
            "any": _described(one_or_more(ref("Matcher")), "At least one of these matchers holds."),
            "not": _described(ref("Matcher"), "This matcher doesn't hold."),
        },
        "additionalProperties": False,
    }


def _tests(description: str, test: Schema) -> Schema:
    return {"description": description, "type": "object", "additionalProperties": test}
