"""References of a JSON Schema, put in place: `{"$ref": "#/$defs/Node"}` becomes what it points to.

A definition that holds itself can't be written out: after so many turns it is cut to its type. So is what would make
a schema grow beyond bounds (definitions that each hold the next one twice).
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import unquote

from proxy.fields import ABSENT
from proxy.repairs.schemas import Pass, Schema, Tell, with_subschemas

MAX_DEPTH: Final = 24  # levels of schemas in which references are still followed
MAX_REFERENCES: Final = 1000
_DEFINITIONS: Final = ("$defs", "definitions")


def inlined(turns: int) -> Pass:
    """Return the pass that writes references out; a definition may stand inside itself `turns` - 1 times."""
    return lambda schema, tell: _Inlining(schema, turns, tell).run()


class _Inlining:
    """One schema's references, counted."""

    def __init__(self, root: Schema, turns: int, tell: Tell) -> None:
        self._root = root
        self._turns = turns
        self._tell = tell
        self._left = MAX_REFERENCES

    def run(self) -> Schema:
        return self._expanded(_bare(self._root), ("#",))

    def _expanded(self, schema: Schema, trail: tuple[str, ...], depth: int = 0) -> Schema:
        pointer = schema.get("$ref")
        if not isinstance(pointer, str):
            return self._inside(schema, trail, depth)
        beside = {word: value for word, value in schema.items() if word != "$ref"}
        target = _pointed(self._root, pointer)
        if not isinstance(target, dict):
            if target is not True:
                self._tell("references")
            return self._inside(beside, trail, depth)
        self._left -= 1
        if trail.count(pointer) >= self._turns or depth > MAX_DEPTH or self._left < 0:
            self._tell("recursion")
            told = {word: target[word] for word in ("type", "description") if word in target}
            return told | self._inside(beside, trail, depth)
        return self._expanded(_bare(target), (*trail, pointer), depth + 1) | self._inside(beside, trail, depth)

    def _inside(self, schema: Schema, trail: tuple[str, ...], depth: int) -> Schema:
        return with_subschemas(_bare(schema), lambda inner: self._expanded(inner, trail, depth + 1))


def _bare(schema: Schema) -> Schema:
    if not any(word in schema for word in _DEFINITIONS):
        return schema
    return {word: value for word, value in schema.items() if word not in _DEFINITIONS}


def _pointed(root: Schema, pointer: str) -> Any:
    """Return what a pointer into the schema itself names, or ABSENT. Source: RFC 6901 §4 and §6."""
    if pointer != "#" and not pointer.startswith("#/"):
        return ABSENT
    value: Any = root
    for part in unquote(pointer).split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, list) and name.isascii() and name.isdigit() and len(name) < 5 and int(name) < len(value):
            value = value[int(name)]
        elif isinstance(value, dict) and name in value:
            value = value[name]
        else:
            return ABSENT
    return value
