"""How much may be held at once: for one request's answers (`limits.response`), and for all (`limits.total`).

whole JSON answers, chunks that are collected or wait for proof of life → bytes taken from one allowance → a fault
bodies, and all that an allowance gives → bytes taken from the request's share of the reserve, until its end → 503
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proxy.chunks import IDENTITY, encode_json, indexed_choices, is_blank
from proxy.errors import BackendFault, ProxyFault

# What a merger keeps of a choice, whatever the choice holds.
CHOICE_BYTES = 512
# The last one counts, so it does not grow.
_REPLACED = frozenset({*IDENTITY, "usage", "choices"})


class Reserve:
    """The bytes that all requests may hold, together."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0

    def has(self, size_bytes: int) -> bool:
        """Return whether so many bytes are left."""
        return self.held_bytes + size_bytes <= self.limit_bytes


class Share:
    """What one request holds of the reserve."""

    __slots__ = ("_held_bytes", "_reserve")

    def __init__(self, reserve: Reserve) -> None:
        self._reserve = reserve
        self._held_bytes = 0

    def take(self, size_bytes: int) -> None:
        """Note that bytes are held, until `give_back`. Raises: ProxyFault 503 where there are no more to be had."""
        reserve = self._reserve
        if not reserve.has(size_bytes):
            raise ProxyFault(
                f"The proxy's memory is taken: limits.total is {reserve.limit_bytes} bytes. Try again later.",
                status=503,
                code="overloaded",
                token="proxy_internal_response",
            )
        reserve.held_bytes += size_bytes
        self._held_bytes += size_bytes

    def drop(self, size_bytes: int) -> None:
        """Note that bytes that were taken are held no longer."""
        self._reserve.held_bytes -= size_bytes
        self._held_bytes -= size_bytes

    def give_back(self) -> None:
        """Note that nothing is held any more."""
        self._reserve.held_bytes -= self._held_bytes
        self._held_bytes = 0


class Allowance:
    """The bytes that the branches of one request may hold, together; `share` is the request's."""

    def __init__(self, limit_bytes: int, share: Share | None = None) -> None:
        self._limit_bytes = self._left_bytes = limit_bytes
        self._share = share

    def take(self, size_bytes: int) -> None:
        """Note that bytes are held. Raises: BackendFault `response_too_large` where these are too many."""
        self._left_bytes -= size_bytes
        if self._left_bytes < 0:
            raise BackendFault(
                f"The backend's answer is larger than the policy's limits.response ({self._limit_bytes} bytes).",
                code="response_too_large",
                token="http_response_body_size",
            )
        if self._share is not None:
            self._share.take(size_bytes)


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
