"""How every failure of aiohttp's client becomes one error of ours; whole conversations are tested in tests/edge."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey
from aioresponses import aioresponses

from proxy.errors import BackendFault
from proxy.policy import Backend, load_policy
from proxy.session import SessionUpstream
from proxy.upstream import Call

URL = "http://backend.example:30000"
BACKEND: Backend = load_policy(
    "policy.yaml", environ={}, text=f"version: 1\nbackends: {{main: {{url: '{URL}'}}}}\n"
).backends[0]
KEY = ConnectionKey("backend.example", 30000, False, True, None, None, None)
GET = Call("GET", "/v1/models?x=%2F", [("X-Mine", "yes")], None)


class _Response(aiohttp.ClientResponse):
    """aioresponses 0.7.9 makes responses without the argument that aiohttp 3.14 asks for."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        named.setdefault("stream_writer", Mock(output_size=0))
        super().__init__(*arguments, **named)


class Answers(aioresponses):
    """Answers of a backend that is only played."""

    def add(self, url: Any, method: str = "GET", **named: Any) -> None:
        super().add(url, method, **({"response_class": _Response} | named))


@pytest.fixture
def answers() -> Iterator[Answers]:
    with Answers() as played:
        yield played


async def sent(call: Call = GET, notes: list[tuple[str, Any]] | None = None) -> tuple[int, dict[str, str], bytes]:
    """Return the status, headers and body that a call brings."""
    upstream = SessionUpstream(lambda name, outcome: (notes if notes is not None else []).append((name, outcome)))
    try:
        async with upstream.send(BACKEND, URL, call) as reply:
            body, _ = await reply.read_up_to(1000, 5)
            return reply.status, dict(reply.headers), body
    finally:
        await upstream.close()


async def test_an_answer_is_given_with_its_head_and_body(answers: Answers) -> None:
    answers.get(f"{URL}/v1/models?x=%2F", status=418, body=b"short", headers={"X-Theirs": "1"})
    notes: list[tuple[str, Any]] = []
    status, said, body = await sent(notes=notes)
    assert (status, said["X-Theirs"], body) == (418, "1", b"short")
    assert notes == [("main", 418)]
    [[request]] = answers.requests.values()
    assert request.kwargs["allow_redirects"] is False
    assert request.kwargs["headers"] == {"X-Mine": "yes"}


REFUSED = OSError(111, "Connection refused")
FAILURES = [
    pytest.param(aiohttp.ClientConnectorError(KEY, REFUSED), 502, "connection_refused", id="nobody listens"),
    pytest.param(
        aiohttp.ClientConnectorDNSError(KEY, socket.gaierror(-2, "unknown")), 502, "dns_error", id="a name nobody knows"
    ),
    pytest.param(aiohttp.ConnectionTimeoutError("slow"), 504, "connection_timeout", id="no connection in time"),
    pytest.param(TimeoutError(), 504, "http_response_timeout", id="no head in time"),
    pytest.param(aiohttp.ServerDisconnectedError(), 502, "connection_terminated", id="closed without an answer"),
    pytest.param(aiohttp.ClientOSError(104, "reset"), 502, "connection_terminated", id="reset without an answer"),
    pytest.param(
        aiohttp.ClientConnectorCertificateError(KEY, ssl.CertificateError("no")),
        502,
        "tls_certificate_error",
        id="a certificate that is not trusted",
    ),
    pytest.param(
        aiohttp.ClientConnectorSSLError(KEY, ssl.SSLError("no")), 502, "tls_protocol_error", id="no TLS where it is due"
    ),
    pytest.param(aiohttp.ClientPayloadError("cut"), 502, "http_protocol_error", id="anything else of HTTP"),
]


@pytest.mark.parametrize(("failure", "status", "token"), FAILURES)
async def test_a_failure_is_told_by_status_and_token(
    answers: Answers, failure: Exception, status: int, token: str
) -> None:
    answers.get(f"{URL}/v1/models?x=%2F", exception=failure)
    notes: list[tuple[str, Any]] = []
    with pytest.raises(BackendFault) as caught:
        await sent(notes=notes)
    fault = caught.value
    assert (fault.status, fault.token, fault.code, fault.type) == (status, token, token, "backend_error")
    assert "backend.example" not in fault.message
    assert notes == [("main", fault)]


async def test_a_failure_is_not_tried_again_on_a_fresh_connection(answers: Answers) -> None:
    answers.get(f"{URL}/v1/models?x=%2F", exception=aiohttp.ServerDisconnectedError())
    answers.get(f"{URL}/v1/models?x=%2F", status=200)
    with pytest.raises(BackendFault):
        await sent()
    assert sum(map(len, answers.requests.values())) == 1
