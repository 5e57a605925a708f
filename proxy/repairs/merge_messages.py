"""Join messages, so that they stand in the order and the roles that a model's chat template takes.

## What it does

In this order: `drop_empty` removes user, assistant and system messages that say nothing (not the last one that is
left). `system: first` moves all system and developer messages to the front, as one; `system: user` says them as user
messages, each joined with a user message that follows. `leading_assistant: system` puts what an assistant says before
the first other message into the system message (an assistant that calls tools stays). `only_system: user` makes the
user's message of a request that holds system messages only. `neighbours` joins messages that follow one another and
whose roles belong together, into one of the first one's role.

Texts are joined with a separator, lists of parts are joined part by part, tool calls are put in one list. Fields that
only the second message has are kept where both have the same role.

## When a backend needs it

Its chat template refuses two messages of a role in a row (`roles must alternate`), a system message that is not first
(`System message must be at the beginning.`), or any (`System role not supported`); LlamaFactory takes nothing but
`u/a/u/a/u`, where a tool's result is on the user's side.

## What the client loses

The boundaries between the joined messages, the place or the role of those that were moved, and which result belongs to
which call where tools' results are joined. The sentence says what really happened.

## Options

`system`: `keep`, `first`, `user`. `neighbours`: a list of roles (`user`), or of lists of roles that belong together
(`[user, tool]`). `separator` (default a blank line). `drop_empty`: true or false. `leading_assistant`: `keep`,
`system`. `only_system`: `keep`, `user`. What an ending assistant message needs is `insert_message`.

## Example

```yaml
merge_messages:
  system: first
  neighbours: [[user, tool], [assistant, function]]
  drop_empty: true
  leading_assistant: system
  only_system: user
```
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from proxy.body import Body
from proxy.matching import Problem
from proxy.repairs.card import Act, Card
from proxy.repairs.edits import in_turn
from proxy.repairs.messages import Text, listed
from proxy.repairs.options import Options, ShortForm, misfit
from proxy.repairs.turns import Turns

Side = Annotated[
    list[Text],
    Field(min_length=1),
    ShortForm(lambda raw: [raw] if isinstance(raw, str) else raw, {"type": "string"}),
]


class MergeMessagesOptions(Options):
    """Which messages are joined or moved."""

    system: Literal["keep", "first", "user"] = Field(default="keep", description="What becomes of system messages.")
    neighbours: list[Side] = Field(default=[], description="The roles, or lists of roles, whose neighbours are joined.")
    separator: Text = Field(default="\n\n", description="What stands between two joined texts.")
    drop_empty: bool = Field(default=False, description="Whether messages that say nothing are removed.")
    leading_assistant: Literal["keep", "system"] = Field(
        default="keep", description="What becomes of assistant messages that come first."
    )
    only_system: Literal["keep", "user"] = Field(
        default="keep", description="What becomes of system messages when there are no others."
    )

    @model_validator(mode="after")
    def _says_something(self) -> MergeMessagesOptions:
        asked = self.neighbours or self.drop_empty
        if not asked and {self.system, self.leading_assistant, self.only_system} == {"keep"}:
            raise misfit([((), "nothing is to be done: say system, neighbours, drop_empty, or one of the others")])
        problems: list[Problem] = []
        if self.system == "user" and self.leading_assistant == "system":
            problems.append((("leading_assistant",), "with system: user there is no system message to put it in"))
        roles = [role for side in self.neighbours for role in side]
        problems += [
            (("neighbours",), f"{role} stands on two sides") for role in dict.fromkeys(roles) if roles.count(role) > 1
        ]
        if problems:
            raise misfit(problems)
        return self


def build(options: MergeMessagesOptions) -> Act:
    """Return the act."""
    side_of = {role: index for index, side in enumerate(options.neighbours) for role in side}

    def edit(body: Body) -> tuple[Body, str | None]:
        messages = listed(body)
        turns = Turns(messages, options.separator)
        if options.drop_empty:
            turns.drop_empty()
        if options.system == "first":
            turns.system_first()
        if options.system == "user":
            turns.system_to_user()
        if options.leading_assistant == "system":
            turns.leading_assistant_to_system()
        if options.only_system == "user":
            turns.only_system_to_user()
        turns.join_neighbours(side_of)
        return (body.put(("messages",), turns.messages()), turns.loss()) if turns.is_changed else (body, None)

    return in_turn([edit])


CARD = Card(
    name="merge_messages",
    options=MergeMessagesOptions,
    build=build,
    is_exact=False,
    loses="boundaries, places or roles of messages",
    doc=__doc__,
)
