"""An answer as it came → what has come of its request; or what is wrong with it.

A whole answer is exactly what the backend was told to say, one that was cut is the beginning of that and looks cut.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from soak import texts
from soak.messages import Message
from soak.scripts import STATUSES, Due, Script, Shape

_COMMENTS: Final = re.compile(rb"\A(?:: [^\n]*\n\n)+")
_ERROR: Final = b'data: {"error"'


class Wrong(Exception):
    """An answer is not what was due."""


def judge(script: Script, answer: Message) -> Due:
    """Return what has come of a request. Raises: Wrong."""
    if not answer.status:
        raise Wrong("the connection ended without an answer")
    told = answer.headers.get("x-request-id")
    expect(told == request_id(script), f"status {answer.status} bears the id {told}: {bytes(answer.body[:200])!r}")
    if answer.status != 200:
        return _failed(script, answer)
    return _streamed(script, answer) if script.is_stream else _json(script, answer)


def judge_part(script: Script, answer: Message) -> None:
    """Check what had come of an answer when its client left. Raises: Wrong."""
    if answer.status == 200 and script.shape is Shape.RELAYED and script.due is Due.WHOLE:
        body = _COMMENTS.sub(b"", bytes(answer.body))
        is_due = _is_part(body, _relayed(script))
        expect(is_due, f"what came before its client left is not the backend's: {body[-200:]!r}")


def request_id(script: Script) -> str:
    """Return the id that a request is sent with."""
    return f"soak-{script.number}"


def expect(holds: bool, otherwise: str) -> None:
    """Raise Wrong unless it holds."""
    if not holds:
        raise Wrong(otherwise)


def _failed(script: Script, answer: Message) -> Due:
    allowed = STATUSES.get(script.fault, frozenset())
    expect(answer.status in allowed, f"status {answer.status}: {bytes(answer.body[:300])!r}")
    expect(answer.is_whole and "error" in _parsed(bytes(answer.body)), "the error came in pieces")
    return Due.FAILED


def _streamed(script: Script, answer: Message) -> Due:
    body = _COMMENTS.sub(b"", bytes(answer.body))
    content, mark, error = body.partition(_ERROR)
    if not mark:
        expect(script.due is Due.WHOLE, "an answer that was cut looks like a whole one")
        expect(answer.is_whole, "the stream has no end, and no error event")
        _whole_stream(script, body)
        return Due.WHOLE
    expect(script.due is not Due.WHOLE, f"an error event: {(mark + error)[:300]!r}")
    expect(b"[DONE]" not in body, "[DONE] in an answer that was cut")
    expect((mark + error).endswith(b"}\n\n"), "the error event is not whole")
    _cut_stream(script, content)
    return Due.CUT


def _relayed(script: Script) -> bytes:
    return b"".join(texts.events(script.seed, script.words, script.word_bytes))


def _whole_stream(script: Script, body: bytes) -> None:
    if script.shape is Shape.RELAYED:
        expect(body == _relayed(script), f"the stream is not the backend's, byte for byte: it ends {body[-200:]!r}")
        return
    expect(body.endswith(b"\n\n" + texts.DONE) and body.count(texts.DONE) == 1, "the stream does not end with [DONE]")
    said, finishes = _choices(body.removesuffix(texts.DONE))
    expect(said == _due_texts(script), f"the choices' texts are not the backend's: {_shortened(said)}")
    expect(finishes == dict.fromkeys(said, 1), f"finish_reasons by choice: {finishes}")
    if script.shape is Shape.RESTORED:
        expect(f'"meta_info":{{"id":"{script.seed:x}"}}'.encode() in body.replace(b" ", b""), "meta_info is lost")


def _cut_stream(script: Script, content: bytes) -> None:
    if script.shape is Shape.RELAYED:
        due = _relayed(script)
        is_part = _is_part(content, due) or _is_part(content.removesuffix(b"\n\n"), due)
        expect(is_part, f"what came before the cut is not the backend's: {content[-200:]!r}")
        return
    said, _ = _choices(content)
    due_texts = _due_texts(script)
    is_due = all(due_texts.get(index, "").startswith(text) for index, text in said.items())
    expect(is_due, f"what came before the cut is not the backend's: {_shortened(said)}")


def _is_part(body: bytes, due: bytes) -> bool:
    return due.startswith(body)


def _due_texts(script: Script) -> dict[int, str]:
    seeds = enumerate(range(script.seed, script.seed + script.choices))
    return {index: texts.text(seed, script.words, script.word_bytes) for index, seed in seeds}


def _choices(body: bytes) -> tuple[dict[int, str], dict[int, int]]:
    """Return the text, and the number of finish_reasons, of each choice. Raises: Wrong."""
    said: dict[int, str] = {}
    finishes: dict[int, int] = {}
    for event in body.split(b"\n\n"):
        if not event or event.startswith(b":"):
            continue
        for choice in _parsed(event.removeprefix(b"data: ")).get("choices", ()):
            index = choice["index"]
            said[index] = said.get(index, "") + (choice["delta"].get("content") or "")
            if choice["finish_reason"] is not None:
                finishes[index] = finishes.get(index, 0) + 1
    return said, finishes


def _json(script: Script, answer: Message) -> Due:
    body, due = bytes(answer.body), texts.answer(script.seed, script.words, script.word_bytes)
    if script.due is not Due.WHOLE:
        expect(script.shape is Shape.PLAIN, "an answer that was cut has status 200")
        expect(script.fault in STATUSES and not answer.is_whole, "an answer that was cut looks like a whole one")
        expect(_is_part(body, due), f"what came before the cut is not the backend's: {body[-200:]!r}")
        return Due.CUT
    expect(answer.is_whole, "the answer is not whole")
    if script.shape is Shape.PLAIN:
        expect(body == due, f"the answer is not the backend's, byte for byte: {body[:200]!r}")
        return Due.WHOLE
    said = {choice["index"]: choice["message"]["content"] for choice in _parsed(body).get("choices", ())}
    expect(said == _due_texts(script), f"the choices' texts are not the backend's: {_shortened(said)}")
    return Due.WHOLE


def judge_tunnel(script: Script, echoes: bytes) -> Due:
    """Return what has come of a tunnel whose client has said its words, or tried to. Raises: Wrong."""
    due = b"".join(echo(script, index) for index in range(script.words))
    if script.due is Due.WHOLE:
        expect(echoes == due, f"the tunnel brought something else: {echoes[-200:]!r}")
        return Due.WHOLE
    expect(_is_part(echoes, due) and len(echoes) < len(due), f"the tunnel brought something else: {echoes[-200:]!r}")
    return Due.CUT


def echo(script: Script, index: int) -> bytes:
    """Return what the backend says to a word in a tunnel."""
    return b"you said " + said(script, index)


def said(script: Script, index: int) -> bytes:
    """Return a word of the client's in a tunnel."""
    return texts.word(script.seed, index, script.word_bytes).encode() + b"\n"


def _parsed(body: bytes) -> Mapping[str, Any]:
    try:
        parsed = json.loads(body)
    except ValueError as error:
        raise Wrong(f"no JSON: {body[:200]!r}") from error
    expect(isinstance(parsed, dict), f"no JSON object: {body[:200]!r}")
    return dict(parsed)


def _shortened(said: Mapping[int, str]) -> dict[int, str]:
    return {index: f"{text[:60]} … {text[-60:]}" for index, text in said.items()}
