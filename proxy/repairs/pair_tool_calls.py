"""Make each tool call of the history have its result, and each result its call.

## What it does

Finds out which result answers which call, by its id, in the `messages` of a chat or the `input` of Responses, and mends
what doesn't fit: results without a call, calls without a result (one at the very end of the history is one), ids that
are missing, wrong or used twice, results that don't stand right behind their call in the calls' order, and in Responses
messages between the calls of one turn. With `as_text: true` all calls and results become plain text instead:
`[Calls get_weather with {"city": "Rome"}]` in the assistant's message, `[Result of get_weather] …` as the user's.

Arguments that are no JSON are for `coerce` (`messages[*].tool_calls[*].function.arguments: {to: json, …}`).

## When a backend needs it

It checks the history (`An assistant message with 'tool_calls' must be followed by tool messages`, `tool result's tool
id(...) not found`, `Unexpected role 'tool' after role 'user'`), which a client cut short to save tokens, or after it
was interrupted. Or it knows no tools in the history (`Assistant message having 'tool_calls' is not supported yet`, `The
toolConfig field must be defined`), or none at all.

## What the client loses

The results and calls that are dropped, the place of those that are moved. A stub tells the model of a result that there
was not. As text, the model may begin to write its calls as text, too. Made ids cost nothing: they pair calls and
results within the request only.

## Options

`orphans`, results without a call: `keep`, `drop`, `user` (said as a user message). `missing`, calls without a result:
`keep`, `drop`, `stub` (the text of `stub` is the result). `ids: make`: missing and repeated ids get new ones, and a
result whose id is missing or unknown is that of the first unanswered call before it. `order: fix`. `as_text: true`
stands alone. All are `keep` or false when left out.

## Example

```yaml
pair_tool_calls: {orphans: user, missing: stub, stub: "No result.", ids: make, order: fix}
```
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final, Literal

from pydantic import Field, model_validator

from proxy.body import Body
from proxy.repairs.card import Act, Card
from proxy.repairs.edits import in_turn
from proxy.repairs.messages import Text, listed
from proxy.repairs.options import Options, misfit
from proxy.repairs.parts import Loss, counted
from proxy.repairs.tool_calls import pair
from proxy.repairs.tool_history import History, Wishes
from proxy.repairs.tool_text import as_text

LISTS: Final = ("messages", "input")


class PairToolCallsOptions(Options):
    """What becomes of calls and results that don't fit."""

    orphans: Literal["keep", "drop", "user"] = Field(default="keep", description="Of results without a call.")
    missing: Literal["keep", "drop", "stub"] = Field(default="keep", description="Of calls without a result.")
    stub: Text = Field(default="No result.", description="With missing: stub, the result that is made up.")
    ids: Literal["keep", "make"] = Field(default="keep", description="Of ids that are missing, unknown or used twice.")
    order: Literal["keep", "fix"] = Field(
        default="keep", description="Of results that are not right behind their call."
    )
    as_text: bool = Field(default=False, description="Whether all calls and results become plain text.")

    @model_validator(mode="after")
    def _says_something(self) -> PairToolCallsOptions:
        others = self.model_fields_set - {"as_text"}
        if self.as_text and others:
            raise misfit([((name,), "with as_text no call or result is left to be paired") for name in sorted(others)])
        if not self.as_text and {self.orphans, self.missing, self.ids, self.order} == {"keep"}:
            raise misfit([((), "nothing is to be done: say orphans, missing, ids, order or as_text")])
        if "stub" in self.model_fields_set and self.missing != "stub":
            raise misfit([(("stub",), "stub goes with missing: stub")])
        return self


def build(options: PairToolCallsOptions) -> Act:
    """Return the act."""
    return in_turn([partial(_edit, options, name) for name in LISTS])


def _edit(options: PairToolCallsOptions, name: str, body: Body) -> tuple[Body, str | None]:
    items = listed(body, name)
    new, losses = _mended(items, options, is_chat=name == "messages")
    return (body, None) if new == items else (body.put((name,), new), counted(losses))


def _mended(items: list[Any], options: PairToolCallsOptions, *, is_chat: bool) -> tuple[list[Any], list[Loss]]:
    if options.as_text:
        return as_text(items, is_chat=is_chat)
    pairing = pair(items, is_chat=is_chat, makes_ids=options.ids == "make")
    wishes = Wishes(options.orphans, options.missing, options.stub, options.order == "fix")
    history = History(items, pairing, wishes, is_chat=is_chat)
    return history.written(), history.losses()


CARD = Card(
    name="pair_tool_calls",
    options=PairToolCallsOptions,
    build=build,
    is_exact=None,
    loses="nothing, but results and calls that are dropped, moved, made up or said as text",
    doc=__doc__,
)
