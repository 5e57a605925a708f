"""The policy file's JSON Schema, for editors: the strict types, the language's grammar, the repairs with their options.

A variable may stand for any number, boolean or word that is checked, and in a repair a capture too; what only the
loader can tell (regular expressions, ids, captures that nobody captures) is left to `mendproxy check`.

Source: JSON Schema draft 2020-12.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel, RootModel

from proxy.policy.grammar_json import Schema, either, grammar, one_or_more, ref
from proxy.policy.presets import preset_names, preset_text
from proxy.policy.schema import PolicyFile, PresetFile
from proxy.policy.urls import STANDINS
from proxy.policy.yaml_text import parse_yaml
from proxy.repairs import REPAIRS
from proxy.repairs.card import Card

_DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"
_TEST: Final = "test"  # the format by which options say that a value is a test of the policy language
_CAPTURE: Final[Schema] = {
    "description": "What the regular expression of `on_error` captured, {name}; or a variable, ${NAME}.",
    "type": "string",
    "pattern": r"\{[A-Za-z_][A-Za-z0-9_]*(:-[^}]*)?\}",
}


_URL: Final = rf"^(https?://[^/?#@\s\\]+[^?#\s\\]*|standin://({'|'.join(STANDINS)})/*)$|\$\{{"


def schema_text() -> str:
    """Return the schema of a policy file as this version reads it, as JSON text."""
    schema = policy_schema(REPAIRS, preset_names(), (rule for name in preset_names() for rule in _rule_ids(name)))
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _rule_ids(preset: str) -> Iterator[str]:
    for rule in parse_yaml(preset_text(preset), preset).value["rules"]:
        yield f"{preset}/{rule['id']}"


def policy_schema(repairs: Mapping[str, Card], presets: Iterable[str], rule_ids: Iterable[str] = ()) -> Schema:
    """Return the schema of a policy file; `rule_ids` are those of the presets, offered where one is switched off."""
    schema = PolicyFile.model_json_schema()
    defs = schema.pop("$defs") | {"PresetFile": _without_defs(PresetFile.model_json_schema())}
    defs = {name: _open(each, ref("Variable")) for name, each in defs.items()}
    _say_what_rules_hold(defs["Rule"])
    _refuse_empty_lists(defs["OnError"])
    names = {"enum": sorted(presets)}
    defs["Backend"]["properties"]["presets"] |= {"items": either(names, ref("Variable")), "uniqueItems": True}
    defs["Backend"]["properties"]["url"]["pattern"] = _URL
    top = _open(schema, ref("Variable"))
    top["properties"]["version"] = {"description": top["properties"]["version"]["description"], "const": 1}
    top["properties"]["backends"]["additionalProperties"] = False
    known = sorted(rule_ids)
    top["properties"]["disable"]["items"] = either(*([{"enum": known}] if known else []), {"type": "string"})
    return {"$schema": _DRAFT, **top, "$defs": dict(sorted({**defs, **grammar(), **_repairs(repairs)}.items()))}


def _without_defs(schema: Schema) -> Schema:
    return {key: value for key, value in schema.items() if key != "$defs"}


def _say_what_rules_hold(rule: Schema) -> None:
    fields = rule["properties"]
    fields["when"] = {"description": fields["when"]["description"], **either(ref("Matcher"), {"type": "null"})}
    fields["repair"] = {"description": fields["repair"]["description"], **one_or_more(ref("Repair"))}
    rule["dependentRequired"] = {"learn": ["on_error"]}


def _refuse_empty_lists(on_error: Schema) -> None:
    for field in ("status", "stream"):
        lists = [each for each in on_error["properties"][field]["anyOf"] if each.get("type") == "array"]
        lists[0]["minItems"] = 1


def _repairs(repairs: Mapping[str, Card]) -> dict[str, Schema]:
    """Return the definition of a repair, of its options, and of what a variable or capture may stand for in these."""
    defs: dict[str, Schema] = {"Capture": _CAPTURE}
    for card in repairs.values():
        options = card.options.model_json_schema(ref_template=f"#/$defs/{card.name}.{{model}}")
        inner = options.pop("$defs", {})
        defs |= {f"{card.name}.{name}": _open(schema, ref("Capture")) for name, schema in inner.items()}
        defs[card.name] = _open(options, ref("Capture"))
    defs["Repair"] = {
        "description": "One repair and its options.",
        "oneOf": [_entry(card) for card in repairs.values()],
    }
    return defs


def _entry(card: Card) -> Schema:
    return {
        "title": card.name,
        "type": "object",
        "properties": {card.name: {"description": _about(card), **_options(card)}},
        "required": [card.name],
        "additionalProperties": False,
    }


def _about(card: Card) -> str:
    return (card.doc.strip().splitlines() or [card.name])[0]


def _options(card: Card) -> Schema:
    """Return what may stand after the repair's name: where options have names of their own, also nothing."""
    if issubclass(card.options, RootModel) or _has_required(card.options):
        return ref(card.name)
    return either(ref(card.name), {"type": "null"})


def _has_required(options: type[BaseModel]) -> bool:
    return any(field.is_required() for field in options.model_fields.values())


def _open(schema: Schema, stand_in: Schema) -> Schema:
    """Return the schema with `stand_in` allowed wherever a scalar is checked, without the titles that say nothing."""
    return _with_stand_in(_opened(schema, stand_in), stand_in)


def _opened(schema: Schema, stand_in: Schema) -> Schema:
    if schema.get("format") == _TEST:
        return {key: value for key, value in schema.items() if key == "description"} | ref("Test")
    return {key: _inside(key, value, stand_in) for key, value in schema.items() if key != "title"}


def _inside(key: str, value: Any, stand_in: Schema) -> Any:
    """Return what stands under a keyword, opened; of alternatives only what is inside of each."""
    if key in ("properties", "patternProperties"):
        return {name: _open(each, stand_in) for name, each in value.items()}
    if key in ("items", "additionalProperties") and isinstance(value, dict):
        return _open(value, stand_in)
    if key in ("anyOf", "oneOf", "allOf"):
        return [_opened(each, stand_in) for each in value]
    return value


def _with_stand_in(schema: Schema, stand_in: Schema) -> Schema:
    alternatives = schema.get("anyOf")
    if alternatives is not None:
        return {**schema, "anyOf": [*alternatives, stand_in]} if any(map(_is_checked, alternatives)) else schema
    if not _is_checked(schema):
        return schema
    about: Schema = {key: schema[key] for key in ("description", "default") if key in schema}
    return {**about, "anyOf": [{key: value for key, value in schema.items() if key not in about}, stand_in]}


def _is_checked(schema: Schema) -> bool:
    """Return whether the schema is one of scalars of which not every string is one."""
    if schema.get("type") == "string":
        return "pattern" in schema or "enum" in schema
    return schema.get("type") in ("integer", "number", "boolean") or "enum" in schema or "const" in schema
