"""Replace scalar values by a table.

## What it does

Looks each value that the path names up in the table and writes what the table has for it. Text, numbers, booleans and
null are looked up, type-strict: `true` is not `1`, `"1"` is not `1`. The key `*` is for any other scalar, save
those that the table itself gives. Lists, objects and absent fields are left alone.

## When a backend needs it

It knows other words for the same thing (`role: developer`), or fewer (`reasoning_effort: max`).

## What the client loses

The difference between the two words; the sentence says old and new where the old one stands in the table.

## Options

A mapping of paths to tables; a table maps old values to new ones, which may be any JSON.

## Example

```yaml
map:
  messages[*].role: {developer: system}
  reasoning_effort: {minimal: low, max: high}
  tool_choice: {any: required, true: auto, "*": auto}
```
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from pydantic import AfterValidator, Field, RootModel, model_validator

from proxy.body import Body
from proxy.fields import ABSENT, Path, Place, parse_path
from proxy.matching import Problem, flow
from proxy.repairs.card import EXISTS, Act, Card, Target
from proxy.repairs.chains import refuse_crossing
from proxy.repairs.edits import in_turn
from proxy.repairs.losses import becomes, join_losses, plain, word
from proxy.repairs.options import STRICT, FieldPath, Json, misfit
from proxy.repairs.places import present
from proxy.repairs.values import is_identical
from proxy.repairs.writes import put_all

OTHER: Final = "*"

Key = tuple[str, Any]
"""A scalar with its JSON type, so that true and 1 are two keys."""


def key_of(value: Any) -> Key | None:
    """Return what a value is looked up by; None for lists and objects."""
    if value is None:
        return "null", None
    if isinstance(value, bool):
        return "boolean", value
    if isinstance(value, int | float):
        return "number", value
    return ("string", value) if isinstance(value, str) else None


def _no_chain(table: dict[Any, Any]) -> dict[Any, Any]:
    known = {key_of(old): new for old, new in table.items() if old != OTHER}
    problems: list[Problem] = []
    for old, new in table.items():
        further = known.get(key_of(new), new) if key_of(new) else new
        if not is_identical(further, new):
            why = f"{flow(new)} is itself replaced by {flow(further)}: a second run would change it again"
            problems.append(((old,), why))
    if problems:
        raise misfit(problems, table)
    return table


def _scalar(value: Any) -> Any:
    if key_of(value) is None:
        raise misfit([((), f"{value!r} is no text, number, boolean or null")], value)
    return value


Table = Annotated[
    dict[Annotated[Json, AfterValidator(_scalar)], Json],
    Field(min_length=1),
    AfterValidator(_no_chain),
]


class MapOptions(RootModel[dict[FieldPath, Table]]):
    """The tables."""

    model_config = STRICT

    root: dict[FieldPath, Table] = Field(min_length=1, description="Field paths and the tables for their values.")

    @model_validator(mode="after")
    def _maps_each_place_once(self) -> MapOptions:
        refuse_crossing(list(self.root))
        return self


class Mapper(msgspec.Struct, frozen=True):
    """One entry, compiled."""

    path: Path
    known: dict[Key | None, Any]
    other: Any
    given: frozenset[Key | None]

    @classmethod
    def of(cls, text: str, table: dict[Any, Any]) -> Mapper:
        """Return the entry of a path and its table."""
        known = {key_of(old): new for old, new in table.items() if old != OTHER}
        other = table.get(OTHER, ABSENT)
        return cls(parse_path(text), known, other, frozenset(map(key_of, table.values())))

    def run(self, body: Body) -> tuple[Body, str | None]:
        """Return the body with the values replaced, and what that loses; the same body where none was."""
        values: dict[Place, Any] = {}
        sentences: list[str] = []
        for slot in present(body, self.path):
            new = self._new(slot.value)
            if new is not ABSENT and not is_identical(slot.value, new):
                values[slot.place] = new
                sentences.append(self._loses(slot.value, new))
        return put_all(body, values), join_losses(sentences)

    def _new(self, value: Any) -> Any:
        key = key_of(value)
        if key is None:
            return ABSENT
        return self.known.get(key, ABSENT if key in self.given else self.other)

    def _loses(self, old: Any, new: Any) -> str:
        name = plain(self.path.text)
        if key_of(new) is None:
            return f"{name} replaced"
        return f"{name} {becomes(old, new)}" if key_of(old) in self.known else f"{name} replaced by {word(new)}"


def build(options: MapOptions) -> Act:
    """Return the act."""
    return in_turn([Mapper.of(text, table).run for text, table in options.root.items()])


def targets(options: MapOptions) -> list[Target]:
    """Return what the entries work on."""
    return [Target(parse_path(text), test=_met(table)) for text, table in options.root.items()]


def _met(table: dict[Any, Any]) -> Any:
    return EXISTS if OTHER in table else {"in": list(table)}


CARD = Card(
    name="map",
    options=MapOptions,
    build=build,
    is_exact=False,
    loses="the difference between the old value and the new",
    doc=__doc__,
    targets=targets,
)
