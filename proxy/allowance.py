"""How much of the answers to one request may be held at once: the policy's `limits.response`, for all its branches.

whole JSON answers, chunks that are collected or wait for proof of life → bytes taken from one allowance → a fault
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proxy.chunks import IDENTITY, encode_json, indexed_choices, is_blank
from proxy.errors import BackendFault

# What a merger keeps of a choice, whatever the choice holds.
CHOICE_BYTES = 512
# The last one counts, so it does not grow.
_REPLACED = frozenset({*IDENTITY, "usage", "choices"})


class Allowance:
    """The bytes that the branches of one request may hold, together."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = self._left_bytes = limit_bytes

    def take(self, size_bytes: int) -> None:
        """Note that bytes are held. Raises: BackendFault `response_too_large` where these are too many."""
        self._left_bytes -= size_bytes
        if self._left_bytes < 0:
            raise BackendFault(
                f"The backend's answer is larger than the policy's limits.response ({self._limit_bytes} bytes).",
                code="response_too_large",
                token="http_response_body_size",
            )


class Kept:
    """Counts what stays of one branch's chunks: what they add to a collected answer, or to a merger's memory."""

    def __init__(self, allowance: Allowance) -> None:
        self._allowance = allowance
        self._names: set[str] = set()
        self._indexes: set[int] = set()

    def chunk(self, chunk: Mapping[str, Any], *, is_collected: bool) -> None:
        """Note a chunk. Raises: BackendFault `response_too_large`."""
        for name in chunk.keys() - _REPLACED - self._names:
            self._names.add(name)
            self._allowance.take(len(name) + len(encode_json(chunk[name])))
        for index, choice in indexed_choices(chunk):
            if index not in self._indexes:
                self._indexes.add(index)
                self._allowance.take(CHOICE_BYTES)
            if is_collected:
                self._allowance.take(len(encode_json([value for value in choice.values() if not is_blank(value)])))
