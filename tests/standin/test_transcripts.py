"""Each stand-in is asked what a recorded real server was asked, and has to answer in the same shape.

Refusals must be equal to the letter. Of generated answers the shape is compared: status, headers that say something,
how the body ends, each event's keys in their order and the types of their values, the order of the events, why each
choice ended.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from proxy import standin

RECORDED = Path(__file__).parent.parent / "data" / "transcripts"
PATHS = sorted(RECORDED.glob("*/*.txt"))
OWN_ENDING = {
    "sglang/b08_tool_required": "the recorded model rambled on until max_tokens",
    "sglang/b09_tool_required_stream": "the same",
    "sglang/b10_tool_required_stream_n2": "the same",
    "sglang/b11_tool_named": "the same",
    "sglang/b12_tool_ptc_false": "the same",
    "sglang/c14_stop_str": "another text meets another stop string",
    "sglang/c15_stream_stop_str": "the same",
    "sglang/g04_js_ok": "the recorded model filled its JSON with spaces",
    "sglang/g12_json_object": "the same",
    "sglang/g20_js_schema_toplevel": "the same",
    "llamafactory/08x_temperature_9": "the recorded model rambled on until max_tokens",
}
ALSO_SENT = {  # what the recorded server did by its flags, a stand-in does when asked
    "sglang/b03_reasoning_stream": {"chat_template_kwargs": {"enable_thinking": True}},
    "sglang/b04_reasoning_nonstream": {"chat_template_kwargs": {"enable_thinking": True}},
}
LITERAL = {"object", "role", "type", "finish_reason", "matched_stop", "index"}
MAP = "top_logprobs"
MASKS = (
    (r"\[\d\d:\d\d:\d\d\]", "[hh:mm:ss]"),
    (r"The input \(\d+ tokens\)", "The input (N tokens)"),
    (r"127\.0\.0\.1:\d+", "host"),
)


@dataclass(frozen=True)
class Exchange:
    """One recorded request and its answer. `ends` is curl's exit: 0 whole, 18 cut, 28 never."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    status: int
    answer_headers: dict[str, str]
    answer: str
    ends: int


def parse(path: Path) -> Exchange:
    request, _, rest = path.read_text().partition("### curl -i -N\n")
    answer, _, code = rest.rpartition("### curl exit=")
    first, *lines = request.rstrip("\n").split("\n")
    method, target = first.removeprefix("### ").split(" ")
    headers = dict(line[2:].split(": ", 1) for line in lines if line.startswith("# ") and not line.endswith(": "))
    body = "\n".join(line for line in lines if not line.startswith("# "))
    head, _, content = answer.partition("\n\n")
    status, *fields = head.rstrip("\n").split("\n")
    answer_headers = {name.lower(): value for name, value in (field.split(": ", 1) for field in fields)}
    return Exchange(method, target, headers, body.encode(), int(status.split()[1]), answer_headers, content, int(code))


async def ask(
    backend: standin.Standin, recorded: Exchange, more: dict[str, Any]
) -> tuple[aiohttp.ClientResponse, str, int]:
    body = json.dumps(json.loads(recorded.body) | more).encode() if more else recorded.body
    async with (
        aiohttp.ClientSession(skip_auto_headers={"Content-Type", "Accept", "User-Agent"}) as session,
        session.request(
            recorded.method,
            backend.url + recorded.path,
            data=body or None,
            headers=recorded.headers,
            allow_redirects=False,
        ) as response,
    ):
        content = b""
        try:
            if recorded.ends == 28:
                return response, (await response.content.readuntil(b"\n\n")).decode(), 28
            async for piece in response.content.iter_any():
                content += piece
        except aiohttp.ClientPayloadError:
            return response, content.decode(), 18
        return response, content.decode(), 0


@pytest.mark.parametrize("path", PATHS, ids=lambda path: f"{path.parent.name}/{path.stem}")
async def test_answers_as_recorded(path: Path) -> None:
    name = f"{path.parent.name}/{path.stem}"
    recorded = parse(path)
    async with standin.serve(path.parent.name) as backend:
        response, content, ends = await ask(backend, recorded, ALSO_SENT.get(name, {}))
    assert response.status == recorded.status
    assert ends == recorded.ends
    assert told(response.headers) == told(recorded.answer_headers)
    if recorded.answer_headers.get("content-type", "").startswith("text/event-stream"):
        assert order(content, name) == order(recorded.answer, name)
    elif recorded.status == 200 and recorded.answer.startswith(("{", "[")):
        assert shape(json.loads(content), name) == shape(json.loads(recorded.answer), name)
    else:
        assert masked(content) == masked(recorded.answer)


def told(headers: Any) -> dict[str, str]:
    """Return the headers that say something; of a length only the order of things can differ."""
    names = {name.lower(): value for name, value in headers.items()}
    for name in ("date", "content-length"):
        names.pop(name, None)
    if names.get("connection") == "keep-alive":
        del names["connection"]  # HTTP/1.1's default, and hop by hop
    return {name: masked(value) for name, value in names.items()}


def masked(content: str) -> str:
    for pattern, replacement in MASKS:
        content = re.sub(pattern, replacement, content)
    return content.strip("\n")


def order(content: str, name: str) -> list[Any]:
    """Return the shapes of the events: of each choice in its order, then of what follows all choices.

    Runs of one shape count once, since texts have other lengths, and choices interleave in no fixed order.
    """
    choices: dict[int, list[Any]] = {}
    tail: list[Any] = []
    for event in content.strip("\n").split("\n\n") if content.strip() else []:
        kind, _, data = event.rpartition("data: ")
        value = json.loads(data) if data.startswith("{") else data
        error = value.get("error") if isinstance(value, dict) else None
        entries = value.get("choices", []) if isinstance(value, dict) else []
        if entries:
            assert tail == [], "a choice spoke after what follows all choices"
            if not (name in OWN_ENDING and is_rambling(entries[0])):
                choices.setdefault(entries[0]["index"], []).append(shape(value, name))
        elif "output_ids" in value:
            choices.setdefault(value["index"], []).append(shape(value, name))
        elif error:
            tail.append(masked(data))
        else:
            tail.append((kind, shape(value, name)))
    return [(index, runs(shapes)) for index, shapes in sorted(choices.items())] + tail


def is_rambling(choice: dict[str, Any]) -> bool:
    """Return whether a chunk is text of a stream that has tool calls in it."""
    return "role" in choice["delta"] and bool(choice["delta"].get("content"))


def runs(shapes: list[Any]) -> list[Any]:
    return [one for index, one in enumerate(shapes) if index == 0 or shapes[index - 1] != one]


def shape(value: Any, name: str, key: str = "") -> Any:
    if key == "prompt_tokens_details" and name.startswith("sglang/b"):
        return "recorded with --enable-cache-report"
    if key in LITERAL and not isinstance(value, dict):
        return "any ending" if name in OWN_ENDING and key in ("finish_reason", "matched_stop") else value
    if isinstance(value, dict):
        if key == MAP:
            return {type(inner).__name__ for inner in value.values()}
        return [(inner, shape(value[inner], name, inner)) for inner in value]
    if isinstance(value, list):
        return ["choices"] + [shape(one, name) for one in value] if key == "choices" else runs_of_list(value, name, key)
    return type(value).__name__


def runs_of_list(value: list[Any], name: str, key: str) -> list[Any]:
    return runs([shape(one, name, key if key == MAP else "") for one in value])
