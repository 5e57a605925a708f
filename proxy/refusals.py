"""How a backend says no: the text, code and parameter of a refusal, wherever its body holds them.

    {"error": {"message", "code", "param"}}   {"object": "error", "message"}   {"error": "text"}   [{"error": …}]
    {"detail": "text"}   {"detail": [{"type", "loc", "msg", "input"}]}   data: {"error": …}   <html>…   plain text

The text is the backend's own first. Behind it, where they differ, stand lines that rules can rely on: what is told
further inside, the words of a page without its tags, and each complaint of pydantic, be it JSON, the repr of a Python
dict or pydantic's own prose, as

    int_type at body.n: Input should be a valid integer (got null)
    missing at body.tools[0].function.parameters: Field required

where the path is spelt as policies spell one, without the arms of a union (`str`, `list[str]`, `UserMessage`), and
what was got is told of null, booleans and numbers only. All of it takes time in proportion to the body.

Source: recorded answers of sglang, LlamaFactory, transformers serve and llama-cpp-python; pydantic 2's errors().
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import msgspec

from proxy.errors import ProxyError

READ_BYTES: Final = 64 * 1024
MAX_LINES: Final = 200
MAX_DEPTH: Final = 8
_FIELD_STEP: Final = 2  # body, then a field's name: what is named there is no arm

# In this order: what a backend says itself stands before what it quotes of another.
_TELLING: Final = ("error", "message", "msg", "Message", "title", "detail", "details", "errors", "metadata", "raw")

_QUOTED: Final = r"""(?:'(?:[^'\\]|\\.){0,2000}'|"(?:[^"\\]|\\.){0,2000}")"""
_STEP: Final = rf"(?:{_QUOTED}|-?\d{{1,9}})"
_COMPLAINT: Final = re.compile(
    rf"""(?:'type':\ '(?P<type>\w{{1,60}})',\ )?
    'loc':\ [(\[](?P<loc>{_STEP}(?:,\ {_STEP}){{0,32}}),?[)\]],[ ]
    'msg':\ (?P<msg>{_QUOTED})
    (?:,\ 'input':\ (?P<input>None|True|False|-?\d[\d.e+-]{{0,30}})(?=[,}}]))?""",
    re.VERBOSE | re.DOTALL,
)
_STEPS: Final = re.compile(_STEP, re.DOTALL)
_PROSE: Final = re.compile(
    r"^(?P<loc>[^\s:]{1,200})\n +(?P<msg>[^\n]{1,500}?) \[type=(?P<type>\w{1,60}), input_value=(?P<input>[^\n]{0,500}?)"
    r", input_type=\w{1,60}\]",
    re.MULTILINE,
)
_TOLD: Final = re.compile(r'"(?:error|message|detail|msg)"\s{0,8}:\s{0,8}"((?:[^"\\]|\\.)*)', re.DOTALL)
_PAGE: Final = re.compile(r"\s*<(?:!doctype|html|head|body|title|h1|center)\b", re.IGNORECASE)
_ARM: Final = re.compile(
    r"[A-Z]\w*|[a-z][a-z-]*\[.*\]|(?:constrained-|is-instance-)?(?:str|int|float|bool|bytes|dict|list)|none|nullable",
    re.DOTALL,
)
_NAME: Final = re.compile(r"[^.\[\]\"\s\\]+")
_JSON_WORDS: Final = {"None": "null", "True": "true", "False": "false"}
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r"}


@dataclass(frozen=True, slots=True)
class Failure:
    """What an `on_error` rule is matched against.

    `stream` names how an event stream failed before any content (`empty`, `error`, `silent`); `status` is the HTTP
    status, or the one that an error event claims. `fewer_choices`: an answer came, with fewer than were asked for.
    """

    status: int | None
    text: str = ""
    code: str | None = None
    param: str | None = None
    stream: str | None = None
    fewer_choices: bool = False


def failure_from(fault: ProxyError, stream: str) -> Failure:
    """Return what a failed event stream says; `stream` is how it failed."""
    return Failure(fault.status, _joined(_strings(fault.message)), _scalar(fault.code), _scalar(fault.param), stream)


def read_refusal(status: int | None, body: bytes, *, stream: str | None = None) -> Failure:
    """Return what the body of a refusal says; of more than READ_BYTES only the beginning is read."""
    data = body[:READ_BYTES]
    value = _decoded(data) or _decoded_leniently(data)
    if value is None:
        return Failure(status, _joined(_plain(data.decode("utf-8", "replace"))), stream=stream)
    return refusal_of(status, value, stream=stream)


def refusal_of(status: int | None, value: Any, *, stream: str | None = None) -> Failure:
    """Return what the decoded body of a refusal says."""
    holders = list(_holders(value))
    code = next((code for holder in holders if (code := _scalar(holder.get("code"))) is not None), None)
    param = next((param for holder in holders if (param := _scalar(holder.get("param"))) is not None), None)
    return Failure(status, _joined(_told(value)), code, param, stream)


def _decoded(data: bytes | str) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None


