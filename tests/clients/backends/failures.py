"""Answers that fail, on a cue.

    refused limited crashed            an error status
    empty aborted                      a 200 that holds nothing; that begins with an error
    dies errs                          cut, or an error event, after the first words
    <i>-<cue>                          the same for the branch i of a fan-out alone; the others answer well

A backend that doesn't stream has no error events: it crashes instead.
"""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web
from recordings import DONE, event_of

FIRST_SEED = 5
ERROR = {"message": "The engine broke.", "type": "server_error", "param": None, "code": "engine_broke"}
FLAT = {"object": "error", "message": "The prompt is not to be answered.", "type": "BadRequest", "code": 400}
REFUSALS = {
    "refused": (400, "application/json", json.dumps(FLAT)),
    "limited": (429, "application/json", json.dumps({"error": ERROR | {"message": "Slow down.", "code": "slow"}})),
    "crashed": (500, "text/plain; charset=utf-8", "Internal Server Error"),
}


async def fail(request: web.Request, ask: dict[str, Any], cue: str) -> web.StreamResponse:
    """Answer as the cue says."""
    branch, _, how = cue.rpartition("-")
    if branch and ask["seed"] != FIRST_SEED + int(branch):
        how = "well"
    if how in REFUSALS:
        return _refusal(how)
    is_text = not request.path.endswith("/chat/completions")
    if ask.get("stream") is True:
        return await _events(request, _stream(ask, how, is_text), is_cut=how == "dies")
    if how in ("errs", "aborted"):
        return web.json_response({"error": ERROR}, status=500)
    data = b"" if how == "empty" else json.dumps(_whole(ask, is_text)).encode()
    return await _json(request, data, is_cut=how == "dies")


def _refusal(how: str) -> web.Response:
    status, kind, text = REFUSALS[how]
    return web.Response(status=status, body=text.encode(), headers={"Content-Type": kind})


def _stream(ask: dict[str, Any], how: str, is_text: bool) -> list[bytes]:
    error = [event_of({"error": ERROR}), DONE]
    if how == "empty":
        return []
    if how == "aborted":
        return error
    if is_text:
        begun = _chunks(ask, {"text": "Hel"}, None)
        end = _chunks(ask, {"text": ""}, "stop")
    else:
        role: dict[str, Any] = {"delta": {"role": "assistant", "content": ""}}
        begun = _chunks(ask, role, None) + _chunks(ask, {"delta": {"content": "Hel"}}, None)
        end = _chunks(ask, {"delta": {}}, "stop")
    return begun + {"dies": [], "errs": error, "well": [*end, DONE]}[how]


def _chunks(ask: dict[str, Any], said: dict[str, Any], finish: str | None) -> list[bytes]:
    is_text = "text" in said
    head = {"id": "one", "object": "text_completion" if is_text else "chat.completion.chunk", "created": 1}
    return [
        event_of(head | {"model": ask["model"], "choices": [{"index": index, **said, "finish_reason": finish}]})
        for index in range(ask.get("n") or 1)
    ]


def _whole(ask: dict[str, Any], is_text: bool) -> dict[str, Any]:
    said: dict[str, Any] = {"text": "Hel"} if is_text else {"message": {"role": "assistant", "content": "Hel"}}
    head = {"id": "one", "object": "text_completion" if is_text else "chat.completion", "created": 1}
    choices = [{"index": index, **said, "finish_reason": "stop"} for index in range(ask.get("n") or 1)]
    return head | {"model": ask["model"], "choices": choices}


async def _events(request: web.Request, events: list[bytes], *, is_cut: bool) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for event in events:
        await response.write(event)
    return await _ended(request, response, is_cut=is_cut)


async def _json(request: web.Request, data: bytes, *, is_cut: bool) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": str(len(data))})
    await response.prepare(request)
    await response.write(data[: len(data) // 2] if is_cut else data)
    return await _ended(request, response, is_cut=is_cut)


async def _ended(request: web.Request, response: web.StreamResponse, *, is_cut: bool) -> web.StreamResponse:
    if not is_cut:
        await response.write_eof()
    elif request.transport is not None:
        request.transport.close()
    return response
