"""Write a field that the client left out.

## What it does

Writes the value where the field is absent, with the objects on the way to it; a field that is there, null included,
stays. With a wildcard each element that lacks the field gets it. Where a list or a scalar stands in the way, nothing is
written. A value `{field: other.path}` copies another field; where that is absent nothing is written.

## When a backend needs it

It demands what OpenAI's API has as optional (`tools[*].function.parameters`), or its own default is not OpenAI's.

## What the client loses

Nothing: it left the choice to the server.

## Options

A mapping of paths to values, with the same forms of a value as `set`.

## Example

```yaml
default:
  temperature: 1
  tools[*].function.parameters: {type: object, properties: {}}
  messages[*].reasoning_content: {value: "", where: {role: assistant}}
```
"""

from __future__ import annotations

from pydantic import Field, RootModel, model_validator

from proxy.fields import parse_path
from proxy.repairs.card import Act, Card
from proxy.repairs.chains import refuse_chains, refuse_late_makers
from proxy.repairs.edits import in_turn
from proxy.repairs.options import STRICT, FieldPath
from proxy.repairs.values import RawValue, Writing, links


class DefaultOptions(RootModel[dict[FieldPath, RawValue]]):
    """The fields to fill in."""

    model_config = STRICT

    root: dict[FieldPath, RawValue] = Field(min_length=1, description="Field paths and the values they get.")

    @model_validator(mode="after")
    def _has_no_chain(self) -> DefaultOptions:
        refuse_chains(links(self.root))
        refuse_late_makers([(text, parse_path(text)) for text in self.root])
        return self


def build(options: DefaultOptions) -> Act:
    """Return the act."""
    return in_turn([Writing.of(text, raw, only_absent=True).run for text, raw in options.root.items()])


CARD = Card(
    name="default",
    options=DefaultOptions,
    build=build,
    is_exact=True,
    loses="nothing",
    doc=__doc__,
)
