"""How sglang reads a request: content type, JSON as orjson has it, then its types.

Every fault is told as FastAPI's validation error turned into text, with Python's repr and the server's path in it.

Source: recorded refusals h01 to h16, n03 of sglang 0.5.23; sglang.md §2, §3 (phases 0 and 1).
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, TypeVar

from aiohttp import web
from pydantic import BaseModel, ValidationError

from proxy.standin.record import Call
from proxy.standin.routing import Refused
from proxy.standin.wire import CRASH, Reply

_HANDLERS: Final = {
    "/v1/completions": (1860, "openai_v1_completions"),
    "/v1/chat/completions": (1870, "openai_v1_chat_completions"),
}
_LONE_SURROGATE = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
_NOT_JSON = re.compile(r"(?<=[\[:,\s])(?:NaN|-?Infinity)")

Ask = TypeVar("Ask", bound=BaseModel)


def read(call: Call, model: type[Ask]) -> Ask:
    """Return the request's body as its type.

    Raises: Refused.
    """
    _check_content_type(call.request)
    if not call.body:
        raise _refused(
            call.request.path, [{"type": "missing", "loc": ("body",), "msg": "Field required", "input": None}]
        )
    value = _decode(call.request.path, call.body)
    if not isinstance(value, dict) or not isinstance(value.get("response_format") or {}, dict):
        raise Refused(CRASH)
    try:
        return model.model_validate(value, from_attributes=True)
    except ValidationError as error:
        errors = [{**one, "loc": ("body", *one["loc"])} for one in error.errors(include_url=False)]
        raise _refused(call.request.path, errors) from error


def _check_content_type(request: web.Request) -> None:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json":
        return
    fault = {
        "loc": ["header", "content-type"],
        "msg": "Unsupported Media Type: Only 'application/json' is allowed",
        "type": "value_error",
    }
    raise Refused(_reply(f"1 validation error:\n  {fault!r} {[fault]!r}"))


def _decode(path: str, body: bytes) -> Any:
    try:
        text = body.decode()
        value = json.loads(text, parse_constant=_refuse_constant, parse_int=_wide_integer)
    except UnicodeDecodeError as error:
        raise _not_json(path, error.start, "invalid UTF-8") from error
    except json.JSONDecodeError as error:
        is_short = error.pos >= len(error.doc)
        fault = "unexpected end of data" if is_short else "unexpected character, expected a JSON value"
        raise _not_json(path, error.pos, fault) from error
    except _NoJson as error:
        found = _NOT_JSON.search(text)
        raise _not_json(path, found.start() if found else 0, "unexpected character, expected a JSON value") from error
    if (lone := _LONE_SURROGATE.search(text)) is not None:
        raise _not_json(path, lone.start(), "no low surrogate in string")
    return value


class _NoJson(ValueError):
    """A number that Python reads and RFC 8259 does not have."""


def _refuse_constant(name: str) -> Any:
    raise _NoJson(name)


def _wide_integer(digits: str) -> int | float:
    value = int(digits)
    return value if -(2**63) <= value < 2**64 else float(value)


def _not_json(path: str, position: int, fault: str) -> Refused:
    error = {
        "type": "json_invalid", "loc": ("body", position), "msg": "JSON decode error", "input": {},
        "ctx": {"error": fault},
    }  # fmt: skip
    return _refused(path, [error])


def _refused(path: str, errors: list[dict[str, Any]]) -> Refused:
    line, function = _HANDLERS[path]
    lines = "".join(f"\n  {error!r}" for error in errors)
    count = f"{len(errors)} validation error{'s' if len(errors) > 1 else ''}"
    place = f'\n\n  File "/sgl/http_server.py", line {line}, in {function}\n    POST {path} {errors!r}'
    return Refused(_reply(f"{count}:{lines}{place}"))


def _reply(message: str) -> Reply:
    error = {"object": "error", "message": message, "type": "Bad Request", "param": None, "code": 400}
    return Reply.of(error, 400)
