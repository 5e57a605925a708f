"""What LlamaFactory refuses, and how: in a stream its 200 is already out when it finds the fault.

| class | whole answer | stream |
|---|---|---|
| A: before the generator's first chunk | 400, 403 or 500 | cut without a byte |
| B: building the engine's arguments | 500 | role chunk, cut |
| C: in the engine's own thread | 500 | role chunk, then pings for ever |

Source: llamafactory.md §1.2, §1.3 (its rows in the comments); transcripts 04 to 20v of LlamaFactory 0.9.5.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from proxy.standin.llamafactory_schema import Chat, ChatMessage, MultimodalInputItem, Role

_DATA_URL = re.compile(
    r"data:(?:image/(?:png|jpg|jpeg|gif|bmp)|video/(?:mp4|mkv|avi|mov)|audio/(?:mpeg|mp3|wav|ogg));base64,(?P<data>.+)"
)
_MAGIC: Final = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"BM")
_USER_SIDE: Final = (Role.USER, Role.TOOL)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A fault. `message` is None where the real server raises what nobody catches: 500, plain text."""

    failure: Literal["A", "B", "C"]
    message: str | None = None
    status: int = 400


_CRASH: Final = Refusal("A")


def refuse(ask: Chat) -> Refusal | None:
    """Return the first fault of a request whose types are right."""
    return next(_faults(ask), None)


def _faults(ask: Chat) -> Iterator[Refusal]:
    yield from _turns(ask.messages)
    yield from _parts(ask.messages)
    if any(tool.function is None for tool in ask.tools or []):
        yield _CRASH  # 8
    if ask.stream and ask.tools:
        yield Refusal("A", "Cannot stream function calls.")  # 2
    if ask.stream and ask.n > 1:
        yield Refusal("A", "Cannot stream multiple responses.")  # 1
    yield from _arguments(ask)
    yield from _generation(ask)


def _turns(messages: list[ChatMessage]) -> Iterator[Refusal]:
    if not messages:
        yield Refusal("A", "Invalid length")  # 3
        return
    turns = messages[1:] if messages[0].role is Role.SYSTEM else messages
    if len(turns) % 2 == 0:
        yield Refusal("A", "Only supports u/a/u/a/u...")  # 4
    for index, message in enumerate(turns):
        is_user_side = message.role in _USER_SIDE
        if message.role is Role.SYSTEM or is_user_side != (index % 2 == 0):
            yield Refusal("A", "Invalid role")  # 5


def _parts(messages: list[ChatMessage]) -> Iterator[Refusal]:
    turns = messages[1:] if messages and messages[0].role is Role.SYSTEM else messages
    for part in (part for message in turns for part in message.parts):
        if part.medium is None and part.text is None:
            yield _CRASH  # 13
        elif part.medium is not None:
            yield from _medium(part, part.medium.url)


def _medium(part: MultimodalInputItem, url: str) -> Iterator[Refusal]:
    data = _DATA_URL.match(url)
    if data is not None:
        if part.type == "image_url" and not _is_image(data["data"]):
            yield _CRASH  # 19
    elif "://" not in url and not url.startswith("data:"):
        yield Refusal("A", "Invalid or inaccessible file path.")  # 14
    elif not url.startswith(("http://", "https://")):
        yield Refusal("A", "Invalid URL: 400: Only HTTP/HTTPS URLs are allowed.")  # 16
    else:
        yield _remote(url)


def _is_image(data: str) -> bool:
    try:
        return base64.b64decode(data).startswith(_MAGIC)
    except (binascii.Error, ValueError):
        return False


def _remote(url: str) -> Refusal:
    host = re.sub(r"^https?://(?:[^/@]*@)?(\[[^\]]*\]|[^/:?#]*).*$", r"\1", url).strip("[]")
    if not host:
        return Refusal("A", "Invalid URL: 400: Invalid URL hostname.")  # 18
    try:
        is_public = ipaddress.ip_address(host).is_global
    except ValueError:
        is_public = host != "localhost"
    if not is_public:
        return Refusal("A", "Invalid URL: 403: Access to private or reserved IP addresses is not allowed.")  # 17
    return Refusal("A", f"Could not resolve hostname: {host}")  # 18: a stand-in reaches nothing


def _arguments(ask: Chat) -> Iterator[Refusal]:
    for message in ask.messages:
        has_calls = message.role is Role.ASSISTANT and message.tool_calls
        if message.content is None and not has_calls and message.role is not Role.SYSTEM:
            yield Refusal("B")  # 12
        if any(part.medium for part in message.parts):
            yield Refusal("B")  # 20
    if ask.max_tokens is not None and ask.max_tokens < 0:
        yield Refusal("B")  # 24


def _generation(ask: Chat) -> Iterator[Refusal]:
    if ask.presence_penalty is not None and ask.presence_penalty <= 0:
        yield Refusal("C")  # 21
    if ask.temperature is not None and ask.temperature < 0:
        yield Refusal("C")  # 22
    if ask.top_p is not None and ask.top_p < 0:
        yield Refusal("C")  # 23
