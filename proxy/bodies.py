"""A client's body: read whole within bounds where a rule needs it, streamed on where none does.

gzip and deflate are undone for the rules to see (and a repaired body goes on plain); any other coding hides a body from
the rules, and it goes on as it came, header and all.

Source: RFC 9110 §10.1.1 (Expect), §8.4 (Content-Encoding).
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator

from aiohttp import HttpVersion11, web

from proxy.allowance import Share
from proxy.codings import window_bits
from proxy.errors import ClientFault
from proxy.headers import Headers, content_coding
from proxy.upstream import ClientLeft

# nginx' client_body_timeout: how long a client may be silent in the middle of its body.
BODY_TIMEOUT_S = 60.0

# Each member costs a copy of what follows it.
MAX_MEMBERS = 64


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
    is_waiting = request.version >= HttpVersion11 and request.body_exists
    if is_waiting and request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        # An interim response is no part of the answer's size.
        request.writer.output_size = 0


async def read_body(request: web.BaseRequest, limit: int, share: Share) -> bytes:
    """Return the whole body, taken from `share`. Units: `limit` in bytes. Raises: ClientFault 413, ProxyFault 503,
    ClientLeft.
    """
    # One buffer: a list of parts would cost forty times their size where they come byte by byte.
    body = bytearray()
    async for part in stream_body(request, limit):
        share.take(len(part))
        body += part
    return bytes(body)


async def stream_body(request: web.BaseRequest, limit: int) -> AsyncIterator[bytes]:
    """Yield the body as it comes. Units: `limit` in bytes. Raises: ClientFault 413, 408, 400, ClientLeft."""
    size = 0
    while True:
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                data = await request.content.readany()
        except TimeoutError as error:
            raise ClientFault(
                f"The request's body stopped for {BODY_TIMEOUT_S:g} s.", status=408, code="request_timeout"
            ) from error
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
    coding = content_coding(headers)
    if coding == "identity":
        return body
    if coding not in ("gzip", "x-gzip", "deflate"):
        return None
    if not body:
        return body
    plain, rest = bytearray(), body
    try:
        # A gzip body may have several members (RFC 1952 §2.2): each is a stream of its own.
        for _ in range(MAX_MEMBERS):
            inflate = zlib.decompressobj(window_bits(coding, rest))
            plain += inflate.decompress(rest, limit + 1 - len(plain))
            if len(plain) > limit:
                raise too_large(limit)
            if not inflate.eof:
                raise ClientFault(f"The request's {coding} body ends too early.", code="invalid_body")
            rest = inflate.unused_data
            if not rest:
                return bytes(plain)
    except zlib.error as error:
        raise ClientFault(f"The request's body is not valid {coding}.", code="invalid_body") from error
    raise ClientFault(f"The request's {coding} body has more than {MAX_MEMBERS} members.", code="invalid_body")
