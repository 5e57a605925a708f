"""Say a message's content as one text instead of a list of parts.

## What it does

Makes of each list of text parts that the path names the text they hold, with a separator between them. A refusal's text
is text too, and so is a bare string in the list. A list that holds other parts as well (images, audio, files, thinking)
is left alone, or what `others` says.

## When a backend needs it

It, or the model's chat template, takes a string only (`invalid type: sequence, expected a string`; `can only
concatenate str (not "list") to str`), takes lists in a user's message only, or reads one text part and not the rest.

## What the client loses

Of a single text part nothing, of several the boundaries between them. What `drop` and `placeholder` take away.

## Options

`in`: the path of the lists (default `messages[*].content`; for Responses `input[*].content` or `input[*].output`).
`where: {relative path: test}`: only in messages for which the tests hold. `separator` (default a line break).
`others`: what becomes of parts that are no text: `leave` (the list is not touched), `beside` (they stay in the list,
with one text part where the first stood), `drop`, `placeholder` (`[image]` and the like).

## Example

```yaml
flatten_content: {where: {role: {ne: user}}, others: placeholder}
```
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from pydantic import Field, model_validator

from proxy.body import Body
from proxy.fields import parse_path
from proxy.repairs.card import Act, Card
from proxy.repairs.chains import Link, refuse_chains
from proxy.repairs.edits import in_turn
from proxy.repairs.losses import fields_lost, join_losses
from proxy.repairs.messages import Text
from proxy.repairs.options import FieldPath, Options, Where
from proxy.repairs.parts import Loss, counted, is_plain_text, kind_of, noun_of, placeholder_of, text_of
from proxy.repairs.places import compile_where, slots
from proxy.repairs.writes import put_all


class FlattenContentOptions(Options):
    """Which lists become text."""

    in_: FieldPath = Field(
        default="messages[*].content", alias="in", description="The path of the lists of content parts."
    )
    where: Where | None = Field(default=None, description="Tests on the message, by path relative to it.")
    separator: Text = Field(default="\n", description="What stands between the texts of two parts.")
    others: Literal["leave", "beside", "drop", "placeholder"] = Field(
        default="leave", description="What becomes of parts that are no text."
    )

    @model_validator(mode="after")
    def _has_no_chain(self) -> FlattenContentOptions:
        refuse_chains([Link.of(("where",), self.in_, None, self.where)])
        return self


class Flat(msgspec.Struct, frozen=True):
    """A content made flat, with what that loses."""

    content: Any
    losses: list[Loss] = msgspec.field(default_factory=list)
    fields: list[str] = msgspec.field(default_factory=list)


def build(options: FlattenContentOptions) -> Act:
    """Return the act."""
    path, where = parse_path(options.in_), compile_where(options.where)

    def edit(body: Body) -> tuple[Body, str | None]:
        lists = [slot for slot in slots(body, path, where) if isinstance(slot.value, list)]
        flat = {slot.place: made for slot in lists if (made := _flatten(slot.value, options)) is not None}
        if not flat:
            return body, None
        fields = [name for made in flat.values() for name in made.fields]
        told = [
            counted(loss for made in flat.values() for loss in made.losses),
            fields_lost(fields) if fields else None,
        ]
        return put_all(body, {place: made.content for place, made in flat.items()}), join_losses(told)

    return in_turn([edit])


def _flatten(parts: list[Any], options: FlattenContentOptions) -> Flat | None:
    others = [part for part in parts if not _is_text(part)]
    if others and options.others == "leave":
        return None
    if others and options.others == "beside":
        return _beside(parts, options.separator)
    texts, losses = [], []
    for part in parts:
        if _is_text(part):
            texts.append(text_of(part) or "")
        else:
            losses.append(_other(part, options.others))
            texts.append(placeholder_of(kind_of(part)) if options.others == "placeholder" else "")
    told, fields = _losses([part for part in parts if _is_text(part)])
    return Flat(options.separator.join(filter(None, texts)), told + losses, fields)


def _beside(parts: list[Any], separator: str) -> Flat | None:
    texts = [part for part in parts if _is_text(part)]
    if len(texts) < 2:
        return None
    joined = {"type": "text", "text": separator.join(filter(None, map(text_of, texts)))}
    first = next(index for index, part in enumerate(parts) if _is_text(part))
    others = [part for part in parts[first:] if not _is_text(part)]
    return Flat([*parts[:first], joined, *others], *_losses(texts))


def _is_text(part: Any) -> bool:
    return is_plain_text(kind_of(part)) or kind_of(part) == "refusal"


def _losses(texts: list[Any]) -> tuple[list[Loss], list[str]]:
    refusals = [("refusal", "said as text") for part in texts if kind_of(part) == "refusal"]
    joined = [("text part", "joined")] * len(texts) if len(texts) > 1 else []
    named = [name for part in texts if isinstance(part, dict) for name in part if part[name] not in (None, [])]
    return joined + refusals, [name for name in named if name not in ("type", "text", "refusal")]


def _other(part: Any, others: str) -> Loss:
    return f"{noun_of(kind_of(part))} part", "dropped" if others == "drop" else "replaced by a placeholder"


CARD = Card(
    name="flatten_content",
    options=FlattenContentOptions,
    build=build,
    is_exact=None,
    loses="boundaries of text parts, and what others takes away",
    doc=__doc__,
)
