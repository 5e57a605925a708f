"""What a stand-in generates: one task a choice becomes a row of tokens, and rows run side by side.

    Task → Token(reasoning) … Token(content) … Token(end)

Each token counts as one completion token. The last one carries the finish; text that might begin a stop string is
held back until it is known not to.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from proxy.standin import text

Kind = Literal["reasoning", "content", "name", "arguments", "end"]
END_OF_TEXT: Final = 2
_ENDLESS_PACE_S: Final = 0.001  # an endless answer may not starve the event loop


@dataclass(frozen=True, slots=True)
class Finish:
    """Why a choice ended; `matched` is the stop string, or the id of the end token."""

    reason: str
    matched: str | int | None = None


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token. `text` may be empty: held back, or the end itself."""

    kind: Kind
    text: str
    finish: Finish | None = None
    cost: int = 1


@dataclass(frozen=True, slots=True)
class Task:
    """What one choice is to say. `schema` asks for JSON text, `call` is a tool call (name, arguments)."""

    prompt: str
    variant: int = 0
    max_tokens: int | None = None
    stops: tuple[str, ...] = ()
    is_thinking: bool = False
    schema: dict[str, Any] | None = None
    call: tuple[str, str] | None = None

    @property
    def is_endless(self) -> bool:
        """Whether only the client's leaving ends it."""
        return self.max_tokens is None and self.schema is None and self.call is None and text.is_endless(self.prompt)


def write(task: Task) -> Iterator[Token]:
    """Yield the task's tokens; the last one has the finish."""
    if task.max_tokens == 0:
        yield Token("end", "", Finish("length"), cost=0)
        return
    guard = _StopGuard(task.stops)
    for count, (kind, piece) in enumerate(_script(task), start=1):
        if kind == "content":
            piece = guard.feed(piece)
            if guard.matched is not None:
                yield Token(kind, piece, Finish("stop", guard.matched))
                return
        if count == task.max_tokens:
            yield Token(kind, piece + guard.flush(), Finish("length"))
            return
        yield Token(kind, piece)
    if held := guard.flush():
        yield Token("content", held, cost=0)
    yield Token("end", "", Finish("tool_calls" if task.call else "stop", END_OF_TEXT))


def _script(task: Task) -> Iterator[tuple[Kind, str]]:
    if task.is_thinking:
        yield from (("reasoning", piece) for piece in text.reasoning(task.prompt))
    if task.call:
        yield "name", task.call[0]
        yield from (("arguments", piece) for piece in text.pieces(task.call[1]))
    elif task.schema is not None:
        example = text.instance(task.schema, f"answer {task.variant}")
        yield from (("content", piece) for piece in text.pieces(json.dumps(example or {"answer": task.variant})))
    else:
        yield from (("content", piece) for piece in text.answer(task.prompt, task.variant))


class _StopGuard:
    """Lets text through up to the first stop string."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""
        self.matched: str | None = None

    def feed(self, piece: str) -> str:
        self._held += piece
        found = [(self._held.index(stop), order) for order, stop in enumerate(self._stops) if stop in self._held]
        if found:
            end, order = min(found)
            self.matched = self._stops[order]
            return self._held[:end]
        keep = max((self._begun(stop) for stop in self._stops), default=0)
        out, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return out

    def _begun(self, stop: str) -> int:
        lengths = range(min(len(stop) - 1, len(self._held)), 0, -1)
        return next((length for length in lengths if self._held.endswith(stop[:length])), 0)

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held


async def rounds(tasks: Sequence[Task], pace_s: float) -> AsyncIterator[list[tuple[int, Token]]]:
    """Yield, round by round, one token of each choice that still runs. Units: `pace_s` passes between rounds."""
    writers = {index: write(task) for index, task in enumerate(tasks)}
    if any(task.is_endless for task in tasks):
        pace_s = max(pace_s, _ENDLESS_PACE_S)
    while writers:
        tokens = [(index, next(writer)) for index, writer in writers.items()]
        yield tokens
        for index, token in tokens:
            if token.finish:
                del writers[index]
        await asyncio.sleep(pace_s if writers else 0)


@dataclass(frozen=True, slots=True)
class Written:
    """One whole choice."""

    tokens: tuple[Token, ...]
    finish: Finish

    def joined(self, kind: Kind) -> str:
        """Return all text of a kind."""
        return "".join(token.text for token in self.tokens if token.kind == kind)

    def count(self, kind: Kind | None = None) -> int:
        """Return the number of tokens, of one kind or of all."""
        return sum(token.cost for token in self.tokens if kind in (None, token.kind))


async def collect(tasks: Sequence[Task], pace_s: float) -> list[Written]:
    """Return every choice, whole; it takes as long as streaming it does."""
    rows: list[list[Token]] = [[] for _ in tasks]
    async for tokens in rounds(tasks, pace_s):
        for index, token in tokens:
            rows[index].append(token)
    return [Written(tuple(row), row[-1].finish or Finish("stop")) for row in rows]
