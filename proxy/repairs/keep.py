"""Keep only some fields of an object, or some elements of a list.

## What it does

With a list of names, removes every other field of each object that the path names (`.` is the body). With `keys`, of
each object the fields whose names fail the test. With `where`, of each list the elements, and of each object the
values, for which not all tests hold. A value of another type is left alone.

## When a backend needs it

It refuses what it doesn't know (`Extra inputs are not permitted`), or knows only some kinds of an element.

## What the client loses

What is removed: the sentence names the fields, or how many of how many elements went.

## Options

A mapping of paths to a list of names, or `{keys: test}`, or `{where: {relative path: test}}`, in which `.` is the
element itself.

## Example

```yaml
keep:
  ".": [model, messages, temperature, max_tokens, stream, tools, tool_choice, logit_bias]
  messages[*]: [role, content, tool_calls, tool_call_id]
  tools: {where: {type: function}}
  logit_bias: {keys: {matches: "^[0-9]+$"}}
```
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import msgspec
from pydantic import Field, RootModel, model_validator

from proxy.body import Body
from proxy.fields import ANY, Path, Place, find, parse_path
from proxy.matching import compile_test
from proxy.repairs.card import Act, Card
from proxy.repairs.chains import Link, refuse_chains
from proxy.repairs.edits import in_turn
from proxy.repairs.losses import fields_lost, plain
from proxy.repairs.options import STRICT, AnyPath, Options, RawTest, ShortForm, Where, misfit, references
from proxy.repairs.places import compile_where
from proxy.repairs.writes import cut_all


class Keeping(Options):
    """What is kept of one object or list."""

    names: list[str] | None = Field(default=None, description="The names of the fields to keep.")
    keys: RawTest | None = Field(default=None, description="A test on the names of the fields to keep.")
    where: Where | None = Field(default=None, description="Tests on each element to keep, by path relative to it.")

    @model_validator(mode="after")
    def _says_one(self) -> Keeping:
        if len(self.model_fields_set) != 1:
            raise misfit([((), "say one of names, keys and where")])
        return self


_SHORT = ShortForm(
    lambda raw: {"names": raw} if isinstance(raw, list) else raw, {"type": "array", "items": {"type": "string"}}
)


class KeepOptions(RootModel[dict[AnyPath, Annotated[Keeping, _SHORT]]]):
    """What is kept."""

    model_config = STRICT

    root: dict[AnyPath, Annotated[Keeping, _SHORT]] = Field(
        min_length=1, description="Paths of objects and lists, and what is kept of them."
    )

    @model_validator(mode="after")
    def _has_no_chain(self) -> KeepOptions:
        refuse_chains([_link(text, keeping) for text, keeping in self.root.items()])
        return self


def _link(text: str, keeping: Keeping) -> Link:
    members = Path(text, (*parse_path(text).steps, ANY))
    looked_up = [parse_path(path) for path in references([keeping.keys, keeping.where])]
    beside = [Path(path, (*members.steps, *parse_path(path).steps)) for path in keeping.where or {}]
    return Link((text,), members, looked_up, beside)


IsKept = Callable[[Any, Any, Any], bool]
"""(object or list, key or index in it, root) → whether the member stays."""


class Keeper(msgspec.Struct, frozen=True):
    """One entry, compiled."""

    path: Path
    is_kept: IsKept
    counts: bool

    @classmethod
    def of(cls, text: str, keeping: Keeping) -> Keeper:
        """Return the entry of a path and what is kept there."""
        return cls(parse_path(text), _is_kept(keeping), counts=keeping.where is not None)

    def run(self, body: Body) -> tuple[Body, str | None]:
        """Return the body with what is kept, and what that loses; the same body where that was all."""
        doomed: list[Place] = []
        total = 0
        for place, holder in find(body, self.path):
            keys = self._keys(holder)
            total += len(keys)
            doomed += [(*place, key) for key in keys if not self.is_kept(holder, key, body)]
        if not doomed:
            return body, None
        return cut_all(body, doomed), self._loses(doomed, total)

    def _keys(self, holder: Any) -> Sequence[str | int]:
        if isinstance(holder, Mapping):
            return list(holder)
        return range(len(holder)) if self.counts and isinstance(holder, list) else ()

    def _loses(self, doomed: list[Place], total: int) -> str:
        if self.counts:
            return f"{len(doomed)} of {total} {plain(self.path.text)}"
        prefix = f"{self.path.text}." if self.path.steps else ""
        return fields_lost([f"{prefix}{place[-1]}" for place in doomed])


def _is_kept(keeping: Keeping) -> IsKept:
    if keeping.names is not None:
        names = frozenset(keeping.names)
        return lambda _holder, key, _root: key in names
    where = compile_where(keeping.where)
    if where is not None:
        return lambda holder, key, root: where(holder[key], root)
    test = compile_test(keeping.keys)
    return lambda _holder, key, root: test(key, root)


def build(options: KeepOptions) -> Act:
    """Return the act."""
    return in_turn([Keeper.of(text, keeping).run for text, keeping in options.root.items()])


CARD = Card(
    name="keep",
    options=KeepOptions,
    build=build,
    is_exact=False,
    loses="what is not kept",
    doc=__doc__,
)
