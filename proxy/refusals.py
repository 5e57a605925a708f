"""How a backend says no: the text, code and parameter of a refusal, wherever its body holds them.

    {"error": {"message", "code", "param"}}   {"object": "error", "message"}   {"error": "text"}
    {"detail": "text"}   {"detail": [{"loc", "msg"}]}   anything else: the text itself

Source: recorded answers of sglang, LlamaFactory, transformers serve and llama-cpp-python.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from proxy.errors import ProxyError


@dataclass(frozen=True, slots=True)
class Failure:
    """What an `on_error` rule is matched against.

    `stream` names how an event stream failed before any content (`empty`, `error`, `silent`); `status` is the HTTP
    status, or the one that an error event claims.
    """

    status: int | None
    text: str = ""
    code: str | None = None
    param: str | None = None
    stream: str | None = None


def failure_from(fault: ProxyError, stream: str) -> Failure:
    """Return what a failed event stream says; `stream` is how it failed."""
    code = None if fault.code is None else str(fault.code)
    return Failure(fault.status, fault.message, code, fault.param, stream)


def read_refusal(status: int | None, body: bytes, *, stream: str | None = None) -> Failure:
    """Return what the body of a refusal says."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return Failure(status, body.decode("utf-8", "replace"), stream=stream)
    return refusal_of(status, value, stream=stream)


def refusal_of(status: int | None, value: Any, *, stream: str | None = None) -> Failure:
    """Return what the decoded body of a refusal says."""
    source = value
    if isinstance(value, dict) and isinstance(value.get("error"), dict):
        source = value["error"]
    fields = source if isinstance(source, dict) else {}
    return Failure(status, _text(value), _scalar(fields.get("code")), _scalar(fields.get("param")), stream)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(map(_text, value))
    if not isinstance(value, dict):
        return ""
    if isinstance(value.get("msg"), str):
        place = ".".join(map(str, value["loc"])) if isinstance(value.get("loc"), list) else ""
        return f"{place}: {value['msg']}" if place else value["msg"]
    return next((_text(value[key]) for key in ("error", "message", "detail") if value.get(key)), "")


def _scalar(value: Any) -> str | None:
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else None
