"""One choice of an answer whose text ends at a stop string.

a piece:  passes ── held back while it may be a part of one ── cut: finish_reason "stop" ── silent from then on
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from proxy.repairs.stop_strings import Needle, StopSearch
from proxy.repairs.token_logprobs import Trail, first_tokens, offsets_of, tokens_of

REASONING: Final = ("reasoning_content", "reasoning")
_CALLS: Final = ("tool_calls", "function_call")


@dataclass(frozen=True, slots=True)
class Cutting:
    """What the choices of an answer are searched for. `echoed` are the prompts that a choice may begin with."""

    stops: tuple[str, ...]
    is_chat: bool = True
    with_reasoning: bool = False
    echoed: tuple[str, ...] = ()
    needles: tuple[Needle, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "needles", tuple(map(Needle.of, self.stops)))

    @property
    def main(self) -> str:
        """The name of the field that holds the answer's text."""
        return "content" if self.is_chat else "text"

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields that are searched, in the order in which a model writes them."""
        return (*REASONING, self.main) if self.with_reasoning and self.is_chat else (self.main,)


class CutChoice:
    """The choice, whole or while its pieces pass."""

    def __init__(self, cutting: Cutting) -> None:
        self.is_cut = False
        self.has_ended = False
        self._cutting = cutting
        self._searches = {name: StopSearch(cutting.needles) for name in cutting.fields}
        self._trail = Trail()
        self._start = 0  # of the piece at hand, within the answer's text
        self._echo: int | None = None  # how much of an echoed prompt is still to come; None before any text

    @property
    def is_over(self) -> bool:
        """Whether the client gets no more of it."""
        return self.is_cut or self.has_ended

    def whole(self, choice: dict[str, Any]) -> dict[str, Any]:
        """Return the choice of a JSON answer, cut; the same one where it holds no stop string."""
        holder = _holder(choice, "message" if self._cutting.is_chat else None)
        text = holder.get(self._cutting.main)
        body = self._body(holder, is_last=True)
        if not self.is_cut:
            return choice
        cut = self._passed(choice, body, "message")
        logprobs: Any = choice.get("logprobs")
        tokens = tokens_of(logprobs)
        if not tokens or not isinstance(text, str) or not "".join(tokens).startswith(text):
            return cut
        kept = len(body.get(self._cutting.main) or "")
        offsets = offsets_of(tokens, "".join(tokens), 0)
        return cut | {"logprobs": first_tokens(logprobs, sum(offset < kept for offset in offsets))}

    def piece(self, choice: dict[str, Any]) -> dict[str, Any]:
        """Return a chunk's choice without what is cut off or held back."""
        is_last = bool(choice.get("finish_reason"))
        self.has_ended = self.has_ended or is_last
        if self.is_cut:
            return self._silent(choice)
        holder = _holder(choice, "delta" if self._cutting.is_chat else None)
        body = self._body(holder, is_last=is_last)
        passed = self._passed(choice, body, "delta") if body is not holder or self.is_over else choice
        return passed | self._logprobs(choice, holder.get(self._cutting.main), is_last=is_last)

    def _body(self, holder: dict[str, Any], *, is_last: bool) -> dict[str, Any]:
        body = holder
        for name, search in self._searches.items():
            piece = holder.get(name)
            text = piece if isinstance(piece, str) else ""
            if text and name == self._cutting.main:
                body = self._without_held_reasoning(body)
            if not self.is_cut and (text or (is_last and search.is_holding)):
                text = self._searched(name, text, is_last=is_last)
            elif self.is_cut:
                text = ""
            if text != (piece or "") and (isinstance(piece, str) or text):
                body = body | {name: text}
        return body

    def _searched(self, name: str, text: str, *, is_last: bool) -> str:
        search = self._searches[name]
        echo = self._echoed(text) if name == self._cutting.main else 0
        out = text[:echo] + search.feed(text[echo:], is_last=is_last)
        self.is_cut = search.is_stopped
        return out

    def _echoed(self, text: str) -> int:
        """Return how much of a piece is the echo of the prompt."""
        if self._echo is None:
            met = [p for p in self._cutting.echoed if text.startswith(p) or p.startswith(text)]
            self._echo = max(map(len, met), default=0)
        echo = min(self._echo, len(text))
        self._echo -= echo
        return echo

    def _without_held_reasoning(self, body: dict[str, Any]) -> dict[str, Any]:
        """Where the answer begins, the reasoning is over, and no stop string reaches from one into the other."""
        for name, search in self._searches.items():
            if name != self._cutting.main and search.is_holding and not self.is_cut:
                told = body.get(name)
                body = body | {name: (told if isinstance(told, str) else "") + search.flush()}
                self.is_cut = search.is_stopped
        return body

    def _logprobs(self, choice: dict[str, Any], piece: Any, *, is_last: bool) -> dict[str, Any]:
        """Return the log probabilities of what passes, where those of the chunk don't pass as they are."""
        text, start = piece if isinstance(piece, str) else "", self._start
        self._start += len(text)
        search = self._searches[self._cutting.main]
        end = self._start - search.held if search.is_stopped or (search.is_holding and not is_last) else None
        if end is None and not self._trail.is_holding:
            return {}
        has_any = self._trail.feed(choice.get("logprobs"), text, start)
        released = self._trail.release(end)
        return {"logprobs": released} if has_any or released is not None else {}

    def _passed(self, choice: dict[str, Any], body: dict[str, Any], name: str) -> dict[str, Any]:
        """Return the choice with the body that is left of it."""
        if self.is_cut:
            body = {key: value for key, value in body.items() if key not in _CALLS or not value}
        passed = choice | ({name: body} if self._cutting.is_chat else body)
        return passed | {"finish_reason": "stop"} if self.is_cut else passed

    def _silent(self, choice: dict[str, Any]) -> dict[str, Any]:
        blank: dict[str, Any] = {"delta": {}} if self._cutting.is_chat else {"text": ""}
        logprobs = {"logprobs": None} if "logprobs" in choice else {}
        return choice | blank | logprobs | {"finish_reason": None}


def _holder(choice: dict[str, Any], name: str | None) -> dict[str, Any]:
    """Return the object that holds a choice's text: one of its fields, or itself."""
    held = choice.get(name) if name is not None else choice
    return held if isinstance(held, dict) else {}
