"""Write a field, whatever stands there.

## What it does

Writes the value at the path. A field that is absent is made, with the objects on the way to it. With a wildcard the
field is written in each element: `messages[*].name` in every message. Where a list or a scalar stands in the way,
nothing is written. A value `{field: other.path}` copies another field; where that is absent nothing is written.

## When a backend needs it

It refuses what the client chose (`encoding_format: base64`, `n: 0`), or does another thing unless it is told
(`chat_template_kwargs.enable_thinking: false`).

## What the client loses

Nothing where the field was absent; else the value that it sent. Numbers, booleans and null are named ("n 3 becomes 1"),
of text, lists and objects only that they were replaced.

## Options

A mapping of paths to values. `{value: …, where: {relative path: test}}` writes only in elements for which the tests
hold (the element that the path's last wildcard names; without a wildcard the body). `{value: …}` alone writes what it
holds, for a value that looks like one of these forms.

## Example

```yaml
set:
  stream_options.include_usage: true
  max_tokens: {field: max_completion_tokens}
  messages[*].reasoning_content: {value: " ", where: {role: assistant, tool_calls: {exists: true}}}
```
"""

from __future__ import annotations

from pydantic import Field, RootModel, model_validator

from proxy.fields import parse_path
from proxy.repairs.card import Act, Card, Target
from proxy.repairs.chains import refuse_chains, refuse_crossing, refuse_late_makers
from proxy.repairs.edits import in_turn
from proxy.repairs.options import STRICT, FieldPath
from proxy.repairs.values import RawValue, Writing, element_targets, links


class SetOptions(RootModel[dict[FieldPath, RawValue]]):
    """The fields to write."""

    model_config = STRICT

    root: dict[FieldPath, RawValue] = Field(min_length=1, description="Field paths and the values to write there.")

    @model_validator(mode="after")
    def _writes_each_place_once(self) -> SetOptions:
        refuse_chains(links(self.root))
        refuse_crossing(list(self.root))
        refuse_late_makers([(text, parse_path(text)) for text in self.root])
        return self


def build(options: SetOptions) -> Act:
    """Return the act."""
    return in_turn([Writing.of(text, raw).run for text, raw in options.root.items()])


def targets(options: SetOptions) -> list[Target] | None:
    """Return what the entries work on, where they all write into elements that have to be there."""
    return element_targets(options.root)


CARD = Card(
    name="set",
    options=SetOptions,
    build=build,
    is_exact=None,
    loses="the value that was sent, where there was one",
    doc=__doc__,
    targets=targets,
)
