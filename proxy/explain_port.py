"""`POST /explain`: what the policy would do with a request that somebody typed; for this port's own page, and scripts.

A page from elsewhere may not ask: a browser says where a request comes from, JSON can't be sent across sites without
being asked for first, and a name that somebody else made to point here (DNS rebinding) is not ours.

Source: Fetch Metadata (Sec-Fetch-Site); WHATWG Fetch (CORS-safelisted content types).
"""

from __future__ import annotations

import ipaddress
from typing import Any, Final

import msgspec
from aiohttp import web
from yarl import URL

from proxy.engine import Request
from proxy.errors import ClientFault
from proxy.explain import as_text, explain
from proxy.policy import Policy

_SHAPE: Final = '{"path": …, "method": …, "headers": [["name", "value"], …], "body": …}'


class Asked(msgspec.Struct, forbid_unknown_fields=True):
    """A request as it was typed: its body is any JSON, or as a string the raw body."""

    path: str = "/v1/chat/completions"
    method: str = "POST"
    headers: list[tuple[str, str]] = []
    body: msgspec.Raw = msgspec.Raw(b"null")


def refuse_foreign(request: web.BaseRequest, host: str) -> None:
    """Let only this port's own page, and what is no browser, ask. Raises: ClientFault."""
    if request.content_type != "application/json":
        raise ClientFault("Send JSON, as Content-Type: application/json.", status=415, code="not_json")
    if not _is_own(request.host, host):
        raise ClientFault("This port is asked by its address, or as localhost.", status=403, code="foreign_host")
    site = request.headers.get("Sec-Fetch-Site", "none")
    origin = request.headers.get("Origin")
    if site not in ("same-origin", "none") or (origin is not None and origin != f"{request.scheme}://{request.host}"):
        raise ClientFault("Pages from elsewhere may not ask this port.", status=403, code="foreign_page")


def _is_own(asked: str, host: str) -> bool:
    """Return whether a Host header has an address, localhost or the name that this port was given."""
    try:
        name = URL.build(scheme="http", authority=asked).host or ""
    except ValueError:
        return False
    if name in ("localhost", host.lower()):
        return True
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True


def explain_posted(raw: bytes, policy: Policy) -> dict[str, Any]:
    """Return what `mendproxy explain --json` says of a request, and as `text` what it says to people.

    Raises: ClientFault where the request is not one.
    """
    try:
        asked = msgspec.json.decode(raw, type=Asked)
        body = msgspec.json.decode(asked.body)
    except (msgspec.DecodeError, RecursionError) as error:
        # Its words name the place and the type, never a value.
        raise ClientFault(f"This is not a request as {_SHAPE}: {error}", code="invalid_request") from error
    path, _, query = asked.path.partition("?")
    told = explain(Request(asked.method, path, query, list(asked.headers), _raw(asked.body, body)), policy)
    return told | {"text": as_text(told)}


def _raw(written: msgspec.Raw, body: Any) -> bytes | None:
    """Return the body's bytes: a string is the raw body, and everything else stays as it was written."""
    if body is None:
        return None
    return body.encode("utf-8", "surrogatepass") if isinstance(body, str) else bytes(written)
