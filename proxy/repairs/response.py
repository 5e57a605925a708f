"""Repair the answer, not the request.

## What it does

Makes the listed repairs on the backend's answer, in their order: on a JSON answer as it is, on a stream's chunks one by
one. Errors are not touched. The field repairs work as they do on a request, `{field: path}` meaning a field of the
answer. Four more are for answers only:

| repair | what it does |
|---|---|
| `finish_with_calls: tool_calls` | a choice that called a tool and says `stop` ends with this finish_reason |
| `join_parts: {reasoning: name}` | of a content that is a list of parts one text, the thinking apart |
| `skip_chunks: {path: test}` | a chunk for which all tests hold is not sent |
| `echo_prompt: true` | a completion begins with its prompt where `echo` is true; put it before the `drop` of `echo` |

## When a backend needs it

It answers in other words than OpenAI (`reasoning`, a finish_reason of its own), leaves out or adds what strict clients
stumble over, or did not do what the request, repaired, no longer asks for.

## What the client loses

What the repairs take away. That is not known before the answer, so each that might lose something is told, by its name
and paths; where it never does, the rule should say `loses: nothing`.

## Options

A list of repairs: `clamp coerce default drop keep map move set` and the four above. Paths are those of a JSON answer;
in a chunk, `message` stands for `delta`, so `choices[*].message.reasoning` names both. What differs between the two is
written as a mapping: `both` (as the list alone), `answer` (JSON answers only), `chunk` (chunks only, with their own
`delta`; on paths without chunks each event's JSON). Both come first.

## Example

```yaml
response:
  both:
    - move:
        choices[*].message.reasoning: choices[*].message.reasoning_content
    - finish_with_calls: tool_calls
  chunk:
    - keep:
        choices[*].delta.tool_calls: {where: {index: {lt: 1}}}
```
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import structs
from pydantic import BaseModel

from proxy.body import Body
from proxy.repairs import answer_edits, clamp, coerce, default, drop, keep, move
from proxy.repairs import map as map_
from proxy.repairs import set as set_
from proxy.repairs.answer_edits import Echo, Edit, MakeEdit, with_choices
from proxy.repairs.answer_options import AnswerRepair, ResponseOptions
from proxy.repairs.card import Act, Card, Change, Draft, Undo
from proxy.repairs.losses import fields_lost, join_losses

FIELD_REPAIRS: Final[Mapping[str, Card]] = {
    "clamp": clamp.CARD,
    "coerce": coerce.CARD,
    "default": default.CARD,
    "drop": drop.CARD,
    "keep": keep.CARD,
    "map": map_.CARD,
    "move": move.CARD,
    "set": set_.CARD,
}
ANSWER_EDITS: Final[Mapping[str, Callable[[Any], MakeEdit]]] = {
    "finish_with_calls": answer_edits.finish_with_calls,
    "join_parts": answer_edits.join_parts,
    "skip_chunks": answer_edits.skip_chunks,
}


Prepare = Callable[[Draft], MakeEdit | None]
"""A request → what makes the edit for each of its branches; None where the request has no use for it."""


class Mending(msgspec.Struct, frozen=True):
    """What makes the answer half."""

    both: tuple[MakeEdit, ...]
    answer: tuple[MakeEdit, ...]
    chunk: tuple[MakeEdit, ...]

    def __call__(self) -> Undo:
        """Return the answer half of one branch."""
        return Mended(self)


def build(options: ResponseOptions) -> Act:
    """Return the act."""
    shapes = options.shapes
    lists = [[_prepare(entry) for entry in entries] for entries in (shapes.both, shapes.answer, shapes.chunk)]
    entries = [*shapes.both, *shapes.answer, *shapes.chunk]

    def act(draft: Draft) -> Change | None:
        both, answer, chunk = (tuple(_made(prepared, draft)) for prepared in lists)
        mending = Mending(both, answer, chunk)
        if not (both or answer or chunk) or mending in draft.undos:
            return None
        loss = join_losses(_loses(entry, draft) for entry in entries)
        return Change(structs.replace(draft, undos=(*draft.undos, mending)), loses=loss and f"in the answer: {loss}")

    return act


def _prepare(entry: AnswerRepair) -> Prepare:
    if entry.name == "echo_prompt":
        return Echo.of
    make = _field_edit(entry) if entry.name in FIELD_REPAIRS else ANSWER_EDITS[entry.name](entry.options)
    return lambda _: make


def _field_edit(entry: AnswerRepair) -> MakeEdit:
    act = FIELD_REPAIRS[entry.name].build(entry.options)

    def edit(answer: dict[str, Any], _: bool) -> dict[str, Any]:
        change = act(Draft(Body.of(answer)))
        return answer if change is None else dict(change.draft.body)

    return lambda: edit


def _made(prepared: Sequence[Prepare], draft: Draft) -> Iterator[MakeEdit]:
    for prepare in prepared:
        make = prepare(draft)
        if make is not None:
            yield make


def _loses(entry: AnswerRepair, draft: Draft) -> str | None:
    """Return what a repair may lose, which is told in advance; None where it can't lose anything."""
    if entry.name == "skip_chunks":
        return "chunks left out"
    if entry.name == "echo_prompt":
        return "log probabilities of the prompt" if draft.body.get("logprobs") is not None and Echo.of(draft) else None
    if entry.name not in FIELD_REPAIRS or not _may_lose(entry):
        return None
    return f"{entry.name} {fields_lost(list(_paths(entry.options)))}"


def _may_lose(entry: AnswerRepair) -> bool:
    if entry.move is not None:
        return any(target.over for target in entry.move.root.values())
    if entry.coerce is not None:
        return any(c.round or c.allowed or c.otherwise == "empty" for c in entry.coerce.root.values())
    return FIELD_REPAIRS[entry.name].is_exact is not True


def _paths(options: BaseModel) -> Iterator[str]:
    root: Any = getattr(options, "root", ())
    for mapping in root if isinstance(root, list) else [root]:
        yield from mapping


class Mended:
    """The answer half, at work on one branch."""

    is_done = False

    def __init__(self, mending: Mending) -> None:
        self._both, self._answer, self._chunk = (
            [make() for make in makers] for makers in (mending.both, mending.answer, mending.chunk)
        )

    def chunk(self, chunk: dict[str, Any]) -> dict[str, Any]:
        """Return the chunk repaired; {} where it is not to be sent."""
        if self._both:
            chunk = _renamed(_edited(_renamed(chunk, "delta", "message"), self._both, True), "message", "delta")
        return _edited(chunk, self._chunk, True)

    def answer(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Return the answer repaired."""
        return _edited(answer, [*self._both, *self._answer], False)


def _edited(answer: dict[str, Any], edits: Sequence[Edit], is_chunk: bool) -> dict[str, Any]:
    for edit in edits:
        answer = edit(answer, is_chunk) if answer else answer
    return answer


def _renamed(chunk: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    """Return the chunk with that field of its choices renamed in its place."""

    def rename(_: int, choice: dict[str, Any]) -> dict[str, Any]:
        if old not in choice or new in choice:
            return choice
        return {new if key == old else key: value for key, value in choice.items()}

    return with_choices(chunk, rename)


CARD = Card(
    name="response",
    options=ResponseOptions,
    build=build,
    is_exact=None,
    loses="what its repairs may take out of the answer",
    doc=__doc__,
)
