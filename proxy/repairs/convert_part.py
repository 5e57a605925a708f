"""Say parts of a message's content in another shape, or leave them out.

## What it does

Gives each content part of a listed type what the list says, in `content` of every message, and in `content` and
`output` of every item of Responses' `input`. A part that can't be said so is left alone.

| to | what becomes of the part |
|---|---|
| `text`, `input_text`, `output_text` | a part with the text that it holds |
| `image_url`, `video_url`, `audio_url` | `{type: image_url, image_url: {url}}`, inline data as a data URL |
| `input_image` | `{type: input_image, image_url: "…"}`, as Responses has it |
| `input_audio` | `{type: input_audio, input_audio: {data, format}}`, of a data URL only |
| `placeholder` | a text part: `[image]`, `[audio]`, `[video]`, `[file]`, or the given text |
| `user` | out of a message that is not the user's, into a user message behind it and its fellow tool results |
| `drop` | removed; a content with no part left is `""` |
| `keep` | nothing: the type is named so that `"*"` leaves it alone |

Pictures and sounds are not fetched, decoded or coded anew: a remote URL stays one, webp stays webp.

## When a backend needs it

It knows other names (`input_text`, `input_image`), other shapes (`image_url` as a string), no such medium (`Model only
supports text input; received unsupported content type 'image_url'.`), or none in a tool's result (`Image URLs are only
allowed for messages with role 'user'`).

## What the client loses

Nothing where a part only changes its shape. Else the sentence says how many parts were dropped, replaced, moved.

## Options

A mapping of part types to one of the words above. `string` is a bare string in the list; `"*"` any type that is
neither named nor made here. In its long form `{to, …}` takes `where: {relative path: test}` (asked of the part),
`message: {relative path: test}` (asked of the message), `keep_last: 4` (the last four are left alone), and `text`: of a
placeholder, or what introduces the parts in the user message.

## Example

```yaml
convert_part:
  input_text: text
  refusal: text
  image_url: image_url
  input_audio: audio_url
  text: {to: drop, where: {text: {exists: false}}}
  file: {to: placeholder, text: "[a file that can't be read here]"}
  "*": drop
```
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final, Literal

from pydantic import Field, RootModel, model_validator

from proxy.fields import parse_path
from proxy.matching import Problem
from proxy.repairs.card import Act, Card
from proxy.repairs.edits import in_turn
from proxy.repairs.messages import Text
from proxy.repairs.options import STRICT, Options, ShortForm, Where, misfit, references
from proxy.repairs.part_conversions import Conversions, Entry
from proxy.repairs.places import compile_where

Target = Literal[
    "text",
    "input_text",
    "output_text",
    "image_url",
    "video_url",
    "audio_url",
    "input_image",
    "input_audio",
    "placeholder",
    "user",
    "drop",
    "keep",
]

LISTS: Final = ("messages", "input")
_CONTENTS: Final = ("content", "output")
_WITH_TEXT: Final = ("placeholder", "user")


class Conversion(Options):
    """What becomes of parts of one type."""

    to: Target = Field(description="The new type, or what is done with the part.")
    where: Where | None = Field(default=None, description="Tests on the part, by path relative to it.")
    message: Where | None = Field(default=None, description="Tests on the message, by path relative to it.")
    keep_last: int = Field(default=0, ge=0, description="How many parts, the last ones, are left alone.")
    text: Text | None = Field(
        default=None, description="Of placeholder: its text. Of user: the text ahead of the parts."
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Conversion:
        problems: list[Problem] = []
        if self.text is not None and self.to not in _WITH_TEXT:
            problems.append((("text",), f"text goes with {' or '.join(_WITH_TEXT)}, not with {self.to}"))
        for text in self.message or {}:
            steps = parse_path(text).steps
            if not steps or _may_be_content(steps[0]):
                problems.append((("message", text), "it reads the content, which is changed here: ask the part"))
        looked_up = [text for text in references([self.where, self.message]) if parse_path(text).top in (None, *LISTS)]
        problems += [((), f"it reads {text!r}, which is changed here") for text in looked_up]
        if problems:
            raise misfit(problems)
        return self


def _may_be_content(step: object) -> bool:
    return not isinstance(step, str) or step in _CONTENTS


_SHORT = ShortForm(lambda raw: {"to": raw} if isinstance(raw, str) else raw, {"type": "string"})


class ConvertPartOptions(RootModel[dict[str, Annotated[Conversion, _SHORT]]]):
    """What becomes of which parts."""

    model_config = STRICT

    root: dict[str, Annotated[Conversion, _SHORT]] = Field(
        min_length=1, description="Part types and what becomes of them."
    )

    @model_validator(mode="after")
    def _has_no_circle(self) -> ConvertPartOptions:
        problems: list[Problem] = []
        for kind, conversion in self.root.items():
            if kind in _onward(kind, self.root):
                problems.append(((kind,), f"parts of it become {kind} again: a second run would change them again"))
            elif conversion.keep_last and any(made_by(kind, self.root, other) for other in self.root if other != kind):
                problems.append(((kind, "keep_last"), "parts of this type are made here too: make two repairs of it"))
        if problems:
            raise misfit(problems)
        return self


def made_types(to: str) -> tuple[str, ...]:
    """Return the types of the parts that a target makes."""
    return {"placeholder": ("text", "input_text"), "user": ("text", "input_text"), "drop": (), "keep": ()}.get(
        to, (to,)
    )


def made_by(kind: str, options: dict[str, Conversion], source: str) -> bool:
    """Return whether the entry of `source` makes parts of the type."""
    return kind in made_types(options[source].to)


def _onward(kind: str, options: dict[str, Conversion]) -> set[str]:
    """Return the types that parts of `kind` become, in one step or more, by way of at least one other type."""
    reached: set[str] = set()
    ahead = [made for made in made_types(options[kind].to) if made != kind]
    while ahead:
        made = ahead.pop()
        if made not in reached:
            reached.add(made)
            ahead += made_types(options[made].to) if made in options else ()
    return reached


def build(options: ConvertPartOptions) -> Act:
    """Return the act."""
    made = frozenset(made for conversion in options.root.values() for made in made_types(conversion.to))
    entries = {kind: _entry(conversion) for kind, conversion in options.root.items()}
    conversions = Conversions(entries, made)
    return in_turn([partial(conversions.run, name) for name in LISTS])


def _entry(conversion: Conversion) -> Entry:
    where, message = compile_where(conversion.where), compile_where(conversion.message)
    return Entry(conversion.to, where, message, conversion.keep_last, conversion.text)


CARD = Card(
    name="convert_part",
    options=ConvertPartOptions,
    build=build,
    is_exact=None,
    loses="nothing, but parts that are dropped, replaced or moved",
    doc=__doc__,
)
