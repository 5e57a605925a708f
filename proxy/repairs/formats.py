"""What a request asks of its answer's form, in whichever engine's words, and how to ask for it in others.

    response_format, text.format (OpenAI)   guided_json … (vLLM before 0.12)   structured_outputs (vLLM)
    regex, ebnf (sglang)                    ──►  Constraint: its kind, its place, what it holds

Source: OpenAI API reference; vLLM protocol.py; sglang 0.5.23 protocol.py; llama.cpp and llama-cpp-python take the
schema of a `json_object` beside its type.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

import msgspec

from proxy.body import Body
from proxy.fields import ABSENT, Path, Place, first
from proxy.matching.values import is_same
from proxy.repairs.places import write

Kind = Literal["json_schema", "json_object", "regex", "grammar", "choice", "structural_tag", "text", "other"]
Dialect = Literal["openai", "sglang", "vllm", "vllm_guided"]

ANY_OBJECT: Final[Mapping[str, Any]] = {"type": "object"}
SCHEMA_NAME: Final = "answer"  # OpenAI requires one
FORMATS: Final[tuple[Place, ...]] = (("response_format",), ("text", "format"))
_SPELLINGS: Final[Mapping[Place, Kind]] = {
    ("guided_json",): "json_schema",
    ("guided_json_object",): "json_object",
    ("guided_regex",): "regex",
    ("guided_grammar",): "grammar",
    ("guided_choice",): "choice",
    ("structured_outputs", "json"): "json_schema",
    ("structured_outputs", "json_object"): "json_object",
    ("structured_outputs", "regex"): "regex",
    ("structured_outputs", "grammar"): "grammar",
    ("structured_outputs", "choice"): "choice",
    ("regex",): "regex",
    ("ebnf",): "grammar",
    ("structural_tag",): "structural_tag",
}
_DIALECTS: Final[Mapping[Dialect, Mapping[Kind, Place]]] = {
    "openai": {},
    "sglang": {"regex": ("regex",), "grammar": ("ebnf",), "choice": ("regex",)},
    "vllm": {
        "regex": ("structured_outputs", "regex"),
        "grammar": ("structured_outputs", "grammar"),
        "choice": ("structured_outputs", "choice"),
    },
    "vllm_guided": {"regex": ("guided_regex",), "grammar": ("guided_grammar",), "choice": ("guided_choice",)},
}
_SPECIAL: Final = re.compile(r"[\\^$.|?*+()\[\]{}]")


class Constraint(msgspec.Struct, frozen=True):
    """One thing asked of the form. `holds` is the schema, pattern, grammar or choices; None where there is none."""

    kind: Kind
    place: Place
    holds: Any = None
    is_rough: bool = False  # of json: not in OpenAI's way, or without a schema

    @property
    def is_format(self) -> bool:
        """Whether it stands in OpenAI's own field."""
        return self.place in FORMATS

    @property
    def is_any_object(self) -> bool:
        """Whether it asks for no more than a JSON object."""
        return self.kind == "json_object" or (
            self.kind == "json_schema" and (self.holds is None or is_same(self.holds, ANY_OBJECT))
        )


def constraints(body: Body) -> Iterator[Constraint]:
    """Yield what the body asks of the answer's form."""
    for place in FORMATS:
        value = first(body, Path("", place))
        if isinstance(value, dict):
            yield _format(place, value)
    for place, kind in _SPELLINGS.items():
        value = first(body, Path("", place))
        if value is not ABSENT and value is not None and value is not False:
            yield Constraint(kind, place, _decoded(value) if kind == "json_schema" else value)


def _format(place: Place, value: Mapping[str, Any]) -> Constraint:
    named = value.get("type")
    if named == "json_schema":
        schema = _schema_of(value)
        return Constraint("json_schema", place, schema, is_rough=schema is None)
    if named == "json_object":
        schema = value.get("schema")
        return Constraint("json_object" if schema is None else "json_schema", place, schema, is_rough=True)
    return Constraint("text" if named == "text" else "other", place)


def _schema_of(value: Mapping[str, Any]) -> Any:
    inner = value.get("json_schema")
    held = inner.get("schema") if isinstance(inner, dict) else None
    return value.get("schema") if held is None else held


def _decoded(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError):  # no schema; it stays as it is
        return value


def respelt(body: Body, dialect: Dialect, path: str) -> Body:
    """Return the body with each constraint in the dialect's own field, where it has one that is free."""
    for constraint in list(constraints(body)):
        target = _target(constraint, dialect, path)
        if target is None or target == constraint.place or not _is_free(body, target):
            continue
        value = _value(constraint, target)
        written = write(body, target, value) if value is not None else None
        body = without(written, constraint.place) if written is not None else body
    return body


def _target(constraint: Constraint, dialect: Dialect, path: str) -> Place | None:
    if constraint.is_format:
        return None
    if constraint.kind in ("json_schema", "json_object"):
        return FORMATS[path.endswith("/responses")]
    return _DIALECTS[dialect].get(constraint.kind)


def _is_free(body: Body, place: Place) -> bool:
    value = first(body, Path("", place))
    return value is ABSENT or value is None or (isinstance(value, dict) and value.get("type") == "text")


def _value(constraint: Constraint, target: Place) -> Any:
    """Return what stands for the constraint at the target; None where nothing can."""
    if constraint.kind == "json_object":
        return {"type": "json_object"}
    if constraint.kind == "json_schema":
        return schema_format(target, constraint.holds) if isinstance(constraint.holds, dict) else None
    if constraint.kind == "choice" and target == ("regex",):
        return _either(constraint.holds)
    return constraint.holds


def _either(choices: Any) -> str | None:
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, str) for choice in choices):
        return None
    return f"({'|'.join(_SPECIAL.sub(_escaped, choice) for choice in choices)})"


def _escaped(match: re.Match[str]) -> str:
    return f"\\{match[0]}"


def schema_format(place: Place, schema: Any) -> dict[str, Any]:
    """Return the format that asks for JSON of a schema, as the field at `place` has it."""
    named = {"name": SCHEMA_NAME, "schema": schema}
    return {"type": "json_schema", "json_schema": named} if place == FORMATS[0] else {"type": "json_schema"} | named


def without(body: Body, place: Place) -> Body:
    """Return the body without the constraint at `place`, nor the object that held nothing else."""
    body = body.cut(place)
    holder = place[:-1]
    return body.cut(holder) if holder and first(body, Path("", holder)) == {} else body
