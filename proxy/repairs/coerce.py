"""Say a value in another type.

## What it does

Writes the value that the path names as the type asked for, where it can be said so, and leaves it alone where it can't.

| to | from |
|---|---|
| `string` | null → `""`; 2 → `"2"`; true → `"true"` |
| `number` | `"0.5"` → 0.5 |
| `integer` | `"2"` → 2; 2.0 → 2; 1.5 only with `round` |
| `boolean` | 1, 0; `"true" "false" "1" "0" "yes" "no"` in any case |
| `array` | x → `[x]`; null stays |
| `object` | the text of an object → the object; with `key`, x → `{key: x}`; null stays |
| `json` | an object → its JSON text; null and blank text → `"{}"`; with `key`, x → the text of `{key: x}` |

A list of one scalar counts as the scalar where a scalar is asked for.

## When a backend needs it

It is strict about types where OpenAI's API, or the client's library, is lax (`n: "2"`, `stop: "x"`, `content: null`,
tool arguments that are no JSON text).

## What the client loses

Nothing: the value means the same. With `round` the fraction, with `allowed` the other characters, with
`otherwise: empty` the text that could not be read.

## Options

A mapping of paths to types, or to `{to: type, …}` with `round: floor | nearest` (integer), `key` (object, json),
`allowed: "a-zA-Z0-9_-"` and `fill: "_"` (string: every other character becomes the fill), `otherwise: leave | empty`
(json: text that spells no object becomes `"{}"`), `where: {relative path: test}` (only in elements for which the tests
hold: the element that the path's last wildcard names; without a wildcard the body).

## Example

```yaml
coerce:
  n: {to: integer, round: floor}
  stop: array
  messages[*].tool_calls[*].function.arguments: json
  messages[*].content: {to: string, where: {tool_calls: {exists: false}}}
```
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal

import msgspec
from pydantic import Field, RootModel, model_validator

from proxy.body import Body
from proxy.fields import Path, Place, parse_path
from proxy.matching import Problem
from proxy.repairs import conversions
from proxy.repairs.card import Act, Card, Target
from proxy.repairs.chains import Link, may_meet, refuse_chains, refuse_crossing
from proxy.repairs.edits import in_turn
from proxy.repairs.losses import replaced
from proxy.repairs.options import STRICT, FieldPath, Options, ShortForm, Where, misfit
from proxy.repairs.places import Condition, compile_where, present
from proxy.repairs.values import is_identical
from proxy.repairs.writes import put_all

Type = Literal["string", "number", "integer", "boolean", "array", "object", "json"]

TYPES: Final = ("string", "number", "integer", "boolean", "array", "object", "json")
_HOLDERS: Final = ("array", "object")
_ONLY_FOR: Final = {
    "round": ("integer",),
    "key": ("object", "json"),
    "allowed": ("string",),
    "otherwise": ("json",),
}


class Coercion(Options):
    """The type of one field, and how to get there."""

    to: Type = Field(description="The type asked for.")
    round: Literal["floor", "nearest"] | None = Field(default=None, description="Of an integer: which way (x.5 is up).")
    key: str | None = Field(default=None, description="Of an object or json: the name under which to put the value.")
    allowed: str | None = Field(default=None, min_length=1, description="Of a string: its characters, as a-z and such.")
    fill: str = Field(default="_", description="Of a string: what stands for each character that is not allowed.")
    otherwise: Literal["leave", "empty"] = Field(default="leave", description="Of json: what unreadable text becomes.")
    where: Where | None = Field(default=None, description="Tests on the element, by path relative to it.")

    @model_validator(mode="after")
    def _fits_together(self) -> Coercion:
        problems: list[Problem] = [
            ((name,), f"{name} goes with {' or '.join(types)}, not with {self.to}")
            for name, types in _ONLY_FOR.items()
            if getattr(self, name) not in (None, "leave") and self.to not in types
        ]
        if self.allowed is not None and foreign(self.allowed).search(self.fill):
            problems.append((("fill",), f"{self.fill!r} is not made of allowed characters"))
        if self.key is not None and self.otherwise == "empty":
            problems.append((("otherwise",), "with key nothing is unreadable: say one of them"))
        if problems:
            raise misfit(problems)
        return self


_SHORT = ShortForm(lambda raw: {"to": raw} if isinstance(raw, str) else raw, {"enum": list(TYPES)})


class CoerceOptions(RootModel[dict[FieldPath, Annotated[Coercion, _SHORT]]]):
    """The types."""

    model_config = STRICT

    root: dict[FieldPath, Annotated[Coercion, _SHORT]] = Field(min_length=1, description="Field paths and their types.")

    @model_validator(mode="after")
    def _has_no_chain(self) -> CoerceOptions:
        refuse_chains([Link.of((text,), text, None, coercion.where) for text, coercion in self.root.items()])
        refuse_crossing(list(self.root), may_nest=True)
        _refuse_nesting(self.root)
        return self


def _refuse_nesting(options: dict[str, Coercion]) -> None:
    """Let what holds a coerced field only be made a list or an object, and before the field is looked at."""
    outer: list[Path] = []
    problems: list[Problem] = []
    for path in map(parse_path, options):
        met = [other for other in outer if may_meet(other, path)]
        if any(len(other.steps) > len(path.steps) or options[other.text].to not in _HOLDERS for other in met):
            problems.append(((path.text,), f"{met[0].text!r} is changed there too: make two repairs of it"))
        outer.append(path)
    if problems:
        raise misfit(problems)


def foreign(allowed: str) -> re.Pattern[str]:
    """Return what matches a character that is not allowed.

    Raises: ValidationError where that is no set of characters.
    """
    try:
        return conversions.foreign_characters(allowed)
    except ValueError as error:
        raise misfit([(("allowed",), str(error))], allowed) from error


Conversion = Callable[[Any], tuple[Any, bool]]
"""A value → the value in its new type, and whether it still means the same."""


def conversion(coercion: Coercion) -> Conversion:
    """Return the conversion that the options ask for."""
    if coercion.to == "integer":
        return lambda value: _integer(value, coercion.round)
    if coercion.to == "string":
        return _string(coercion)
    if coercion.to == "json":
        return lambda value: _json(value, coercion)
    if coercion.to == "object":
        return lambda value: (conversions.to_object(value, coercion.key), True)
    convert = {
        "number": conversions.to_number,
        "boolean": conversions.to_boolean,
        "array": conversions.to_array,
    }[coercion.to]
    return lambda value: (convert(value), True)


def _integer(value: Any, rounding: str | None) -> tuple[Any, bool]:
    rounded, exact = conversions.to_integer(value, rounding), conversions.to_integer(value)
    return rounded, is_identical(rounded, exact)


def _string(coercion: Coercion) -> Conversion:
    if coercion.allowed is None:
        return lambda value: (conversions.to_string(value), True)
    pattern = foreign(coercion.allowed)

    def convert(value: Any) -> tuple[Any, bool]:
        text = conversions.to_string(value)
        clean = pattern.sub(lambda _: coercion.fill, text) if isinstance(text, str) else text
        return clean, clean is text or clean == text

    return convert


def _json(value: Any, coercion: Coercion) -> tuple[Any, bool]:
    new = conversions.to_json(value, coercion.key)
    if coercion.otherwise == "empty" and not conversions.is_object_text(new):
        return "{}", False
    return new, True


class Coercer(msgspec.Struct, frozen=True):
    """One entry, compiled."""

    path: Path
    convert: Conversion
    where: Condition | None

    @classmethod
    def of(cls, text: str, coercion: Coercion) -> Coercer:
        """Return the entry of a path and its type."""
        return cls(parse_path(text), conversion(coercion), compile_where(coercion.where))

    def run(self, body: Body) -> tuple[Body, str | None]:
        """Return the body with the values in their type, and what that loses; the same body where they were."""
        values: dict[Place, Any] = {}
        lossy: list[tuple[Any, Any]] = []
        for slot in present(body, self.path, self.where):
            new, is_exact = self.convert(slot.value)
            if not is_identical(slot.value, new):
                values[slot.place] = new
                lossy += [] if is_exact else [(slot.value, new)]
        return put_all(body, values), replaced(self.path.text, lossy)


def build(options: CoerceOptions) -> Act:
    """Return the act."""
    return in_turn([Coercer.of(text, coercion).run for text, coercion in options.root.items()])


def targets(options: CoerceOptions) -> list[Target]:
    """Return what the entries work on."""
    return [Target(parse_path(text), coercion.where) for text, coercion in options.root.items()]


CARD = Card(
    name="coerce",
    options=CoerceOptions,
    build=build,
    is_exact=None,
    loses="nothing, but what rounding, allowed or otherwise takes away",
    doc=__doc__,
    targets=targets,
)
