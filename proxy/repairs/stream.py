"""Ask the backend for another shape of answer than the client did.

## What it does

`stream: false`: where the client asked for a stream (`stream` is true), asks for one JSON answer and removes
`stream_options`, which is only legal with a stream. The answer is sent to the client as the stream it asked for, with a
usage chunk if it asked for one. `stream: true`: where the client did not ask for a stream, asks for one that ends with
its usage, and collects it into one JSON answer.

## When a backend needs it

It refuses a field on a stream (`return_meta_info`, tools), or answers nothing but streams, or better ones.

## What the client loses

Nothing: the answer is the same. A stream that was asked for as JSON comes at once, when it is complete.

## Options

`true` or `false`: whether the backend is asked for a stream.

## Example

```yaml
stream: false
```
"""

from __future__ import annotations

from typing import Any

from msgspec import structs
from pydantic import Field, RootModel

from proxy.body import Body
from proxy.repairs.card import Act, Answer, Card, Change, Draft, FrameAct
from proxy.repairs.options import STRICT


class StreamOptions(RootModel[bool]):
    """The shape to ask for."""

    model_config = STRICT

    root: bool = Field(description="Whether the backend is asked for a stream.")


def build(options: StreamOptions) -> Act:
    """Return the act."""
    return FrameAct(_ask_for_stream if options.root else _ask_for_json)


def _ask_for_json(draft: Draft) -> Change | None:
    if draft.body.get("stream") is not True:
        return None
    options = draft.body.get("stream_options")
    wanted = Answer(stream=True, include_usage=isinstance(options, dict) and options.get("include_usage") is True)
    without = ("stream_options",) if "stream_options" in draft.body else ()
    return _asked(draft, draft.body.put_all({"stream": False}, without), wanted)


def _ask_for_stream(draft: Draft) -> Change | None:
    if draft.body.get("stream") is True:
        return None
    options: Any = draft.body.get("stream_options")
    known = options if isinstance(options, dict) else {}
    body = draft.body.put(("stream",), True)
    if known.get("include_usage") is not True:
        body = body.put(("stream_options",), known | {"include_usage": True})
    return _asked(draft, body, Answer(stream=False))


def _asked(draft: Draft, body: Body, wanted: Answer) -> Change:
    # What the client wanted was seen by the first of such repairs; a later one sees what that one made of it.
    return Change(structs.replace(draft, body=body, answer=draft.answer or wanted))


CARD = Card(
    name="stream",
    options=StreamOptions,
    build=build,
    is_exact=True,
    loses="nothing",
    doc=__doc__,
)
