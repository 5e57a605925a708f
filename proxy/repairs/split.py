"""Send a list of inputs or prompts in several requests.

## What it does

Where the field is a list of more than `size` inputs (texts, or lists of token ids), sends them in groups of `size`, one
request each, and joins the answers in the inputs' order: `data` of embeddings by its index, choices of completions by
theirs. A list of token ids is one input and stays whole. The groups' token counts are added up. A `rid` becomes one of
its own in each request, as under `fan_out`.

## When a backend needs it

It takes one input at a time (`prompt must be a string.`), or no more than a batch holds.

## What the client loses

Nothing.

## Options

`field`: the top-level field with the list, `input` or `prompt`. `size`: how many a request holds; with 1 the field is
sent as the input itself, not as a list, unless `list: true`. `concurrency`: requests in flight at a time (0: all). More
requests than `limits.branches`, those of a fan-out counted, are refused with 400.

## Example

```yaml
split: {field: input, size: 32}
```
"""

from __future__ import annotations

from typing import Any

from msgspec import structs
from pydantic import Field

from proxy.body import Body
from proxy.repairs.card import Act, Card, Change, Draft, Rejection, Split
from proxy.repairs.options import Options


class SplitOptions(Options):
    """Which list is sent in how many requests."""

    field: str = Field(pattern=r"^[^.\[\]\s]+$", description="The top-level field that holds the list.")
    size: int = Field(ge=1, description="The most inputs of one request.")
    list: bool = Field(default=False, description="With size 1: send a list of one, not the input itself.")
    concurrency: int = Field(default=0, ge=0, description="Requests in flight at a time; 0 is all.")


def build(options: SplitOptions) -> Act:
    """Return the act."""
    split = Split(options.field, options.size, options.concurrency, options.size == 1 and not options.list)

    def act(draft: Draft) -> Change | None:
        inputs = _inputs(draft.body.get(options.field))
        is_needed = len(inputs) > options.size or (split.is_bare and len(inputs) == 1)
        if draft.split is not None or draft.rejection is not None or not is_needed:
            return None
        if len(inputs) == 1:
            return Change(structs.replace(draft, body=draft.body.put((options.field,), inputs[0])))
        groups = -(-len(inputs) // options.size)
        if groups * (draft.fan.n if draft.fan is not None else 1) > draft.max_branches:
            return Change(structs.replace(draft, rejection=_too_many(options, len(inputs), draft)))
        return Change(structs.replace(draft, split=split, body=_as_edited(draft.body)))

    return act


def _inputs(value: Any) -> list[Any]:
    """Return the inputs of a list of them; [] for one input, a list of token ids included."""
    return value if isinstance(value, list) and value and all(map(_is_input, value)) else []


def _is_input(item: Any) -> bool:
    return isinstance(item, str) or (isinstance(item, list) and all(type(token) is int for token in item))


def _as_edited(body: Body) -> Body:
    """Return the body as it is, but as one that is not sent as it came: each group's will be another."""
    unknown = "".join(body) + "-"
    return body.put((unknown,), None).cut((unknown,))


def _too_many(options: SplitOptions, count: int, draft: Draft) -> Rejection:
    return Rejection(
        f"{options.field} holds {count} inputs, which would take more than {draft.max_branches} requests here: "
        "send fewer at a time.",
        param=options.field,
        code="too_many_inputs",
    )


def group_count(draft: Draft) -> int:
    """Return how many groups a draft's inputs make: one where it is not split."""
    split = draft.split
    return -(-len(_inputs(draft.body.get(split.field))) // split.size) if split is not None else 1


def split_bodies(body: Body, split: Split) -> list[Body]:
    """Return the body of each group of inputs, in order."""
    inputs = _inputs(body.get(split.field))
    groups = [inputs[start : start + split.size] for start in range(0, len(inputs), split.size)]
    return [body.put((split.field,), group[0] if split.is_bare else group) for group in groups]


CARD = Card(
    name="split",
    options=SplitOptions,
    build=build,
    is_exact=True,
    loses="nothing",
    doc=__doc__,
)
