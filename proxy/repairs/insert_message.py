"""Add a message where a model's chat template, or a backend, wants one.

## What it does

Puts the message in between two neighbours: a message whose role is in `after`, and one whose role is in `before`. The
word `start` stands for the beginning of the conversation, behind its leading system and developer messages, `end` for
its end. It is put in at each such place, but not beside a message of the same role that says it already. With `field`,
the JSON text of another field follows the content on a new line; where that field is absent or null, nothing is added.

## When a backend needs it

| refused or ignored | role | after | before |
|---|---|---|---|
| the first message is not a user's (`roles must alternate`) | user | start | assistant |
| the last is an assistant's (`does not support assistant message prefill`) | user | assistant | end |
| a user follows a tool's result (`Unexpected role 'user' after role 'tool'`) | assistant | tool | user |
| two turns of the assistant (`function call turn comes immediately after a user turn`) | user | assistant | assistant |
| no word of JSON (`'messages' must contain the word 'json'`) | system | start | |
| no grammar, no schema: say it in words, with `field: response_format.json_schema.schema` | system | start | |
| `tool_choice: required` ("Please select a tool to handle the current issue.") | user | | end |

## What the client loses

Nothing of what it sent; the model reads a message that the client did not write. A user message behind the last
assistant message also means that its text is answered, not continued.

## Options

`role`, `content` (may be `""`), `after`, `before`: a role or a list of roles, at least one of the two; the one that is
left out holds for every neighbour. `field`: path of the field whose JSON text follows.

## Example

```yaml
insert_message: {role: user, content: "Continue.", after: [assistant, start], before: [end, assistant]}
```
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from proxy.body import Body
from proxy.fields import ABSENT, Path, first, parse_path
from proxy.repairs.card import Act, Card
from proxy.repairs.edits import in_turn
from proxy.repairs.messages import Text, full_text, is_instruction, join_texts, json_text, listed, role_of
from proxy.repairs.options import FieldPath, Options, ShortForm, misfit
from proxy.repairs.parts import counted

Roles = Annotated[list[str], Field(min_length=1)]

Neighbours = Annotated[
    Roles | None,
    ShortForm(lambda raw: [raw] if isinstance(raw, str) else raw, {"type": "string"}),
]


class InsertMessageOptions(Options):
    """The message and where it goes."""

    role: Literal["system", "developer", "user", "assistant"] = Field(description="The message's role.")
    content: Text = Field(description="The message's text.")
    field: FieldPath | None = Field(default=None, description="The field whose JSON text follows the content.")
    after: Neighbours = Field(default=None, description="Roles of the message before it, or start.")
    before: Neighbours = Field(default=None, description="Roles of the message behind it, or end.")

    @model_validator(mode="after")
    def _has_a_place(self) -> InsertMessageOptions:
        if self.after is None and self.before is None:
            raise misfit([((), "say after, before or both: where the message goes")])
        path = parse_path(self.field) if self.field is not None else None
        if path is not None and path.is_plural:
            raise misfit([(("field",), f"{path} names many fields: only one can be quoted")], self.field)
        if path is not None and path.top == "messages":
            raise misfit([(("field",), f"it reads {path.text!r}, which is changed here")], self.field)
        return self


def build(options: InsertMessageOptions) -> Act:
    """Return the act."""
    path = parse_path(options.field) if options.field is not None else None

    def edit(body: Body) -> tuple[Body, str | None]:
        content = _content(body, options.content, path)
        messages = listed(body)
        if content is None or not messages:
            return body, None
        message = {"role": options.role, "content": content}
        places = [place for place in _places(messages, options) if not _is_said(messages, place, message)]
        if not places:
            return body, None
        return body.put(("messages",), _inserted(messages, places, message)), _loss(messages, places, options.role)

    return in_turn([edit])


def _content(body: Body, content: str, path: Path | None) -> str | None:
    if path is None:
        return content
    value = first(body, path)
    quoted = None if value is ABSENT or value is None else json_text(value)
    return None if quoted is None else join_texts(content, quoted, "\n")


def _places(messages: list[Any], options: InsertMessageOptions) -> Iterator[int]:
    start = next((index for index, message in enumerate(messages) if not is_instruction(message)), len(messages))
    for place in range(len(messages) + 1):
        left = {role_of(messages[place - 1]) if place else None, "start" if place == start else None}
        right = {role_of(messages[place]) if place < len(messages) else "end"}
        if (options.after is None or left & set(options.after)) and (
            options.before is None or right & set(options.before)
        ):
            yield place


def _is_said(messages: list[Any], place: int, message: dict[str, Any]) -> bool:
    return any(_says(neighbour, message) for neighbour in messages[max(place - 1, 0) : place + 1])


def _says(neighbour: Any, message: dict[str, Any]) -> bool:
    if role_of(neighbour) != message["role"]:
        return False
    text = full_text(neighbour)
    return message["content"] in text if message["content"] else not text


def _inserted(messages: list[Any], places: list[int], message: dict[str, Any]) -> list[Any]:
    inserted: list[Any] = []
    due = frozenset(places)
    for index, present in enumerate([*messages, None]):
        inserted += [message] if index in due else []
        inserted += [present] if index < len(messages) else []
    return inserted


def _loss(messages: list[Any], places: list[int], role: str) -> str | None:
    added = counted([(f"{role} message", "added")] * len(places))
    ends_a_prefill = role == "user" and places[-1] == len(messages) and role_of(messages[-1]) == "assistant"
    return f"{added}, the last answer is not continued" if ends_a_prefill else added


CARD = Card(
    name="insert_message",
    options=InsertMessageOptions,
    build=build,
    is_exact=False,
    loses="an added message",
    doc=__doc__,
)
