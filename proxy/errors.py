"""Whose fault a failure is, and what the client is told of it.

One shallow tree. Every error carries the HTTP status, OpenAI's `type` and `code`, and where a proxy speaks for
itself the RFC 9209 token, so that the edge writes an answer without knowing where the error came from.

Source: RFC 9209 §2.3 (tokens and their statuses); OpenAI's `Error` schema (message, type, param, code).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, TypeVar


class ProxyError(Exception):
    """A failure that the client is told about."""

    status = 500
    type = "server_error"
    token = "proxy_internal_error"

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        type: str | None = None,
        code: str | int | None = None,
        param: str | None = None,
        token: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status if status is not None else self.status
        self.type = type if type is not None else self.type
        self.token = token if token is not None else self.token
        self.code = code
        self.param = param

    def body(self, **extra: Any) -> dict[str, Any]:
        """Return OpenAI's error object; `extra` joins it (`index`: the choice of a fan-out that failed)."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": error | extra}


class ClientFault(ProxyError):
    """The request can't be served as it was sent."""

    status = 400
    type = "invalid_request_error"
    token = "http_request_error"


class BackendFault(ProxyError):
    """The backend could not be reached, or what it sent is no answer."""

    status = 502
    type = "backend_error"
    token = "http_protocol_error"


class ProxyFault(ProxyError):
    """The proxy itself can't serve the request: it drains, or has a bug."""


E = TypeVar("E", bound=BaseException)


def without_frames(error: E) -> E:
    """Return an error that is kept, without the frames that it came through and what it came from.

    They hold the request, which holds the error: a cycle, and with it all of the request until the collector comes.
    """
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong (or, as a warning, doubtful) in a policy file. Units: line and column count from 1.

    It is one line: what would not show, or begin another, is escaped where the message quotes it.
    """

    message: str
    file: str = "-"
    line: int = 1
    column: int = 1

    def __post_init__(self) -> None:
        if not self.message.isprintable():
            shown = (each if each.isprintable() else json.dumps(each)[1:-1] for each in self.message)
            object.__setattr__(self, "message", "".join(shown))

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.message}"


class PolicyFault(Exception):
    """A policy can't be used; holds every fault found in it, in the order of the file."""

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__("\n".join(map(str, faults)))
        self.faults = faults
