"""Refuse a request with a reason.

## What it does

Answers 400 with the text, before the backend is asked. The first rejection stands.

## When a backend needs it

It would answer wrongly, hang, or die of the request, and no repair keeps what was asked for.

## What the client loses

The answer; it is told why.

## Options

The text, or `message` with the `param` and `code` of OpenAI's error object.

## Example

```yaml
reject: {message: this model takes no images, param: messages, code: unsupported_content}
```
"""

from __future__ import annotations

from typing import Annotated

from msgspec import structs
from pydantic import Field, RootModel

from proxy.repairs.card import Act, Card, Change, Draft, Rejection
from proxy.repairs.options import STRICT, Options, ShortForm


class Refusal(Options):
    """What the client is told."""

    message: str = Field(min_length=1, description="The reason, and what to do about it.")
    param: str | None = Field(default=None, description="The field that is at fault.")
    code: str | None = Field(default=None, description="A word for programs.")


_SHORT = ShortForm(lambda raw: {"message": raw} if isinstance(raw, str) else raw, {"type": "string", "minLength": 1})


class RejectOptions(RootModel[Annotated[Refusal, _SHORT]]):
    """The refusal."""

    model_config = STRICT

    root: Annotated[Refusal, _SHORT] = Field(description="The reason, alone or with param and code.")


def build(options: RejectOptions) -> Act:
    """Return the act."""
    refusal = Rejection(options.root.message, options.root.param, options.root.code)

    def act(draft: Draft) -> Change | None:
        return None if draft.rejection is not None else Change(structs.replace(draft, rejection=refusal))

    return act


CARD = Card(
    name="reject",
    options=RejectOptions,
    build=build,
    is_exact=True,
    loses="the answer: the request is refused",
    doc=__doc__,
)
