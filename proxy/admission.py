"""What of a request's head is refused before anything is done for it.

    method, target, headers → path, query, authority, or a ClientFault

aiohttp's parser refuses most of what could be read in two ways (two lengths, folded lines, a space before a colon …).
This is the rest: what it reads in one way, and a backend, or a proxy before us, might read in another.

Source: RFC 9112 §3.2 (targets, Host), §6.1 (Transfer-Encoding), RFC 9110 §9.3.6, §9.3.8 (CONNECT, TRACE), §10.1.1.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from proxy.errors import ClientFault
from proxy.headers import Headers, are_usual, fault_in, get, head_bytes

# nginx takes four buffers of 8 KiB for a head; agents put long tokens and cookies into theirs.
MAX_HEAD_BYTES = 128 * 1024
METHODS = "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"

_REFUSED_METHODS = {
    "CONNECT": "it asks for a tunnel to any host",
    "TRACE": "its answer repeats the request, credentials and all",
}
_ABSOLUTE = re.compile(r"https?://([^/?#]*)", re.IGNORECASE)
_AUTHORITY = re.compile(r"(?:[\w.~!$&'()*+;=%-]*|\[[\da-f:.]+\])(?::\d*)?", re.IGNORECASE | re.ASCII)
_ESCAPED_DOT = re.compile("%2e", re.IGNORECASE)
_SEPARATOR = re.compile(r"/|\\|%2f|%5c", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Target:
    """Where a request goes. `path` and `query` as they were sent; `authority` where the target names one."""

    path: str
    query: str
    authority: str | None = None


def admit(method: str, raw_target: str, headers: Headers, *, is_http_1_1: bool) -> Target:
    """Return the target of a request that may be served. Raises: ClientFault 400, 405, 417, 431, 501."""
    if method in _REFUSED_METHODS:
        raise ClientFault(f"{method} is not served: {_REFUSED_METHODS[method]}.", status=405, code="method_not_allowed")
    if head_bytes(headers) > MAX_HEAD_BYTES:
        raise ClientFault(
            f"The request's headers are larger than {MAX_HEAD_BYTES} bytes.", status=431, code="headers_too_large"
        )
    fault = fault_in(headers)
    if fault is not None:
        raise ClientFault(f"The request has {fault}.", code="invalid_header")
    if not are_usual(headers):
        _check_coding(headers, is_http_1_1=is_http_1_1)
        _check_expectation(headers)
    target = read_target(raw_target)
    for authority in (target.authority, get(headers, "host")):
        if authority is not None and not _is_authority(authority):
            raise ClientFault("The request's Host is no host with an optional port.", code="invalid_host")
    return target


@functools.lru_cache(maxsize=256)
def _is_authority(text: str) -> bool:
    return _AUTHORITY.fullmatch(text) is not None


def ends_connection(method: str, headers: Headers) -> bool:
    """Return whether nothing that follows on the connection can be trusted to be a request.

    What follows a CONNECT, or an Upgrade that is not even passed on, may be of another protocol; and of a body that is
    framed in a way that is refused nobody knows where it ends.
    """
    if method == "CONNECT" or (method != "GET" and get(headers, "upgrade") is not None):
        return True
    coding = get(headers, "transfer-encoding")
    return coding is not None and coding.lower() != "chunked"


def with_authority(headers: Headers, authority: str | None) -> Headers:
    """Return the headers with the Host that counts: the target's, where it names one (RFC 9112 §3.2.2)."""
    if authority is None:
        return headers
    return [("Host", authority), *((name, value) for name, value in headers if name.lower() != "host")]


@functools.lru_cache(maxsize=1024)
def read_target(raw: str) -> Target:
    """Return a request's target.

    Raises: ClientFault for a target that is no path, or that climbs above the root and so out of a backend's base,
    also where backslashes and escaped separators are taken for slashes.
    """
    absolute = _ABSOLUTE.match(raw)
    rest = raw[absolute.end() :] if absolute else raw
    path, _, query = (rest or "/").partition("?")
    if absolute and not path:
        path = "/"
    if not path.startswith("/") or "#" in rest or _climbs(path.split("/")) or _climbs(_SEPARATOR.split(path)):
        raise ClientFault("The request's target is not a path below the root.", code="invalid_target")
    return Target(path, query, absolute[1] if absolute else None)


def _climbs(segments: list[str]) -> bool:
    depth = 0
    for segment in segments:
        # `..;x` is `..` to servers that know path parameters.
        name = _ESCAPED_DOT.sub(".", segment).partition(";")[0]
        depth += {"..": -1, ".": 0, "": 0}.get(name, 1)
        if depth < 0:
            return True
    return False


def _check_coding(headers: Headers, *, is_http_1_1: bool) -> None:
    coding = get(headers, "transfer-encoding")
    if coding is None:
        return
    if not is_http_1_1:
        raise ClientFault("A request of HTTP/1.0 has no Transfer-Encoding.", code="invalid_header")
    if coding.lower() != "chunked":
        raise ClientFault(
            "The request's Transfer-Encoding is not understood: chunked alone is.",
            status=501,
            code="unsupported_transfer_encoding",
        )


def _check_expectation(headers: Headers) -> None:
    if get(headers, "expect") is None:
        return
    expected = [value.lower() for name, value in headers if name.lower() == "expect"]
    if any(value != "100-continue" for value in expected):
        raise ClientFault("The request expects something else than 100-continue.", status=417, code="unmet_expectation")
