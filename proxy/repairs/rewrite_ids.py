"""Spell tool-call ids and tool names in the backend's alphabet, and back.

## What it does

An id or a name that has other characters, or another length, than the backend takes gets a new one, made of the old one
alone: an id is a digest of it where `length` is exact; else the foreign characters become `_`, what is too long is cut,
and a digest is added where two would be alike. The same text becomes the same everywhere in the request: in `tools`,
`tool_choice`, calls and results of the messages (or of `input`), `functions` and `function_call`. In the answer each
new name, and each new id where it comes back, becomes the client's.

## When a backend needs it

It refuses ids of other engines in the history (`Tool call id was call_… but must be a-z, A-Z, 0-9, with a length of
9.`, `string too long`), or names with dots and slashes (`does not match pattern`), as MCP tools have them.

## What the client loses

Nothing. (The model reads the new names; one that a prompt spells out in its text stays as it is.)

## Options

`ids`, `names`, or both: `{allowed: "a-zA-Z0-9_-"}` with `length: 9` (exactly) or `max: 40` (at most), 8 or more.

## Example

```yaml
rewrite_ids:
  ids: {allowed: a-zA-Z0-9, length: 9}
  names: {allowed: a-zA-Z0-9_-, max: 64}
```
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import structs
from pydantic import Field, model_validator

from proxy import fields
from proxy.body import Body
from proxy.fields import Path, Place, find, parse_path
from proxy.repairs.card import Act, Card, Change, Draft
from proxy.repairs.identifiers import Form
from proxy.repairs.options import Options, misfit
from proxy.repairs.places import Condition, compile_where, slots

_NAMED: Final = {"type": {"in": ["function", "custom", "function_call", "custom_tool_call"]}}
_RESULT: Final = {"role": {"in": ["tool", "function"]}}
_CALLS: Final = ("choices[*].message", "choices[*].delta")
_ITEMS: Final = ("output[*]", "item", "response.output[*]")

Fields = Sequence[tuple[Path, Condition | None]]


def _fields(texts: Iterable[str], **conditional: tuple[str, Mapping[str, Any]]) -> Fields:
    some = [(parse_path(text), compile_where(where)) for text, where in conditional.values()]
    return [*((parse_path(text), None) for text in texts), *some]


IDS: Final = _fields(["messages[*].tool_calls[*].id", "messages[*].tool_call_id", "input[*].call_id"])
NAMES: Final = _fields(
    [
        "tools[*].function.name",
        "tools[*].custom.name",
        "functions[*].name",
        "tool_choice.function.name",
        "tool_choice.custom.name",
        "tool_choice.allowed_tools.tools[*].function.name",
        "function_call.name",
        "messages[*].tool_calls[*].function.name",
        "messages[*].tool_calls[*].custom.name",
        "messages[*].function_call.name",
    ],
    result=("messages[*].name", _RESULT),
    tool=("tools[*].name", _NAMED),
    chosen=("tool_choice.name", {"tool_choice.type": _NAMED["type"]}),
    allowed=("tool_choice.tools[*].name", _NAMED),
    item=("input[*].name", _NAMED),
)
ANSWERED_IDS: Final = [
    parse_path(text)
    for text in [*(f"{call}.tool_calls[*].id" for call in _CALLS), *(f"{item}.call_id" for item in _ITEMS)]
]
ANSWERED_NAMES: Final = [
    parse_path(text)
    for text in [
        *(f"{call}.tool_calls[*].{kind}.name" for call in _CALLS for kind in ("function", "custom")),
        *(f"{call}.function_call.name" for call in _CALLS),
        *(f"{item}.name" for item in _ITEMS),
        *(f"{holder}{tool}.name" for holder in ("", "response.") for tool in ("tools[*]", "tool_choice")),
    ]
]


class Spelling(Options):
    """What an id or a name must look like."""

    allowed: str = Field(default="a-zA-Z0-9_-", min_length=1, description="Its characters, as a-z and such.")
    length: int | None = Field(default=None, ge=8, description="Its exact length.")
    max: int | None = Field(default=None, ge=8, description="Its greatest length.")

    @model_validator(mode="after")
    def _can_be_met(self) -> Spelling:
        if self.length is not None and self.max is not None:
            raise misfit([(("max",), "with length the greatest length is said: say one of them")])
        try:
            self.form()
        except ValueError as error:
            raise misfit([(("allowed",), str(error))], self.allowed) from error
        return self

    def form(self) -> Form:
        """Return the form that this spells."""
        return Form.of(self.allowed, self.length, self.max)


class RewriteIdsOptions(Options):
    """How ids and names are spelt."""

    ids: Spelling | None = Field(default=None, description="What the ids of tool calls look like.")
    names: Spelling | None = Field(default=None, description="What the names of tools look like.")

    @model_validator(mode="after")
    def _says_something(self) -> RewriteIdsOptions:
        if self.ids is None and self.names is None:
            raise misfit([((), "nothing is to be rewritten: say ids, names or both")])
        return self


class IdsRestored(msgspec.Struct, frozen=True):
    """Spells what a rewriting made new as the client spelt it. Shape: new → old."""

    ids: Mapping[str, str]
    names: Mapping[str, str]

    @property
    def is_done(self) -> bool:
        """Never: it only respells."""
        return False

    def chunk(self, chunk: dict[str, Any]) -> dict[str, Any]:
        """Return the chunk with the client's spelling."""
        return self.answer(chunk)

    def answer(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Return the answer with the client's spelling."""
        restored = answer
        for paths, old in ((ANSWERED_IDS, self.ids), (ANSWERED_NAMES, self.names)):
            for path in paths if old else ():
                for place, value in _texts(find(answer, path)):
                    restored = fields.put(restored, place, old[value]) if value in old else restored
        return restored


def _texts(found: Iterable[tuple[Place, Any]]) -> Iterator[tuple[Place, str]]:
    return ((place, value) for place, value in found if isinstance(value, str))


def _rewritten(body: Body, form: Form | None, wanted: Fields) -> tuple[Body, dict[str, str]]:
    """Return the body in the new spelling, and old → new; the same body where all is spelt well."""
    if form is None:
        return body, {}
    found = [(slot.place, slot.value) for path, where in wanted for slot in slots(body, path, where)]
    texts = list(_texts(found))
    new = form.renamed(text for _, text in texts)
    for place, text in texts:
        body = body.put(place, new[text]) if text in new else body
    return body, new


def build(options: RewriteIdsOptions) -> Act:
    """Return the act."""
    id_form = options.ids.form() if options.ids is not None else None
    name_form = options.names.form() if options.names is not None else None

    def act(draft: Draft) -> Change | None:
        body, ids = _rewritten(draft.body, id_form, IDS)
        body, names = _rewritten(body, name_form, NAMES)
        if not ids and not names:
            return None
        undo = partial(IdsRestored, _reversed(ids), _reversed(names))
        return Change(structs.replace(draft, body=body, undos=(*draft.undos, undo)))

    return act


def _reversed(new: Mapping[str, str]) -> dict[str, str]:
    return {made: old for old, made in new.items()}


CARD = Card(
    name="rewrite_ids",
    options=RewriteIdsOptions,
    build=build,
    is_exact=True,
    loses="nothing",
    doc=__doc__,
)
