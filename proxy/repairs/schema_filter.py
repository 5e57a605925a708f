"""Keywords of a JSON Schema that an engine refuses: left out, and where asked for said in the description instead."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from proxy.matching import Test
from proxy.matching.values import is_integer, is_number, is_same
from proxy.repairs.conversions import text_of
from proxy.repairs.schemas import LISTS, MAPS, SINGLE, Pass, Schema, Tell, everywhere

Doomed = Callable[[str, Any], bool]
"""(keyword, value) → whether it is left out."""

_SILENT: Final = ("$schema", "$id", "id", "$comment", "$anchor", "$vocabulary")
_UNTOLD: Final = ("title", "description", *_SILENT)
_DEFAULTS: Final[Mapping[str, Any]] = {
    "additionalProperties": True,
    "uniqueItems": False,
    "nullable": False,
    "deprecated": False,
    "readOnly": False,
    "writeOnly": False,
    "minItems": 0,
    "minLength": 0,
    "minProperties": 0,
    "required": [],
    "examples": [],
}
_TYPES: Final = ("string", "number", "integer", "boolean", "array", "object", "null")


def dropped(tests: Sequence[tuple[str, Test]], root: Any) -> Doomed:
    """Return whether one of the tests holds for a keyword; `root` is the body that they may look into."""
    return lambda word, value: any(word == name and test(value, root) for name, test in tests)


def kept(words: Sequence[str]) -> Doomed:
    """Return whether a keyword is none of those that are kept."""
    return lambda word, _value: word not in words


def without_words(is_doomed: Doomed, *, describe: bool) -> Pass:
    """Return the pass that leaves the doomed keywords out, saying in the description what they asked for."""

    def edit(schema: Schema, tell: Tell, has_references: bool) -> Schema:
        doomed = {word: value for word, value in schema.items() if is_doomed(word, value)}
        if not doomed:
            return schema
        lost = [word for word in doomed if _means_something(word, doomed[word], has_references=has_references)]
        for word in lost:
            tell(f"keyword {word}")
        rest = {word: value for word, value in schema.items() if word not in doomed}
        return _described(rest, {word: doomed[word] for word in lost if word not in _UNTOLD}) if describe else rest

    def run(schema: Schema, tell: Tell) -> Schema:
        has_references = _refers(schema)
        return everywhere(schema, lambda one: edit(one, tell, has_references))

    return run


def _means_something(word: str, value: Any, *, has_references: bool) -> bool:
    if word in _SILENT or (word in _DEFAULTS and is_same(value, _DEFAULTS[word])):
        return False
    return has_references if word in ("$defs", "definitions") else True


def _refers(schema: Schema) -> bool:
    found = False

    def look(one: Schema) -> Schema:
        nonlocal found
        found = found or "$ref" in one
        return one

    everywhere(schema, look)
    return found


def _described(schema: Schema, lost: Mapping[str, Any]) -> Schema:
    if not lost:
        return schema
    told = "; ".join(f"{word}: {value if isinstance(value, str) else text_of(value)}" for word, value in lost.items())
    before = schema.get("description")
    return schema | {"description": f"{before} ({told})" if isinstance(before, str) and before else told}


def valid(schema: Schema, tell: Tell) -> Schema:
    """Return the schema without keywords whose values are none that JSON Schema knows; null counts as not written."""
    return everywhere(schema, lambda one: _valid(_mended(one, tell), tell))


def _mended(schema: Schema, tell: Tell) -> Schema:
    mended = {word: _of_schemas(schema[word], tell) for word in MAPS if word in schema}
    return schema | mended if any(mended[word] is not schema[word] for word in mended) else schema


def _of_schemas(value: Any, tell: Tell) -> Any:
    if not isinstance(value, dict) or all(map(_is_schema, value.values())):
        return value
    tell("invalid properties")
    return {name: item if _is_schema(item) else {} for name, item in value.items()}


def _valid(schema: Schema, tell: Tell) -> Schema:
    bad = [word for word, value in schema.items() if not _is_valid(word, value)]
    for word in bad:
        if schema[word] is not None:
            tell(f"keyword {word}")
    return {word: value for word, value in schema.items() if word not in bad} if bad else schema


def _is_valid(word: str, value: Any) -> bool:
    check = _CHECKS.get(word)
    return check is None or check(value)


def _is_schema(value: Any) -> bool:
    return isinstance(value, dict | bool)


def _is_list_of_schemas(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_schema, value))


def _is_map_of_schemas(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_schema, value.values()))


def _is_type(value: Any) -> bool:
    named = value if isinstance(value, list) and value else [value]
    return all(isinstance(one, str) and one.lower() in _TYPES for one in named)


def _is_count(value: Any) -> bool:
    return is_integer(value) and bool(value >= 0)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _is_bound(value: Any) -> bool:
    return is_number(value) or isinstance(value, bool)  # draft 4


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


_CHECKS: Final[Mapping[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(MAPS, _is_map_of_schemas),
    **dict.fromkeys(LISTS, _is_list_of_schemas),
    **dict.fromkeys(SINGLE, _is_schema),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), _is_count),
    **dict.fromkeys(("minimum", "maximum"), is_number),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), _is_bound),
    **dict.fromkeys(("pattern", "format", "title", "description", "$ref", "$schema", "$id", "$comment"), _is_text),
    **dict.fromkeys(("enum", "examples"), _is_list),
    **dict.fromkeys(("uniqueItems", "nullable"), lambda value: isinstance(value, bool)),
    "items": lambda value: _is_schema(value) or _is_list_of_schemas(value),
    "type": _is_type,
    "required": _are_names,
    "multipleOf": lambda value: is_number(value) and value > 0,
}
