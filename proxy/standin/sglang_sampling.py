"""The sampling parameters that sglang refuses, in the order in which it looks at them.

Source: recorded refusals r01 to s12 of sglang 0.5.23; sglang.md §4.3.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Final

from proxy.standin.sglang_schema import Chat, Completion

_VOCABULARY: Final = 2048
_MAX_STOPS: Final = 32
_STOP_REGEX_BYTES: Final = 256


def sampling_fault(ask: Chat | Completion, limit: int | None) -> Iterator[str | None]:
    """Yield what is wrong with each parameter, None where nothing is."""
    yield from _stop_regex(ask)
    yield from _probabilities(ask)
    yield from _lengths(ask.min_tokens, limit)
    yield from _bias(ask)
    constraints = (ask.response_format is not None and ask.response_format.type != "text", ask.regex, ask.ebnf)
    if sum(map(bool, constraints)) > 1:
        yield "Only one of json_schema, regex, ebnf, or structural_tag can be set."
    stops = ask.stop if isinstance(ask.stop, list) else []
    if len(stops) > _MAX_STOPS:
        yield f"at most {_MAX_STOPS} stop strings are allowed, got {len(stops)}"
    if ask.seed is not None and not -(2**63) <= ask.seed < 2**63:
        yield f"sampling_seed must be in [-2**63, 2**63 - 1], got {ask.seed}."


def _probabilities(ask: Chat | Completion) -> Iterator[str | None]:
    temperature = 1.0 if ask.temperature is None else ask.temperature
    if temperature < 0 or not math.isfinite(temperature):
        yield f"temperature must be a non-negative finite number, got {temperature}."
    if ask.top_p is not None and not 0 < ask.top_p <= 1:
        yield f"top_p must be in (0, 1], got {ask.top_p}."
    if ask.min_p is not None and not 0 <= ask.min_p <= 1:
        yield f"min_p must be in [0, 1], got {ask.min_p}."
    if ask.top_k is not None and ask.top_k < 1 and ask.top_k != -1:
        yield f"top_k must be -1 (disable) or at least 1, got {ask.top_k}."
    for name, value in (("frequency", ask.frequency_penalty), ("presence", ask.presence_penalty)):
        yield None if -2 <= value <= 2 else f"{name}_penalty must be in [-2, 2], got {value}."
    if ask.repetition_penalty is not None and not 0 < ask.repetition_penalty <= 2:
        yield f"repetition_penalty must be in (0, 2] (1.0 = no penalty), got {ask.repetition_penalty}."


def _lengths(least: int, limit: int | None) -> Iterator[str | None]:
    if limit is not None and limit < 0:
        yield f"max_new_tokens must be at least 0, got {limit}."
    if least < 0:
        yield f"min_new_tokens must be in [0, max_new_tokens], got {least}."
    if limit is not None and least > limit:
        yield f"min_new_tokens must be in [0, max_new_tokens({limit})], got {least}."


def _bias(ask: Chat | Completion) -> Iterator[str | None]:
    for key in ask.logit_bias or {}:
        try:
            token = int(key)
        except ValueError as error:
            yield str(error)
            return
        if not 0 <= token < _VOCABULARY:
            yield f"logit_bias must has keys in [0, {_VOCABULARY - 1}], got {token}."


def _stop_regex(ask: Chat | Completion) -> Iterator[str | None]:
    for pattern in [ask.stop_regex] if isinstance(ask.stop_regex, str) else ask.stop_regex or []:
        size = len(pattern.encode())
        if size > _STOP_REGEX_BYTES:
            yield f"stop_regex is {size} bytes, over the {_STOP_REGEX_BYTES}-byte limit"
        try:
            re.compile(pattern)
        except re.error as error:
            yield f"Internal server error: {error}"
