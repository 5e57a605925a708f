"""Stop the answer at the client's stop strings, for backends that don't.

## What it does

Cuts the text of each choice before the first of the stop strings that `stop` holds and gives it the finish_reason
`stop`. Of a stream, text that may still become a stop string is held back until the next chunk decides. Once every
choice of the backend's stream is cut or finished, its connection is closed, so that it need not go on. Tool calls after
the cut are left out with the text; `matched_stop` and such are left as they came.

## When a backend needs it

It ignores `stop` (LlamaFactory's own engine), refuses it (`'stop' is not supported with this model`), or takes only so
many (`at most 32 stop strings are allowed`).

## What the client loses

Nothing of the answer. The tokens up to where the backend stopped are billed. A stream that is closed early has no
usage, and where that was asked for it is told as lost.

## Options

`drop`: take `stop` out of the request. `after`: send the first so many stop strings, and enforce those beyond them.
`reasoning`: look into the reasoning too. `close`: whether the stream is closed early; `false` waits for its usage. All
may be left out. Put it after `fan_out` and `split`: they change how many choices a stream has, and one that seems to
have more is not closed early.

The text is that of a message's `content`, or of a completion; an echoed prompt is not searched. Log probabilities are
cut with the text; of a JSON answer only where its tokens spell its text. Empty stop strings, and what is no string, are
left to the backend.

## Example

```yaml
enforce_stop: {drop: true}
```
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import structs
from pydantic import Field, model_validator

from proxy.body import Body
from proxy.matching.values import is_integer
from proxy.repairs.answer_edits import with_choices
from proxy.repairs.card import Act, Card, Change, Draft, Undo
from proxy.repairs.cut_choices import CutChoice, Cutting
from proxy.repairs.options import Options, misfit


class EnforceStopOptions(Options):
    """Which stop strings are enforced, and where."""

    drop: bool = Field(default=False, description="Whether `stop` is taken out of the request.")
    after: int | None = Field(default=None, ge=1, description="How many stop strings the backend enforces itself.")
    reasoning: bool = Field(default=False, description="Whether the reasoning is searched too.")
    close: bool = Field(default=True, description="Whether a stream of which nothing more is due is closed.")

    @model_validator(mode="after")
    def _fits_together(self) -> EnforceStopOptions:
        if self.drop and self.after is not None:
            raise misfit([(("after",), "with drop the backend gets no stop strings: say one of them")])
        return self


class Enforcement(msgspec.Struct, frozen=True):
    """What makes the answer half. `choices` is how many a branch will give; None where that can't be told."""

    cutting: Cutting
    choices: int | None

    def __call__(self) -> Undo:
        """Return the answer half of one branch."""
        return StopUndo(self.cutting, self.choices)


def build(options: EnforceStopOptions) -> Act:
    """Return the act."""

    def act(draft: Draft) -> Change | None:
        if draft.rejection is not None or not draft.path.endswith("/completions"):
            return None
        sent, enforced = _parted(draft.body.get("stop"), options.after or 0)
        if not enforced:
            return None
        factory = Enforcement(_cutting(draft, enforced, options), _choices(draft) if options.close else None)
        if factory in draft.undos:
            return None
        body = _body(draft.body, sent, options)
        return Change(
            structs.replace(draft, body=body, undos=(*draft.undos, factory)),
            loses="the usage of a stream that is cut" if factory.choices is not None and _wants_usage(body) else None,
        )

    return act


def _parted(stop: Any, first: int) -> tuple[list[Any], tuple[str, ...]]:
    """Return the stop strings that the backend is sent, and those that are enforced here."""
    stops = stop if isinstance(stop, list) else [stop]
    return stops[:first], tuple(dict.fromkeys(item for item in stops[first:] if isinstance(item, str) and item))


def _body(body: Body, sent: list[Any], options: EnforceStopOptions) -> Body:
    if options.drop:
        return body.cut(("stop",))
    return body if options.after is None else body.put(("stop",), sent)


def _cutting(draft: Draft, stops: tuple[str, ...], options: EnforceStopOptions) -> Cutting:
    is_chat = draft.path.endswith("/chat/completions")
    echoed = _prompts(draft.body) if not is_chat and draft.body.get("echo") is True else []
    texts = tuple(prompt for prompt in echoed if isinstance(prompt, str))
    return Cutting(stops, is_chat=is_chat, with_reasoning=options.reasoning, echoed=texts)


def _prompts(body: Body) -> list[Any]:
    prompt: Any = body.get("prompt")
    return prompt if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list) else [prompt]


def _choices(draft: Draft) -> int | None:
    """Return how many choices a branch will give at most. A text or boolean `n` is the backend's to understand."""
    n: Any = draft.body.get("n")
    if n is None:  # also of a fan-out, which took it out
        n = 1
    if not is_integer(n) or n < 1:
        return None
    prompts = 1 if draft.path.endswith("/chat/completions") else len(_prompts(draft.body))
    return int(n) * (min(prompts, draft.split.size) if draft.split is not None else prompts)


def _wants_usage(body: Body) -> bool:
    options: Any = body.get("stream_options")
    return body.get("stream") is True and isinstance(options, dict) and options.get("include_usage") is True


class StopUndo:
    """The answer half, at work on one branch."""

    def __init__(self, cutting: Cutting, choices: int | None) -> None:
        self._cutting = cutting
        self._expected = choices
        self._choices: dict[int, CutChoice] = {}

    @property
    def is_done(self) -> bool:
        """Whether every choice is over, and one of them only because it was cut: a backend that has ended may go on."""
        if self._expected is None or len(self._choices) < self._expected:
            return False
        states = self._choices.values()
        return all(state.is_over for state in states) and any(not state.has_ended for state in states)

    def chunk(self, chunk: dict[str, Any]) -> dict[str, Any]:
        """Return the chunk without what stands behind a stop string, or may be a part of one."""
        return with_choices(chunk, self._passed)

    def answer(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Return the answer, each choice cut."""
        return with_choices(answer, lambda _, choice: CutChoice(self._cutting).whole(choice))

    def _passed(self, index: int, choice: dict[str, Any]) -> dict[str, Any]:
        return self._choices.setdefault(index, CutChoice(self._cutting)).piece(choice)


CARD = Card(
    name="enforce_stop",
    options=EnforceStopOptions,
    build=build,
    is_exact=None,
    loses="nothing, but the usage of a stream that is cut",
    doc=__doc__,
)
