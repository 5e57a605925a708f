"""A backend's answer as a case writes it down → the head of the message and the pieces of its body.

{status, headers, json | body | answer: …}   a whole answer with its length
{stream: [piece …]}                          an event stream, one HTTP chunk a piece
{wire: [piece …]}                            bytes as they are, head and framing included
"""

import json
from dataclasses import dataclass, field

from tests.cases.runner.values import check_keys, is_value, to_bytes

_FORMS = {"json", "body", "answer", "stream", "wire"}
_KEYS = _FORMS | {"when", "times", "status", "reason", "headers", "framing", "end", "usage", "finish", "fields", "cuts"}
_ENDS = {"clean", "close", "cut", "reset", "open", "gone"}
_REASONS = {200: "OK", 204: "No Content", 304: "Not Modified", 302: "Found", 307: "Temporary Redirect"}


@dataclass(frozen=True, slots=True)
class Scripted:
    """An answer: which requests get it, how often, and what is sent. `times` None is any number."""

    when: dict | None
    times: int | None
    status: int
    reason: str
    headers: tuple
    framing: str
    pieces: tuple
    end: str
    cuts: str | None = None
    used: list = field(default_factory=list)

    @property
    def is_used_up(self):
        """Whether no further request gets it."""
        return self.times is not None and len(self.used) >= self.times


def read_answers(written):
    """Return the answers of a backend: a list by the order of the requests, or one for all of them."""
    if isinstance(written, dict):
        return [_answer({"times": "any"} | written)]
    return [_answer(one) for one in written]


def _answer(written):
    check_keys(written, _KEYS)
    forms = _FORMS & set(written)
    if len(forms) > 1:
        raise ValueError(f"an answer is one of {sorted(forms)}")
    form = next(iter(forms), "body")
    framing, content_type, pieces = _form(form, written)
    status, times, end = written.get("status", 200), written.get("times", 1), written.get("end", "clean")
    if end not in _ENDS:
        raise ValueError(f"an answer ends as one of {sorted(_ENDS)}")
    said = written.get("headers", {})
    is_typed = content_type is None or "content-type" in {name.lower() for name in said}
    headers = [*([] if is_typed else [("Content-Type", content_type)]), *_headers(said)]
    return Scripted(
        when=written.get("when"),
        times=None if times == "any" else times,
        status=status,
        reason=written.get("reason", _REASONS.get(status, "Said")),
        headers=tuple(headers),
        framing=written.get("framing", framing),
        pieces=tuple(pieces),
        end=end,
        cuts=written.get("cuts"),
    )


def _headers(said):
    for name, values in said.items():
        for value in values if isinstance(values, list) else [values]:
            if value is not None:
                yield name, str(value)


def _form(form, written):
    if form == "stream":
        return "chunked", "text/event-stream", written["stream"]
    if form == "wire":
        return "none", None, written["wire"]
    if form == "json":
        return "length", "application/json", [{"json": written["json"]}]
    if form == "answer":
        return "length", "application/json", [{"json": completion(written)}]
    body = written.get("body", "")
    return "length", None, body if isinstance(body, list) else [body]


def completion(written):
    """Return the chat completion whose choices are the texts, or messages, of `answer`."""
    finish = written.get("finish", "stop")
    choices = [
        {
            "index": index,
            "message": {"role": "assistant", "content": one} if isinstance(one, str) else one,
            "finish_reason": finish,
        }
        for index, one in enumerate(written["answer"])
    ]
    usage = {"usage": usage_of(written["usage"])} if "usage" in written else {}
    made = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m", "choices": choices}
    return made | usage | written.get("fields", {})


def usage_of(written):
    """Return a usage object, of which [prompt, completion] are the short form."""
    if isinstance(written, dict):
        return written
    prompt, made = written
    return {"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made}


def piece(written, number):
    """Return the bytes of one piece of an answer's body; chunks carry the id of the request of that number."""
    if is_value(written):
        return to_bytes(written)
    kind = next((kind for kind in _PIECES if kind in written), None)
    if kind is None:
        raise ValueError(f"no piece of an answer: {written}")
    return _PIECES[kind](written, number)


def _event(data):
    return b"data: " + (data if isinstance(data, bytes) else json.dumps(data, ensure_ascii=False).encode()) + b"\n\n"


def _chunk(choices, number, **more):
    made = {"id": f"chatcmpl-{number}", "object": "chat.completion.chunk", "created": 100 + number, "model": "m"}
    return _event(made | {"choices": choices} | more)


def _choice(written, number):
    more = {key: value for key, value in written.items() if key not in ("say", "delta", "index", "finish")}
    delta = written["delta"] if "delta" in written else {"content": written["say"]} if "say" in written else {}
    choice = {"index": written.get("index", 0), "delta": delta, "finish_reason": written.get("finish")}
    return _chunk([choice | more], number)


def _comment(written, _number):
    return b": " + to_bytes(written["comment"]) + b"\n\n"


_PIECES = {
    "together": lambda written, number: b"".join(piece(one, number) for one in written["together"]),
    "chunk": lambda written, _: _event(written["chunk"]),
    "event": lambda written, _: f"event: {written['event']}\n".encode() + _event(written["data"]),
    "usage": lambda written, number: _chunk([], number, usage=usage_of(written["usage"])),
    "done": lambda _written, _number: b"data: [DONE]\n\n",
    "comment": _comment,
    "say": _choice,
    "delta": _choice,
    "finish": _choice,
}