def _decoded_leniently(data: bytes) -> Any:
    """Return JSON as people write it: behind a byte order mark, with NaN (null here) or half a character (U+FFFD)."""
    try:
        value = _loaded(data.decode("utf-8-sig", "replace"))
        text = json.dumps(value, ensure_ascii=False)
        return _loaded(text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"))
    except (ValueError, RecursionError):
        return None


def _loaded(text: str) -> Any:
    return json.loads(text, parse_constant=lambda _: None, strict=False)


def _joined(texts: Iterator[str]) -> str:
    different = dict.fromkeys(text for text in islice(texts, MAX_LINES) if text)
    return "\n".join(different)[: 2 * READ_BYTES]


def _holders(value: Any, depth: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the objects that may have a code and a param, the innermost first."""
    if isinstance(value, list):
        value = value[0] if value else None
    if not isinstance(value, dict) or depth > MAX_DEPTH:
        return
    for name in ("error", "detail", "message", "errors"):
        yield from _holders(value.get(name), depth + 1)
    yield value


def _told(value: Any, depth: int = 0) -> Iterator[str]:
    """Yield the texts of a refusal's JSON, each with the lines that it is made into."""
    if isinstance(value, str):
        yield from _strings(value, depth)
    elif isinstance(value, list) and depth <= MAX_DEPTH:
        for item in value:
            yield from _told(item, depth + 1)
    elif isinstance(value, dict) and depth <= MAX_DEPTH:
        if isinstance(value.get("msg"), str) and isinstance(value.get("loc"), list):
            kind = value["type"] if isinstance(value.get("type"), str) else None
            yield _line(kind, value["loc"], value["msg"], _got(value))
        else:
            for name in _TELLING:
                yield from _told(value.get(name), depth + 1)


def _strings(text: str, depth: int = 0) -> Iterator[str]:
    """Yield a text, and the complaints that are pasted into it."""
    yield text
    if text[:1] in ("{", "[") and depth <= MAX_DEPTH:
        yield from _told(_decoded(text), depth + 1)
    for found in _COMPLAINT.finditer(text):
        steps = [_unquoted(step[0]) for step in _STEPS.finditer(found["loc"])]
        yield _line(found["type"], steps, str(_unquoted(found["msg"])), _word(found["input"]))
    for found in _PROSE.finditer(text):
        steps = [int(step) if step.isdecimal() else step for step in found["loc"].split(".")]
        yield _line(found["type"], steps, found["msg"], _word(found["input"]))


def _plain(text: str) -> Iterator[str]:
    """Yield a body that is no JSON, and what a page, an event or broken JSON says in it."""
    bare = text.strip()
    if bare.startswith(("data:", "event:")):
        lines = bare.partition("\n\n")[0].splitlines()
        data = "\n".join(line.removeprefix("data:").strip() for line in lines if line.startswith("data:"))
        value = _decoded(data)
        yield from _told(value) if value is not None else iter([bare, *_broken(data)])
    elif _PAGE.match(bare):
        yield from [bare, *_page(bare)]
    else:
        yield from _strings(bare)
        yield from _broken(bare)


def _broken(text: str) -> Iterator[str]:
    """Yield what JSON that is cut short, or that holds a text pasted in without escapes, says."""
    if text[:1] not in ("{", "["):
        return
    for found in _TOLD.finditer(text):
        told = _decoded(f'"{found[1]}"')
        yield from _strings(told if isinstance(told, str) else found[1])


def _page(text: str) -> Iterator[str]:
    """Yield the words of an HTML page, one line for each of its elements."""
    hidden = ""
    for piece in text.split("<")[1:]:
        tag, _, words = piece.partition(">")
        name = tag.split(maxsplit=1)[0].lower() if tag.strip() else ""
        if hidden:
            hidden = "" if name == f"/{hidden}" else hidden
        elif name in ("script", "style"):
            hidden = name
        if not hidden and words.strip():
            yield " ".join(_entities(words).split())


def _entities(words: str) -> str:
    try:
        import html  # its table of names takes half a megabyte, and hardly any backend answers with pages

        return html.unescape(words)
    except ValueError:  # a character reference of thousands of digits
        return words


def _line(kind: str | None, loc: Sequence[Any], msg: str, got: str | None) -> str:
    place = _path(loc)
    said = f"{msg} (got {got})" if got else msg
    return f"{f'{kind} at ' if kind and place else ''}{f'{place}: ' if place else ''}{said}"


def _path(loc: Sequence[Any]) -> str:
    """Return the path of a complaint as policies spell it. Shape: (body, stop, list[str], 0) → body.stop[0]."""
    path = ""
    for depth, step in enumerate(loc):
        if isinstance(step, int):
            path += f"[{step}]"
        elif depth < _FIELD_STEP or not _ARM.fullmatch(str(step)):
            plain = _NAME.fullmatch(str(step))
            path += f"{'.' if path else ''}{step}" if plain else f'["{step}"]'
    return path


def _got(complaint: dict[str, Any]) -> str | None:
    value = complaint.get("input", "")
    if value is None or isinstance(value, bool | int | float):
        return msgspec.json.encode(value).decode()
    return None


def _word(text: str | None) -> str | None:
    if text is None or text in _JSON_WORDS:
        return _JSON_WORDS.get(text or "")
    return text if re.fullmatch(r"-?\d[\d.e+-]*", text) else None


def _unquoted(literal: str) -> str | int:
    """Return the string or number that a Python literal spells."""
    if literal[0] not in "'\"":
        return int(literal)
    return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), literal[1:-1], flags=re.DOTALL)


def _scalar(value: Any) -> str | None:
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else None
