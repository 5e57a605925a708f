"""The JSON objects of sglang's answers, with their keys in the order of the wire.

Source: transcripts c01 to c24, p01 to p54 of sglang 0.5.23; sglang.md §7.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from proxy.standin.generation import Finish, Token, Written

_FIRST_TEXT_ID: Final = 3
_TEXT_IDS: Final = 2045
_METADATA: Final = "default"


@dataclass(frozen=True, slots=True)
class Tally:
    """Tokens so far: the prompts' once each, the choices' summed."""

    prompt: int
    completion: int
    reasoning: int = 0

    def usage(self) -> dict[str, Any]:
        """Return the usage object."""
        return {
            "prompt_tokens": self.prompt,
            "total_tokens": self.prompt + self.completion,
            "completion_tokens": self.completion,
            "prompt_tokens_details": None,
            "reasoning_tokens": self.reasoning,
            "completion_tokens_details": {"reasoning_tokens": self.reasoning} if self.reasoning else None,
        }


def tally(prompt_tokens: int, choices: Sequence[Written]) -> Tally:
    """Return the tally of whole choices."""
    return count(prompt_tokens, [token for choice in choices for token in choice.tokens])


def count(prompt_tokens: int, tokens: Sequence[Token]) -> Tally:
    """Return the tally of tokens generated so far."""
    reasoning = sum(token.cost for token in tokens if token.kind == "reasoning")
    return Tally(prompt_tokens, sum(token.cost for token in tokens), reasoning)


def token_id(piece: str) -> int:
    """Return a piece's token id: always the same, and within the vocabulary."""
    return _FIRST_TEXT_ID + zlib.crc32(piece.encode()) % _TEXT_IDS


def token_ids(tokens: Sequence[Token]) -> list[int]:
    """Return the ids of generated tokens."""
    return [token_id(token.text) for token in tokens if token.cost]


def logprob(piece: str) -> float:
    """Return the log probability of a piece."""
    return round(-0.25 - (zlib.crc32(piece.encode()) % 1000) / 500, 3)


def alternatives(piece: str, count: int) -> list[tuple[str, float]]:
    """Return the likeliest pieces at this place, the one taken first."""
    return [(piece if rank == 0 else f"{piece}{rank}", logprob(piece) - rank / 4) for rank in range(count)]


def chat_logprobs(tokens: Sequence[Token], top: int) -> dict[str, Any] | None:
    """Return a chat choice's `logprobs`; None without tokens."""
    content = [_chat_logprob(token.text, top) for token in tokens if token.text]
    return {"content": content} if content else None


def _chat_logprob(piece: str, top: int) -> dict[str, Any]:
    entry = _one_logprob(piece, logprob(piece))
    return entry | {"top_logprobs": [_one_logprob(other, value) for other, value in alternatives(piece, top)]}


def _one_logprob(piece: str, value: float) -> dict[str, Any]:
    return {"token": piece, "bytes": list(piece.encode()), "logprob": value}


def text_logprobs(prompt: Sequence[str], generated: Sequence[str], top: int) -> dict[str, Any]:
    """Return a text choice's `logprobs`; the echoed prompt's first piece has none."""
    pieces = [*prompt, *generated]
    unknown = 1 if prompt else 0
    known = [dict(alternatives(piece, top)) for piece in pieces[unknown:]] if top else []
    return {
        "text_offset": [-1] * len(pieces),
        "token_logprobs": [None] * unknown + [logprob(piece) for piece in pieces[unknown:]],
        "tokens": pieces,
        "top_logprobs": [None] * unknown + known if top else [],
    }


def metadata(tokens: int) -> dict[str, Any]:
    """Return what a whole answer ends with."""
    return {"weight_version": _METADATA, "weight_versions": _weights(tokens)}


def _weights(tokens: int) -> list[dict[str, Any]]:
    return [{"version": _METADATA, "start": 0, "end": tokens}]


def meta_info(rid: str, prompt_tokens: int, choice: Written, top: int | None, started: float) -> dict[str, Any]:
    """Return a choice's `meta_info`; `top` is None where no logprobs were asked for."""
    tokens = choice.count()
    return {
        "id": rid,
        "finish_reason": _finish(choice.finish, tokens),
        "prompt_tokens": prompt_tokens,
        "weight_version": _METADATA,
        "num_retractions": 0,
        **({} if top is None else _raw_logprobs(choice, top)),
        "reasoning_tokens": choice.count("reasoning"),
        "completion_tokens": tokens,
        "cached_tokens": prompt_tokens - 1,
        "weight_versions": _weights(tokens),
        "cached_tokens_details": {"device": prompt_tokens - 1, "host": 0},
        "dp_rank": None,
        "e2e_latency": time.monotonic() - started,
        "response_sent_to_client_ts": time.time(),
    }


def _finish(finish: Finish, tokens: int) -> dict[str, Any]:
    if finish.reason == "length":
        return {"type": "length", "length": tokens}
    return {"type": finish.reason, "matched": finish.matched}


def _raw_logprobs(choice: Written, top: int) -> dict[str, Any]:
    pieces = [token.text for token in choice.tokens if token.text]
    return {
        "input_token_logprobs": [],
        "output_token_logprobs": [[logprob(piece), token_id(piece), piece] for piece in pieces],
        "output_token_logprobs_length": len(pieces),
        "input_top_logprobs": [],
        "output_top_logprobs": [
            [[value, token_id(other), other] for other, value in alternatives(piece, top)] for piece in pieces
        ],
    }
