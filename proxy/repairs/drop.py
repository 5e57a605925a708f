"""Remove fields.

## What it does

Removes each field that the list names, where it is. An entry that is a mapping of a path to a test removes the field
only where the test holds for its value; with wildcards that is asked at each place. Entries run in their order.

## When a backend needs it

It refuses a field that it doesn't know (`store`, `metadata`), or one that is null, or one that is only legal together
with another (`tool_choice` with empty `tools`).

## What the client loses

What the field asked for; the sentence names the fields, never their values. Where a backend takes an absent field for
the same as the one removed (null for "not set"), the rule says so with `loses: nothing`.

## Options

A list. Each entry is a path (`store`, `messages[*].name`, `*`), or a mapping of paths to tests. Instead of a test,
`{where: {relative path: test}}` asks the element that the path's last wildcard names (without a wildcard: the body).

## Example

```yaml
drop:
  - store
  - tools: {empty: true}
  - "*": null
  - messages[*].id: {where: {role: {in: [user, system]}}}
```
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from msgspec import structs
from pydantic import AfterValidator, Field, RootModel, model_validator

from proxy.body import Body
from proxy.fields import ANY, Path, Place, parse_path
from proxy.matching import Test, compile_test
from proxy.repairs.card import Act, Card, Change, Draft, FrameAct, Target
from proxy.repairs.chains import Link, refuse_chains
from proxy.repairs.kinds import ALL_KINDS, Kinds
from proxy.repairs.losses import fields_lost
from proxy.repairs.options import STRICT, FieldPath, Json, Options, ShortForm, Where, check_test, misfit
from proxy.repairs.places import Condition, compile_where, present
from proxy.repairs.writes import cut_all
from proxy.turns import MESSAGES


class Elements(Options):
    """Which elements an entry is for."""

    where: Where = Field(description="Tests on the element, by path relative to it; all must hold.")


def has_where(raw: Any) -> bool:
    """Return whether an entry asks the element, not the field's own value."""
    return isinstance(raw, dict) and set(raw) == {"where"}


def _condition(raw: Any) -> Any:
    if has_where(raw):
        return Elements.model_validate(raw).model_dump()
    return check_test(raw)


def _droppable(text: str) -> str:
    if isinstance(parse_path(text).steps[-1], int):
        why = "each run would remove another element: use keep with where, or clamp with max_length"
        raise misfit([((), why)], text)
    return text


Entry = Annotated[
    dict[Annotated[FieldPath, AfterValidator(_droppable)], Annotated[Json, AfterValidator(_condition)]],
    Field(min_length=1),
    ShortForm(lambda raw: {raw: {"exists": True}} if isinstance(raw, str) else raw, {"type": "string"}),
]


class DropOptions(RootModel[list[Entry]]):
    """The fields to remove."""

    model_config = STRICT

    root: list[Entry] = Field(min_length=1, description="Paths, or mappings of paths to tests.")

    @model_validator(mode="after")
    def _has_no_chain(self) -> DropOptions:
        refuse_chains(
            [
                Link.of((index, text), text, raw, raw["where"] if has_where(raw) else None)
                for index, entry in enumerate(self.root)
                for text, raw in entry.items()
            ]
        )
        return self


class Removal(msgspec.Struct, frozen=True):
    """One entry, compiled."""

    path: Path
    test: Test
    kinds: Kinds
    where: Condition | None

    @classmethod
    def of(cls, text: str, raw: Any) -> Removal:
        """Return the entry of a path and the test, or the `where`, that goes with it."""
        test, where = ({"exists": True}, raw["where"]) if has_where(raw) else (raw, None)
        return cls(parse_path(text), compile_test(test), Kinds.of(test), compile_where(where))

    @property
    def is_of_top(self) -> bool:
        """Whether the entry asks a top-level field for no more than its own value."""
        return len(self.path.steps) == 1 and (self.path.top is not None or self.where is None)

    @property
    def is_unconditional(self) -> bool:
        """Whether the entry removes a top-level field whatever its value is."""
        return self.is_of_top and self.path.top is not None and self.where is None and self.kinds.sure == ALL_KINDS

    def places(self, body: Body) -> Iterator[tuple[str, Place]]:
        """Yield each place to be removed, with the name it goes by."""
        if self.is_of_top:
            yield from ((name if self.path.top is None else self.path.text, (name,)) for name in self._names(body))
            return
        for slot in present(body, self.path, self.where):
            if self.test(slot.value, body):
                yield str(slot.place[0]) if self.path.steps == (ANY,) else self.path.text, slot.place

    def _names(self, body: Body) -> Iterator[str]:
        """Yield the top-level fields to be removed; what its kind says enough of is not decoded."""
        top = self.path.top
        if self.where is None or self.where(body, body):
            for name in body if top is None else [top] if top in body else []:
                kind = body.kind(name)
                if kind in self.kinds.sure or (kind in self.kinds.possible and self.test(body[name], body)):
                    yield name


def build(options: DropOptions) -> Act:
    """Return the act."""
    removals = [Removal.of(text, raw) for entry in options.root for text, raw in entry.items()]
    if all(removal.is_unconditional for removal in removals):
        return _dropping([str(removal.path.top) for removal in removals], [str(removal.path) for removal in removals])

    def act(draft: Draft) -> Change | None:
        body, names = draft.body, []
        for removal in removals:
            doomed = list(removal.places(body))
            body = cut_all(body, [place for _, place in doomed]) if doomed else body
            names += [name for name, _ in doomed]
        return Change(structs.replace(draft, body=body), loses=fields_lost(names)) if names else None

    return act


def _dropping(names: list[str], texts: list[str]) -> Act:
    """Return the act that removes top-level fields whatever they are: no place has to be found for that."""
    told = dict(zip(names, texts, strict=True))
    alone = {name: fields_lost([text]) for name, text in told.items()}

    def act(draft: Draft) -> Change | None:
        body = draft.body
        doomed = [name for name in told if name in body]
        if not doomed:
            return None
        loses = alone[doomed[0]] if len(doomed) == 1 else fields_lost([told[name] for name in doomed])
        return Change(structs.replace(draft, body=body.put_all({}, without=doomed)), loses)

    return FrameAct(act) if MESSAGES not in told else act


def targets(options: DropOptions) -> list[Target]:
    """Return what the entries work on."""
    return [_target(text, raw) for entry in options.root for text, raw in entry.items()]


def _target(text: str, raw: Any) -> Target:
    return Target(parse_path(text), raw["where"]) if has_where(raw) else Target(parse_path(text), test=raw)


CARD = Card(
    name="drop",
    options=DropOptions,
    build=build,
    is_exact=False,
    loses="the fields that are removed",
    doc=__doc__,
    targets=targets,
)
