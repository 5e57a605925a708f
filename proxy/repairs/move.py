"""Rename a field, or move it elsewhere in the body.

## What it does

Takes the value away from its old path and writes it at the new one, with the objects on the way. A value that is
already there stays, and then the field stays too; null counts as no value. With `over: true` the moved value wins,
unless it is null. Wildcards of both paths pair up, so `messages[*].a: messages[*].b` renames within each message, and
`functions[*]: tools[*].function` makes the list that is missing, element by element. A path may lead into the moved
value (`stop: stop.text`), or with `over: true` out of it (`tool_choice.mode: tool_choice`).

## When a backend needs it

It knows the field by another name (`max_tokens` for `max_completion_tokens`), and refuses or ignores OpenAI's.

## What the client loses

Nothing: it is the same request in the backend's words. With `over: true` the value that stood there, if it was another.

## Options

A mapping of old paths to new ones, or to `{to: new path, over: true}`.

## Example

```yaml
move:
  max_completion_tokens: {to: max_tokens, over: true}
  messages[*].reasoning_content: messages[*].reasoning
```
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from pydantic import Field, RootModel, model_validator

from proxy.body import Body
from proxy.fields import ABSENT, ANY, Path, Place, find, first, parse_path
from proxy.matching import Problem
from proxy.repairs.card import Act, Card
from proxy.repairs.chains import may_meet, refuse_late_makers
from proxy.repairs.edits import in_turn
from proxy.repairs.losses import replaced
from proxy.repairs.options import STRICT, FieldPath, Options, ShortForm, misfit
from proxy.repairs.places import write_into
from proxy.repairs.values import Changes, is_identical
from proxy.repairs.writes import Editor, cut_all, nested


class Target(Options):
    """Where a field goes."""

    to: FieldPath = Field(description="The new path, with as many wildcards as the old one.")
    over: bool = Field(default=False, description="Whether the moved value replaces one that is already there.")


RawTarget = Annotated[Target, ShortForm(lambda raw: {"to": raw} if isinstance(raw, str) else raw, {"type": "string"})]


class MoveOptions(RootModel[dict[FieldPath, RawTarget]]):
    """The fields to move."""

    model_config = STRICT

    root: dict[FieldPath, RawTarget] = Field(min_length=1, description="Old paths and where they go.")

    @model_validator(mode="after")
    def _leads_somewhere(self) -> MoveOptions:
        moves = [Move.of(text, target) for text, target in self.root.items()]
        problems: list[Problem] = [((move.source.text,), why) for move in moves for why in _misled(move)]
        problems = problems or list(_chained(moves))
        if problems:
            raise misfit(problems)
        refuse_late_makers([(move.source.text, move.to) for move in moves])
        return self


class Move(msgspec.Struct, frozen=True):
    """One entry, compiled."""

    source: Path
    to: Path
    over: bool

    @classmethod
    def of(cls, text: str, target: Target) -> Move:
        """Return the entry of a path and its target."""
        return cls(parse_path(text), parse_path(target.to), target.over)

    @property
    def is_inward(self) -> bool:
        """Whether the field moves into its own value."""
        return self.to.steps[: len(self.source.steps)] == self.source.steps

    @property
    def is_outward(self) -> bool:
        """Whether the field takes the place of what holds it."""
        return self.source.steps[: len(self.to.steps)] == self.to.steps

    def run(self, body: Body) -> tuple[Body, str | None]:
        """Return the body with the values moved, and what that loses; the same body where nothing was moved."""
        editor = Editor(body)
        replacements: Changes = []
        left: list[Place] = []
        for place, value in find(body, self.source):
            target = self._target(place)
            old = first(editor, Path("", target))
            if self._may_move(value, old) and self._move(editor, place, target, value):
                left += [] if self.is_inward or self.is_outward else [place]
                replacements += [] if old is ABSENT or old is None or is_identical(old, value) else [(old, value)]
        moved = editor.body()
        return (cut_all(moved, left) if left else moved), replaced(self.to.text, replacements)

    def _target(self, place: Place) -> Place:
        bound = iter(step for step, pattern in zip(place, self.source.steps, strict=True) if pattern is ANY)
        return tuple(step if isinstance(step, str | int) else next(bound) for step in self.to.steps)

    def _may_move(self, value: Any, old: Any) -> bool:
        return value is not None and (self.over or old is ABSENT or old is None)

    def _move(self, editor: Editor, place: Place, target: Place, value: Any) -> bool:
        if self.is_inward:
            editor.put(place, nested(target[len(place) :], value))
            return True
        if self.is_outward and first(value, Path("", place[len(target) :])) is not ABSENT:
            return False  # the value holds such a field itself, and would be moved again
        return write_into(editor, target, value, grows=self.to.is_plural)


def _misled(move: Move) -> Iterator[str]:
    source, to = move.source.steps, move.to.steps
    if source == to:
        yield "it is moved to where it is"
    elif source.count(ANY) != to.count(ANY):
        yield "both paths need the same number of wildcards, which pair up"
    elif isinstance(source[-1], int):
        yield "each run would take another element: name a field, or all elements"
    elif move.is_inward and (move.over or any(isinstance(step, int) for step in to[len(source) :])):
        yield "a field moves into itself by names, and never over a value"
    elif move.is_outward and not move.over:
        yield f"{move.to.text!r} holds it, so it is always there: say over: true to replace it"
    elif move.over and source[-1] is ANY:
        yield "elements can't be moved over others: name a field of them"
    elif may_meet(move.source, move.to) and not (move.is_inward or move.is_outward):
        yield f"it can be moved to a place that {move.source.text!r} names again"


def _chained(moves: list[Move]) -> Iterator[Problem]:
    for move in moves:
        for other in moves:
            if other is not move and may_meet(move.to, other.source):
                why = f"{move.to.text!r} is moved on by {other.source.text!r}: make two repairs of it"
                yield (move.source.text,), why


def build(options: MoveOptions) -> Act:
    """Return the act."""
    return in_turn([Move.of(text, target).run for text, target in options.root.items()])


CARD = Card(
    name="move",
    options=MoveOptions,
    build=build,
    is_exact=None,
    loses="with over: true the value that was already there",
    doc=__doc__,
)
