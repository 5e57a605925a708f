"""A client's body: read whole within bounds where a rule needs it, streamed on where none does.

Source: RFC 9110 §10.1.1 (Expect), §8.4 (Content-Encoding).
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator

from aiohttp import HttpVersion11, web

from proxy.errors import ClientFault
from proxy.exchange import ClientLeft
from proxy.headers import Headers, get


def too_large(limit: int) -> ClientFault:
    """Return the fault of a body that is larger than the policy allows. Units: bytes."""
    return ClientFault(
        f"The request's body is larger than the proxy's limit of {limit} bytes (limits.body of its policy).",
        status=413,
        code="body_too_large",
        token="http_request_error",
    )


def check_length(request: web.BaseRequest, limit: int) -> None:
    """Refuse a body that says it is too large, before any of it is read. Raises: ClientFault 413."""
    if request.content_length is not None and request.content_length > limit:
        raise too_large(limit)


async def answer_expect(request: web.BaseRequest) -> None:
    """Tell a client that waits for it to send its body."""
    if request.version >= HttpVersion11 and request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        # An interim response is no part of the answer's size.
        request.writer.output_size = 0


async def read_body(request: web.BaseRequest, limit: int) -> bytes:
    """Return the whole body. Units: `limit` in bytes. Raises: ClientFault 413, ClientLeft."""
    parts, size = [], 0
    async for part in stream_body(request, limit):
        parts.append(part)
        size += len(part)
    return b"".join(parts)


async def stream_body(request: web.BaseRequest, limit: int) -> AsyncIterator[bytes]:
    """Yield the body as it comes. Units: `limit` in bytes. Raises: ClientFault 413, 400, ClientLeft."""
    size = 0
    while True:
        try:
            data = await request.content.readany()
        except web.RequestPayloadError as error:
            raise ClientFault("The request's body is not framed as HTTP asks for.", code="invalid_body") from error
        except ConnectionError as error:
            raise ClientLeft from error
        if not data:
            return
        size += len(data)
        if size > limit:
            raise too_large(limit)
        yield data


def inflate_body(headers: Headers, body: bytes, limit: int) -> bytes | None:
    """Return the body without its content coding, or None for a coding that is not known here.

    Units: `limit` in bytes. Raises: ClientFault 400 for corrupt data, 413 for what grows beyond the limit.
    """
    coding = (get(headers, "content-encoding") or "identity").strip().lower()
    if coding == "identity":
        return body
    if coding not in ("gzip", "x-gzip", "deflate"):
        return None
    inflate = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        plain = inflate.decompress(body, limit + 1)
    except zlib.error as error:
        raise ClientFault(f"The request's body is not valid {coding}.", code="invalid_body") from error
    if len(plain) > limit:
        raise too_large(limit)
    if not inflate.eof:
        raise ClientFault(f"The request's {coding} body ends too early.", code="invalid_body")
    return plain
