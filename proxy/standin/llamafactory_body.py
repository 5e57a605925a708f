"""How LlamaFactory reads a request: JSON, then its types; every fault is FastAPI's 422.

Source: transcripts 08 to 08w, 12 of LlamaFactory 0.9.5; llamafactory.md §1.4.
"""

from __future__ import annotations

import json
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from proxy.standin.record import Call
from proxy.standin.routing import Refused
from proxy.standin.wire import Reply

Ask = TypeVar("Ask", bound=BaseModel)


def read(call: Call, model: type[Ask]) -> Ask:
    """Return the request's body as its type.

    Raises: Refused.
    """
    try:
        return model.model_validate(_decode(call), from_attributes=True)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        raise _unprocessable([dict(one) | {"loc": ["body", *one["loc"]]} for one in errors]) from error


def _decode(call: Call) -> Any:
    if not call.body:
        raise _unprocessable([{"type": "missing", "loc": ["body"], "msg": "Field required", "input": None}])
    body = call.body.decode(errors="replace")
    kind = call.request.headers.get("content-type", "").partition(";")[0].strip().lower()
    value = _json(body) if kind == "application/json" else body
    if isinstance(value, dict):
        return value
    fault = "Input should be a valid dictionary or object to extract fields from"
    raise _unprocessable([{"type": "model_attributes_type", "loc": ["body"], "msg": fault, "input": value}])


def _json(body: str) -> Any:
    try:
        return json.loads(body)
    except json.JSONDecodeError as error:
        fault = {"type": "json_invalid", "loc": ["body", error.pos], "msg": "JSON decode error", "input": {}}
        raise _unprocessable([fault | {"ctx": {"error": error.msg}}]) from error


def _unprocessable(errors: list[dict[str, Any]]) -> Refused:
    return Refused(Reply.of({"detail": errors}, 422))
