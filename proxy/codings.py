"""Undoes the content coding of an answer while its bytes come.

    compressed bytes, cut anywhere → pieces of plain ones, none larger than PIECE_BYTES

A gzip stream may have several members (some servers make one of each event); what follows the last is no part of it.

Source: RFC 1952 §2.2, RFC 9110 §8.4.1 ("deflate" is zlib's format, or what that holds).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

from proxy.errors import BackendFault
from proxy.headers import Headers, content_coding

# What compressed bytes become is looked at in pieces, so that no bound is passed by more than one of them.
PIECE_BYTES = 256 * 1024
# Each member costs a copy of what follows it, so no more than this follows it.
_WINDOW_BYTES = 4 * 1024
_MEMBER = b"\x1f"

# The two bytes that zlib's format begins with. Source: RFC 1950 §2.2.
_HEADER_BYTES = 2
_ZLIB_METHOD, _ZLIB_CHECK = 8, 31

Inflate = Callable[[bytes], tuple[bytes, bytes]]
"""Bytes of a body → a piece of plain ones, and the bytes that are left for the next piece."""


def inflater(headers: Headers) -> Inflate:
    """Return what turns the bytes of a body into plain ones.

    Raises: BackendFault for a coding that is not known, and, from the function returned, for corrupt data.
    """
    coding = content_coding(headers)
    if coding == "identity":
        return lambda data: (data, b"")
    if coding not in ("gzip", "x-gzip", "deflate"):
        raise BackendFault(
            f"The backend compressed an answer with {coding!r} that was asked for uncompressed.",
            code="http_protocol_error",
        )
    return _Inflater(coding).feed


def beginning(headers: Headers, body: bytes, limit: int) -> bytes:
    """Return the first bytes of a whole body as plain ones, or as they are where that can't be. Units: bytes."""
    plain, rest = bytearray(), body
    try:
        inflate = inflater(headers)
        while rest and len(plain) < limit:
            piece, rest = inflate(rest)
            plain += piece
    except BackendFault:
        return body[:limit]
    return bytes(plain[:limit])


def window_bits(coding: str, data: bytes) -> int:
    """Return what zlib is to be told of data that begins like this, of which two bytes are enough."""
    is_bare = coding == "deflate" and (data[0] & 0x0F != _ZLIB_METHOD or int.from_bytes(data[:2]) % _ZLIB_CHECK)
    return -zlib.MAX_WBITS if is_bare else zlib.MAX_WBITS | 32


class _Inflater:
    def __init__(self, coding: str) -> None:
        self._coding = coding
        self._start = b""
        self._member = zlib.decompressobj(zlib.MAX_WBITS | 32)
        self._is_open = False
        self._is_over = False

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """Return a piece of what the bytes hold, and those that are left. Raises: BackendFault."""
        if not self._is_open:
            data = self._opened(data)
        window, later = data[:_WINDOW_BYTES], data[_WINDOW_BYTES:]
        plain = b""
        while window and not plain and not self._is_over:
            plain, window = self._inflated(window)
        return (plain, b"") if self._is_over else (plain, window + later)

    def _opened(self, data: bytes) -> bytes:
        self._start += data
        if len(self._start) < _HEADER_BYTES:
            return b""
        data, self._start, self._is_open = self._start, b"", True
        self._member = zlib.decompressobj(window_bits(self._coding, data))
        return data

    def _inflated(self, window: bytes) -> tuple[bytes, bytes]:
        if self._member.eof:
            self._is_over = not window.startswith(_MEMBER)
            if self._is_over:
                return b"", b""
            self._member = zlib.decompressobj(zlib.MAX_WBITS | 32)
        try:
            plain = self._member.decompress(window, PIECE_BYTES)
        except zlib.error as error:
            raise BackendFault("The backend's compressed answer is corrupt.", code="http_protocol_error") from error
        return plain, self._member.unused_data if self._member.eof else self._member.unconsumed_tail
